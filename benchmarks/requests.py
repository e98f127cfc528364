"""Counts the node's requests to the API server with a proxy."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from dra_kit.client.credentials import Credentials

_HOP_BY_HOP = {"connection", "transfer-encoding", "host", "content-length", "content-encoding", "authorization"}


@dataclass
class Counted:
    """Requests so far, separately for dra-kit and kopf.

    Attributes:
        watches: of these, the watches.
        open: the watches that have not ended.
    """

    kubeconfig: Path
    ours: Counter[str] = field(default_factory=Counter)
    kopf: Counter[str] = field(default_factory=Counter)
    watches: int = 0
    open: int = 0


@asynccontextmanager
async def counting_proxy(credentials: Credentials, directory: Path) -> AsyncIterator[Counted]:
    """Run an HTTP proxy; yield the counts and its kubeconfig."""
    counted = Counted(directory / "proxy.kubeconfig")
    authorization = await credentials.authorization()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=credentials.ssl or True), auto_decompress=False
    ) as session:

        async def forward(request: web.Request) -> web.StreamResponse:
            watch = "watch" in request.query
            counted.watches += watch
            counted.open += watch
            try:
                return await passed_on(request)
            finally:
                counted.open -= watch

        async def passed_on(request: web.Request) -> web.StreamResponse:
            who = counted.ours if "dra-kit" in request.headers.get("User-Agent", "") else counted.kopf
            who[f"{request.method} {request.path}"] += 1
            headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP_BY_HOP}
            if authorization:
                headers["Authorization"] = authorization
            async with session.request(
                request.method,
                credentials.connection.server.rstrip("/") + request.raw_path,
                headers=headers,
                data=await request.read() or None,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as answer:
                kept = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP_BY_HOP}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                with suppress(ConnectionResetError):  # the node has closed a watch
                    async for chunk in answer.content.iter_any():
                        await response.write(chunk)
                return response

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app, shutdown_timeout=1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        server = {"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [server],
            "users": [{"name": "anyone", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "anyone"}}],
            "current-context": "proxy",
        }
        await asyncio.to_thread(counted.kubeconfig.write_text, json.dumps(config))
        try:
            yield counted
        finally:
            await runner.cleanup()
