"""An HTTP server whose answers a test writes down, and which remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiohttp import web

from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Wire:
    """A server; its first answers come in the order given, the last one repeats."""

    url: str = ""
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    answers: list[Handler] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    @property
    def queries(self) -> list[dict[str, str]]:
        return [dict(request.query) for request in self.requests]

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def headers(self, name: str) -> list[str | None]:
        return [request.headers.get(name) for request in self.requests]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        text = await request.text()
        self.bodies.append(json.loads(text) if text.startswith(("{", "[")) else text)
        handler = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await handler(request)

    def client(self, *, authorization: str | None = None, timeout: float = 30) -> Client:
        """A client of this server; it is closed with the server at the latest."""
        credentials = Credentials(Connection(self.url, authorization))
        self.clients.append(Client(credentials, user_agent="dra-kit/test", timeout=timeout))
        return self.clients[-1]


def answer(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Handler:
    text = body if isinstance(body, str) else json.dumps(body)

    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status, headers=headers, content_type="application/json")

    return handler


def status(code: int, reason: str, message: str, **more: object) -> Handler:
    """A Status as the API server words it: it names the object that it is about."""

    async def handler(request: web.Request) -> web.StreamResponse:
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
        details = {"name": request.path.removesuffix("/status").rpartition("/")[2]}
        return web.json_response({**body, "message": message, "details": details, **more}, status=code)

    return handler


async def hang_up(request: web.Request) -> web.Response:
    """Closes the connection instead of answering."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def stream(*chunks: bytes, hang: bool = False, cut: bool = False) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if hang:
            await asyncio.Event().wait()
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    return handler


def event(kind: str, obj: object) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


@asynccontextmanager
async def served(*answers: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[Wire]:
    wire = Wire(answers=list(answers))
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", wire.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    wire.url = f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield wire
    finally:
        for client in wire.clients:
            await client.close()
        await runner.cleanup()
