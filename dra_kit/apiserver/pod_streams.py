"""``pods/exec``, ``attach`` and ``proxy``: options, the interface to containers, WebSockets, HTTP.

Clients choose a protocol of WebSockets: ``v5.channel.k8s.io`` and ``v4.channel.k8s.io`` carry one stream per channel,
whose number is the first byte of a message. The older way, SPDY without WebSockets, is not served: clients try
WebSockets first. ``pods/portforward`` is in ``port_forward.py``.

Sources: Kubernetes 1.37 ``pkg/registry/core/pod``; k8s.io/apiserver 0.37 ``pkg/util/proxy``; k8s.io/streaming and
k8s.io/kubelet 0.37 ``pkg/cri/streaming``; measured on kube-apiserver 1.37.1.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol, Self, TypeAlias

from aiohttp import WSMsgType, web
from msgspec import Struct

from dra_kit.apiserver.requests import Query
from dra_kit.apiserver.status_errors import StatusError, bad_request
from dra_kit.kubernetes.values.json import Object

V4: Final = "v4.channel.k8s.io"
V5: Final = "v5.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _ERROR = 0, 1, 2, 3  # 4 is the size of the terminal, 255 the end of a channel
CHUNK: Final = 1 << 15
_LARGEST_MESSAGE: Final = 1 << 25
_CLOSE_SECONDS: Final = 2.0


class StreamOptions(Struct, frozen=True, kw_only=True):
    """``PodExecOptions`` or ``PodAttachOptions`` of core/v1."""

    container: str = ""
    command: tuple[str, ...] = ()
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False

    @classmethod
    def parse(cls, query: Query) -> Self:
        """Read them from a query; a terminal has no separate errors."""
        tty = query.flag("tty")
        return cls(
            container=query.text("container"),
            command=tuple(query.values.get("command", ())),
            stdin=query.flag("stdin"),
            stdout=query.flag("stdout"),
            stderr=query.flag("stderr") and not tty,
            tty=tty,
        )

    def check(self) -> None:
        """Check that there is a stream.

        Raises:
            PodStreamUnavailable: there is none.
        """
        if not (self.stdin or self.stdout or self.stderr):
            raise PodStreamUnavailable("you must specify at least 1 of stdin, stdout, stderr", 400)


class PodStreamUnavailable(Exception):
    """There is nothing to connect to.

    Args:
        message: the kubelet's.
        code: HTTP status.
    """

    def __init__(self, message: str, code: int = 500) -> None:
        super().__init__(message)
        self.code = code


class CommandResult(Struct, frozen=True):
    """How a command ended.

    Attributes:
        code: its exit code; None if it could not be started.
        message: why it could not be started.
    """

    code: int | None = 0
    message: str = ""

    def status(self, protocol: str) -> Object:
        """Return the Status that clients of a protocol get."""
        empty: Object = {"metadata": {}} if protocol == V5 else {}
        if self.code == 0:
            return {**empty, "status": "Success"}
        if self.code is None:
            cause = f"error executing command in container: {self.message}"
            if protocol == V5:  # the API server wraps what the kubelet reports
                cause = f"Internal error occurred: {cause}"
            return {**empty, "status": "Failure", "message": f"Internal error occurred: {cause}",
                    "reason": "InternalError", "details": {"causes": [{"message": cause}]}, "code": 500}  # fmt: skip
        message = f"command terminated with non-zero exit code: command terminated with exit code {self.code}"
        causes = [{"reason": "ExitCode", "message": str(self.code)}]
        return {**empty, "status": "Failure", "message": message, "reason": "NonZeroExitCode",
                "details": {"causes": causes}}  # fmt: skip


class CommandStreams(Protocol):
    """The streams of a command in a container, or of the container's own process."""

    async def read_output(self) -> bytes:
        """Return what it has written to its output since; nothing at the end."""
        ...

    async def read_errors(self) -> bytes:
        """Return what it has written to its errors since; nothing at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to its input."""
        ...

    def close_input(self) -> None:
        """End its input."""
        ...

    def resize(self, width: int, height: int) -> None:
        """Set the size of its terminal."""
        ...

    async def result(self) -> CommandResult:
        """Wait for its end."""
        ...

    def close(self) -> None:
        """Close the streams."""
        ...


class PodStreams(Protocol):
    """Connects to the containers of a cluster; each may raise :class:`PodStreamUnavailable`."""

    def find(self, pod: Object, container: str = "", *, attach: bool = False) -> None:
        """Check that a container runs; without a name, that the pod does. ``attach``: to its own process."""
        ...

    async def exec(self, pod: Object, options: StreamOptions) -> CommandStreams:
        """Start a command in a running container; the result reports a command that cannot be started."""
        ...

    async def attach(self, pod: Object, options: StreamOptions) -> CommandStreams:
        """Connect to the process of a running container."""
        ...

    async def dial(self, pod: Object, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of a pod.

        Raises:
            OSError: the connection is refused.
        """
        ...


Serve: TypeAlias = Callable[[web.WebSocketResponse, str], Awaitable[None]]
"""Uses a WebSocket, whose protocol is given, until one side closes it."""


class StreamUpgrade(Struct, frozen=True):
    """The answer to a request that becomes a WebSocket.

    Attributes:
        protocols: of WebSockets that are served.
        check: raises :class:`PodStreamUnavailable` if there is nothing to connect to.
        begin: connects with the pod; entered once it is certain that the client speaks such a protocol. What it has
            opened is closed at its end, also if the client leaves before the handshake.
    """

    protocols: tuple[str, ...]
    check: Callable[[], None]
    begin: Callable[[], AbstractAsyncContextManager[Serve]]

    async def answer(self, raw: web.BaseRequest) -> web.StreamResponse:
        """Serve a request until one side closes it.

        Raises:
            StatusError: 400, it asks for no upgrade, or for another one.
        """
        tokens = {token.strip().lower() for token in raw.headers.get("Connection", "").split(",")}
        wanted = raw.headers.get("Upgrade", "")
        if "upgrade" not in tokens or not wanted:
            raise bad_request("Upgrade request required")
        try:
            self.check()
            if wanted.lower() != "websocket":
                raise bad_request(
                    f"{wanted} is not served here, only WebSockets; use kubectl 1.31 or newer, without "
                    "KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false and KUBECTL_PORT_FORWARD_WEBSOCKETS=false"
                )
            asked = {name.strip() for name in raw.headers.get("Sec-WebSocket-Protocol", "").split(",")}
            if not asked & set(self.protocols):
                return web.Response(status=403, headers={"Connection": "close"})
            socket = web.WebSocketResponse(
                protocols=self.protocols, max_msg_size=_LARGEST_MESSAGE, compress=False, timeout=_CLOSE_SECONDS
            )
            if not socket.can_prepare(raw):
                raise bad_request("the WebSocket handshake lacks a valid Sec-WebSocket-Key or Sec-WebSocket-Version")
        except PodStreamUnavailable as reason:
            return web.Response(text=str(reason), status=reason.code)
        async with AsyncExitStack() as stack:
            try:
                serve = await stack.enter_async_context(self.begin())
            except PodStreamUnavailable as reason:
                return web.Response(text=str(reason), status=reason.code)
            with suppress(ConnectionError):  # the client is gone
                await socket.prepare(raw)
                await serve(socket, socket.ws_protocol or "")
                await stack.aclose()
                await socket.close()
        return socket


def serve_exec(pods: PodStreams, pod: Object, options: StreamOptions) -> StreamUpgrade:
    """Return the upgrade that runs a command in a container."""
    return _command(lambda: pods.find(pod, options.container), partial(pods.exec, pod, options), options)


def serve_attach(pods: PodStreams, pod: Object, options: StreamOptions) -> StreamUpgrade:
    """Return the upgrade that connects a client with the process of a container."""
    find = partial(pods.find, pod, options.container, attach=True)
    return _command(find, partial(pods.attach, pod, options), options)


def _command(
    find: Callable[[], None], connect: Callable[[], Awaitable[CommandStreams]], options: StreamOptions
) -> StreamUpgrade:
    def check() -> None:
        options.check()
        find()

    @asynccontextmanager
    async def begin() -> AsyncIterator[Serve]:
        streams = await connect()

        async def serve(socket: web.WebSocketResponse, protocol: str) -> None:
            await _Command(socket, protocol, streams, options).run()

        try:
            yield serve
        finally:
            streams.close()

    return StreamUpgrade((V5, V4), check, begin)


class _Command:
    """One client of a command."""

    def __init__(
        self, socket: web.WebSocketResponse, protocol: str, streams: CommandStreams, options: StreamOptions
    ) -> None:
        self._socket, self._protocol, self._streams, self._options = socket, protocol, streams, options

    async def run(self) -> None:
        """Serve it until the command has ended, or the client has left."""
        first = _STDOUT if self._options.stdout else _STDERR if self._options.stderr else _ERROR
        await self._socket.send_bytes(bytes((first,)))  # the command runs
        async with running_tasks() as start:
            outputs = [start(self._send(_STDOUT, self._streams.read_output))] if self._options.stdout else []
            if self._options.stderr:
                outputs.append(start(self._send(_STDERR, self._streams.read_errors)))
            end = start(self._finish(outputs))
            await asyncio.wait((start(self._receive()), end), return_when=asyncio.FIRST_COMPLETED)

    async def _send(self, channel: int, read: Callable[[], Awaitable[bytes]]) -> None:
        prefix = bytes((channel,))
        while data := await read():
            for place in range(0, len(data), CHUNK):
                await self._socket.send_bytes(prefix + data[place : place + CHUNK])

    async def _finish(self, outputs: Sequence[asyncio.Task[None]]) -> None:
        """Report the end, after all output."""
        result = await self._streams.result()
        if outputs:
            await asyncio.wait(outputs)
        status = json.dumps(result.status(self._protocol), separators=(",", ":"))
        await self._socket.send_bytes(bytes((_ERROR,)) + status.encode())

    async def _receive(self) -> None:
        async for data in messages(self._socket):
            match data[0]:
                case 0 if self._options.stdin:
                    await self._streams.write(data[1:])
                case 4 if self._options.tty:
                    with suppress(ValueError, TypeError, KeyError, struct.error):  # as the kubelet does
                        size = json.loads(data[1:])
                        self._streams.resize(size["Width"], size["Height"])
                case 255 if data[1:2] == bytes((_STDIN,)):
                    self._streams.close_input()
                case _:
                    pass


async def messages(socket: web.WebSocketResponse) -> AsyncIterator[bytes]:
    """Yield messages that are not empty, until the client closes."""
    async for message in socket:
        data = message.data.encode() if message.type is WSMsgType.TEXT else message.data
        if message.type in {WSMsgType.TEXT, WSMsgType.BINARY} and data:
            yield data


@asynccontextmanager
async def running_tasks() -> AsyncIterator[Callable[[Any], asyncio.Task[None]]]:
    """Give a function that starts tasks; those that still run end with the block."""
    tasks: set[asyncio.Task[None]] = set()

    def forget(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled():
            task.exception()  # such as a client that is gone; it is not to be logged

    def start(work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(forget)
        return task

    try:
        yield start
    finally:
        remaining = [*tasks]
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)


_HOP_BY_HOP: Final = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
    "upgrade",
))  # fmt: skip
"""Headers that are about one connection."""
_NOT_FORWARDED: Final = _HOP_BY_HOP | {"host", "authorization", "content-length"}
_CREDENTIALS: Final = "impersonate-"
_DECOMPRESSED: Final = frozenset(("gzip", "deflate", "br", "zstd"))
"""Encodings of request bodies that aiohttp's server has undone, so that they are not named to the pod."""
_CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,16}")
_NO_BODY: Final = frozenset((204, 304))
Dial: TypeAlias = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class ProxiedRequest(Struct, frozen=True):
    """The answer to a request that is passed on to a port of a pod, without the credentials of the client.

    Attributes:
        dial: connects to the port; it may raise OSError or :class:`PodStreamUnavailable`.
        host: the address and the port.
        secure: the pod serves HTTPS, with any certificate.
        segments: how many segments of the path lead to the pod; the others are passed on.
    """

    dial: Dial
    host: str
    secure: bool
    segments: int

    async def answer(self, raw: web.BaseRequest) -> web.StreamResponse:
        """Pass a request on, and the response back.

        Raises:
            StatusError: 501, the request asks for another protocol.
        """
        if "Upgrade" in raw.headers:
            raise StatusError(501, "NotImplemented", "WebSockets are not passed on; use kubectl port-forward")
        parts = raw.rel_url.raw_path.lstrip("/").split("/", self.segments)
        prefix = "/" + "/".join(parts[: self.segments])
        query = f"?{raw.rel_url.raw_query_string}" if raw.rel_url.raw_query_string else ""
        rest = "".join(parts[self.segments :])
        if len(parts) == self.segments and raw.method in {"GET", "HEAD"}:  # links of the pod's page are relative to it
            return web.Response(status=301, headers={"Location": f"{prefix}/{query}"})
        try:
            reader, writer = await self.dial()
        except (OSError, PodStreamUnavailable) as error:
            cause = (
                f"connect: {os.strerror(error.errno).lower()}" if isinstance(error, OSError) and error.errno else error
            )
            return _unreachable(f"dial tcp {self.host}: {cause}")
        try:  # the client may go away at any point
            try:
                if self.secure:
                    context = ssl.create_default_context()
                    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                    await writer.start_tls(context)
                writer.write(await self._request(raw, f"/{rest}{query}", prefix))
                await writer.drain()
                status, reason, headers = await _response_head(reader)
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                return _unreachable("EOF" if isinstance(error, EOFError) else str(error))
            return await self._pass_back(raw, web.StreamResponse(status=status, reason=reason), headers, reader, prefix)
        finally:
            writer.close()

    async def _request(self, raw: web.BaseRequest, path: str, prefix: str) -> bytes:
        body = await raw.read()
        sent = [
            (name, value)
            for name, value in raw.headers.items()
            if name.lower() not in _NOT_FORWARDED and not name.lower().startswith(_CREDENTIALS)
            if name.lower() != "content-encoding" or value.lower() not in _DECOMPRESSED
        ]
        added = [("Host", self.host), ("X-Forwarded-Uri", f"{prefix}{path}"), ("X-Forwarded-Host", raw.host),
                 ("X-Forwarded-Proto", raw.scheme), ("Connection", "close")]  # fmt: skip
        if body or raw.method in {"POST", "PUT", "PATCH"}:
            added.append(("Content-Length", str(len(body))))
        lines = [f"{raw.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (*added, *sent)), "", ""]
        return "\r\n".join(lines).encode(errors="surrogateescape") + body

    async def _pass_back(
        self,
        raw: web.BaseRequest,
        response: web.StreamResponse,
        headers: Sequence[tuple[str, str]],
        reader: asyncio.StreamReader,
        prefix: str,
    ) -> web.StreamResponse:
        known = {name.lower(): value for name, value in headers}
        for name, value in headers:
            if name.lower() == "location":
                response.headers.add(name, self._moved(value, prefix))
            elif name.lower() not in _HOP_BY_HOP:
                response.headers.add(name, value)
        chunked = known.get("transfer-encoding", "").lower().endswith("chunked")
        has_body = raw.method != "HEAD" and response.status not in _NO_BODY
        if has_body and (chunked or "content-length" not in known):
            response.headers.popall("Content-Length", None)
            response.enable_chunked_encoding()
        length = None if chunked else known.get("content-length")
        try:
            await response.prepare(raw)
            if has_body:
                async for data in _body(reader, length, chunked=chunked):
                    await response.write(data)
            await response.write_eof()
        except (EOFError, ValueError, OSError):  # the client sees that the body is not complete
            if raw.transport is not None:
                raw.transport.abort()
        return response

    def _moved(self, location: str, prefix: str) -> str:
        """Return where a redirection leads for the client."""
        own = f"{'https' if self.secure else 'http'}://{self.host}/"
        if location.startswith(own):
            location = location[len(own) - 1 :]
        return f"{prefix}{location}" if location.startswith("/") and not location.startswith("//") else location


def _unreachable(cause: str) -> web.Response:
    return web.Response(status=503, text=f"error trying to reach service: {cause}")


async def _response_head(reader: asyncio.StreamReader) -> tuple[int, str, list[tuple[str, str]]]:
    """Return status, reason and headers of a response.

    Raises:
        ValueError: it is not HTTP.
        EOFError: it ends before.
        asyncio.LimitOverrunError: it is too long.
    """
    while True:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode(errors="surrogateescape").split("\r\n")
        version, code, reason = [*lines[0].split(" ", 2), "", ""][:3]
        if not version.startswith("HTTP/") or not (code.isascii() and code.isdecimal() and len(code) == 3):
            raise ValueError(
                f"net/http: HTTP/1.x transport connection broken: malformed HTTP response {lines[0][:80]!r}"
            )
        if int(code) >= 200:
            fields = (line.partition(":") for line in lines[1:] if line)
            return (
                int(code),
                reason if reason.isprintable() else "",
                [(name.strip(), value.strip()) for name, _, value in fields if name.strip()],
            )


async def _body(reader: asyncio.StreamReader, length: str | None, *, chunked: bool) -> AsyncIterator[bytes]:
    """Yield a body as it arrives.

    Raises:
        ValueError: it is invalid.
        EOFError: it is cut off.
    """
    if chunked:
        while True:
            size = (await reader.readline()).partition(b";")[0].strip()
            if not _CHUNK_SIZE.fullmatch(size):
                raise ValueError(f"invalid size of a chunk: {size[:20]!r}")
            if not int(size, 16):
                return
            async for data in _exactly(reader, int(size, 16)):
                yield data
            await reader.readexactly(2)
    elif length is not None:
        if not (length.isascii() and length.isdecimal()) or len(length) > _LENGTH_DIGITS:
            raise ValueError(f"invalid Content-Length {length[:20]!r}")
        async for data in _exactly(reader, int(length)):
            yield data
    else:
        while data := await reader.read(CHUNK):
            yield data


_LENGTH_DIGITS: Final = 18


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        data = await reader.read(min(size, CHUNK))
        if not data:
            raise EOFError("the response was cut off")
        size -= len(data)
        yield data
