"""The server of the page: its files, the records as they come, explanations and output of containers.

Every user of the machine, and every page in a browser, can send requests to the loopback interface. So each request
must name this server (no name that an attacker's DNS server points here), and whatever a sandbox knows is served only
with a random token. The token is in the fragment of the URL, which browsers send to no server; the page's script takes
it from there and sends it in a header, which no other page can do.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hmac
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from importlib.resources import files
from typing import Final, Literal, Self

import msgspec
from aiohttp import web

from dra_kit.diagnosis.explain.documents import ReportPage
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.process.connections import ConnectionLimiter, ConnectionLimits, requests_logger
from dra_kit.sandbox.page.history import PageHistory

_HOST: Final = "127.0.0.1"
_NAMES: Final = (_HOST, "localhost")
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_BEAT_SECONDS: Final = 10.0
"""After so long without a record, a stream says that it is still there."""
_GATHER_SECONDS: Final = 0.03
"""Records that come within this time are sent together."""
_SLOW_SECONDS: Final = 60.0
"""A reader that takes nothing for so long is disconnected; it comes back and goes on where it was."""
_LAST_SECONDS: Final = 1.0
_CONNECTIONS: Final = 64
_NUMBER: Final = re.compile(r"\d{1,15}")
_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class PageServer:
    """Serves the page of a history; ``async with`` starts and stops it.

    Args:
        history: the records.
        port: 0 for a free one.
        mode: ``live`` follows a sandbox, ``replay`` plays the records of a file.
        title: what is shown: the driver, or the name of the file.

    Raises:
        ConfigurationError: the port is in use.
    """

    def __init__(
        self, history: PageHistory, *, port: int = 0, mode: Literal["live", "replay"] = "live", title: str = ""
    ) -> None:
        self._history = history
        self._port = port
        self._about = {"mode": mode, "title": title}
        self._token = secrets.token_urlsafe(32)
        self._files = _page_files()
        self._stack = AsyncExitStack()
        self._explaining = asyncio.Lock()
        self._routes: Mapping[str, _Handler] = {
            "/api/records": self._records,
            "/api/events": self._events,
            "/api/explanation": self._explanation,
            "/api/explanation.html": self._explanation_page,
            "/api/output": self._output,
        }

    @property
    def url(self) -> str:
        """The address of the page, with the token: for the user alone."""
        return f"http://{_HOST}:{self._port}/#token={self._token}"

    async def __aenter__(self) -> Self:
        server = web.Server(
            self._answer,
            handler_cancellation=True,
            access_log=None,
            logger=requests_logger,
        )
        runner = web.ServerRunner(server, shutdown_timeout=_LAST_SECONDS)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        try:
            listening = self._stack.enter_context(socket.create_server((_HOST, self._port)))
        except OSError as error:
            await self._stack.aclose()
            raise ConfigurationError(
                f"--ui-port {self._port}: {os.strerror(error.errno or 0)}; use another port, or 0 for a free one"
            ) from None
        self._port = listening.getsockname()[1]
        limiter = ConnectionLimiter(server, listening, None, ConnectionLimits(connections=_CONNECTIONS))
        await self._stack.enter_async_context(limiter.serving())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._history.close()  # streams send the last records, and end
        await asyncio.sleep(2 * _GATHER_SECONDS)
        await self._stack.aclose()

    # --- requests

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._checked(request)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    async def _checked(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Host") not in {f"{name}:{self._port}" for name in _NAMES}:
            return _refusal(403, "this server has another name: use the URL that dra-kit printed")
        if request.headers.get("Origin", f"http://{request.headers['Host']}") != f"http://{request.headers['Host']}":
            return _refusal(403, "pages of other sites are not served")
        if request.method != "GET":
            return _refusal(405, "only GET is served")
        path = request.rel_url.raw_path
        if found := self._files.get(path):
            return web.Response(body=found[0], content_type=found[1], charset="utf-8")
        handler = self._routes.get(path)
        if handler is None:
            return _refusal(404, f"{path} is not part of the page")
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), self._token.encode()):
            return _refusal(401, "the token is missing or wrong: open the URL that dra-kit printed")
        return await handler(request)

    async def _records(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve all records after ``since``."""
        history, since = self._history, _number(request, "since", 0)
        lines, last = history.lines(since, most=1 << 62)
        about = msgspec.json.encode({**self._about, "generation": history.generation, "last": last})
        body = b"".join((about[:-1], b',"records":[', b",".join(lines), b"]}"))
        response = web.Response(body=body, content_type="application/json", zlib_executor_size=1 << 16)
        response.enable_compression()
        return response

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve the records after ``since``, or after the last one that the client got, as server-sent events.

        A client needs nothing but its place in the history, so that a slow one costs no memory.
        """
        history = self._history
        last = _number(request, "since", 0)
        given = request.headers.get("Last-Event-ID", "")
        if _NUMBER.fullmatch(given):
            last = int(given)
        generation = _number(request, "generation", history.generation)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **_HEADERS})
        await response.prepare(request)
        while True:
            if generation != history.generation:
                await self._write(response, b"event: reset\ndata: {}\n\n")
                return response
            lines, newest = history.lines(last)
            if lines:
                events = b"".join(b"data: %b\n\n" % line for line in lines)
                await self._write(response, b"%bid: %d\nevent: place\ndata: {}\n\n" % (events, newest))
            elif newest == last and history.closed:
                await self._write(response, b"event: end\ndata: {}\n\n")
                return response
            elif newest == last:
                await history.wait(last, generation, _BEAT_SECONDS)
                if history.last == last and not history.closed:
                    await self._write(response, b":\n\n")
                await asyncio.sleep(_GATHER_SECONDS)
            last = newest

    @staticmethod
    async def _write(response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(_SLOW_SECONDS):
            await response.write(data)

    async def _explanation(self, request: web.BaseRequest) -> web.StreamResponse:
        async def answer(page: ReportPage) -> web.Response:
            body = {"title": page.title, "summary": page.summary, "lines": page.lines, "text": str(page)}
            return web.Response(body=msgspec.json.encode(body), content_type="application/json")

        return await self._explained(request, answer)

    async def _explanation_page(self, request: web.BaseRequest) -> web.StreamResponse:
        async def answer(page: ReportPage) -> web.Response:
            return web.Response(text=page.html(dt.datetime.now(dt.UTC)), content_type="text/html")

        return await self._explained(request, answer)

    async def _explained(
        self, request: web.BaseRequest, answer: Callable[[ReportPage], Awaitable[web.Response]]
    ) -> web.StreamResponse:
        explain = self._history.explanation(request.query.get("uid", ""), _number(request, "at", self._history.last))
        if explain is None:
            return _refusal(404, "no such pod or claim existed at this time")
        async with self._explaining:  # one at a time: each takes a processor
            try:
                page = await asyncio.to_thread(explain)
            except DraKitError as error:
                return _refusal(422, str(error))
        return await answer(page)

    async def _output(self, request: web.BaseRequest) -> web.StreamResponse:
        text = self._history.output(request.query.get("container", ""), _number(request, "at", self._history.last))
        return web.Response(text=text)


def _number(request: web.BaseRequest, name: str, default: int) -> int:
    text = request.query.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else default


def _refusal(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")


def _page_files() -> Mapping[str, tuple[bytes, str]]:
    """Return content and type of each file of the page, by path."""
    found = {
        f"/{file.name}": (file.read_bytes(), _TYPES[file.name.rpartition(".")[2]])
        for file in files("dra_kit.sandbox.page").joinpath("assets").iterdir()
        if file.name.rpartition(".")[2] in _TYPES
    }
    return {**found, "/": found["/index.html"]}
