"""``pods/exec``, ``pods/attach`` and ``pods/portforward``: options, the interface to containers, and WebSockets.

Clients choose a protocol of WebSockets: ``v5.channel.k8s.io`` and ``v4.channel.k8s.io`` carry one stream per channel,
whose number is the first byte of a message; ``SPDY/3.1+portforward.k8s.io`` carries SPDY in messages. The older way,
SPDY without WebSockets, is not served: clients try WebSockets first.

Sources: Kubernetes 1.37 ``pkg/registry/core/pod``; k8s.io/apiserver 0.37 ``pkg/util/proxy``; k8s.io/streaming and
k8s.io/kubelet 0.37 ``pkg/cri/streaming``; measured on kube-apiserver 1.37.1.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol, Self, TypeAlias

from aiohttp import WSMsgType, web
from msgspec import Struct

from dra_kit.apiserver.requests import Query
from dra_kit.apiserver.spdy import (
    PingReceived,
    SpdyError,
    SpdyEvent,
    SpdySession,
    StreamData,
    StreamOpened,
    StreamReset,
)
from dra_kit.apiserver.status_errors import bad_request
from dra_kit.kubernetes.values.json import Object

V4: Final = "v4.channel.k8s.io"
V5: Final = "v5.channel.k8s.io"
TUNNEL: Final = "SPDY/3.1+portforward.k8s.io"
_STDIN, _STDOUT, _STDERR, _ERROR = 0, 1, 2, 3  # 4 is the size of the terminal, 255 the end of a channel
_CHUNK: Final = 1 << 15
_LARGEST_MESSAGE: Final = 1 << 25
_CLOSE_SECONDS: Final = 2.0
_PORTS: Final = range(1, 1 << 16)
_DIGITS: Final = 5  # of the largest port
_PORTS_MAX: Final = 128  # each has two channels, whose numbers are one byte


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
        begin: connects with the pod; called once it is certain that the client speaks such a protocol.
    """

    protocols: tuple[str, ...]
    check: Callable[[], None]
    begin: Callable[[], Awaitable[Serve]]

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
            serve = await self.begin()
        except PodStreamUnavailable as reason:
            return web.Response(text=str(reason), status=reason.code)
        with suppress(ConnectionError):  # the client is gone
            await socket.prepare(raw)
            await serve(socket, socket.ws_protocol or "")
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

    async def begin() -> Serve:
        streams = await connect()

        async def serve(socket: web.WebSocketResponse, protocol: str) -> None:
            await _Command(socket, protocol, streams, options).run()

        return serve

    return StreamUpgrade((V5, V4), check, begin)


class _Command:
    """One client of a command."""

    def __init__(
        self, socket: web.WebSocketResponse, protocol: str, streams: CommandStreams, options: StreamOptions
    ) -> None:
        self._socket, self._protocol, self._streams, self._options = socket, protocol, streams, options

    async def run(self) -> None:
        first = _STDOUT if self._options.stdout else _STDERR if self._options.stderr else _ERROR
        try:
            await self._socket.send_bytes(bytes((first,)))  # the command runs
            async with _tasks() as start:
                outputs = [start(self._send(_STDOUT, self._streams.read_output))] if self._options.stdout else []
                if self._options.stderr:
                    outputs.append(start(self._send(_STDERR, self._streams.read_errors)))
                end = start(self._finish(outputs))
                await asyncio.wait((start(self._receive()), end), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.close()

    async def _send(self, channel: int, read: Callable[[], Awaitable[bytes]]) -> None:
        prefix = bytes((channel,))
        while data := await read():
            for place in range(0, len(data), _CHUNK):
                await self._socket.send_bytes(prefix + data[place : place + _CHUNK])

    async def _finish(self, outputs: Sequence[asyncio.Task[None]]) -> None:
        """Report the end, after all output."""
        result = await self._streams.result()
        if outputs:
            await asyncio.wait(outputs)
        status = json.dumps(result.status(self._protocol), separators=(",", ":"))
        await self._socket.send_bytes(bytes((_ERROR,)) + status.encode())

    async def _receive(self) -> None:
        async for data in _messages(self._socket):
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


async def _messages(socket: web.WebSocketResponse) -> AsyncIterator[bytes]:
    """Yield messages that are not empty, until the client closes."""
    async for message in socket:
        data = message.data.encode() if message.type is WSMsgType.TEXT else message.data
        if message.type in {WSMsgType.TEXT, WSMsgType.BINARY} and data:
            yield data


@asynccontextmanager
async def _tasks() -> AsyncIterator[Callable[[Any], asyncio.Task[None]]]:
    """Give a function that starts tasks; they end with the block."""
    tasks: set[asyncio.Task[None]] = set()

    def start(work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        tasks.add(task)
        return task

    try:
        yield start
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def forward_ports(pods: PodStreams, pod: Object, query: Query) -> StreamUpgrade:
    """Return the upgrade that connects a client with ports of a pod.

    Raises:
        StatusError: 400, a port is invalid.
    """
    ports = [_port(text) for value in query.values.get("ports", ()) for text in value.split(",")]
    if len(ports) > _PORTS_MAX:
        raise bad_request(f"{len(ports)} ports are requested; one connection forwards at most {_PORTS_MAX}")

    def check() -> None:
        pods.find(pod)

    async def serve(socket: web.WebSocketResponse, protocol: str) -> None:
        if protocol == TUNNEL:
            await _Tunnel(socket, pods, pod).run()
        else:
            await _Channels(socket, pods, pod, ports).run()

    async def begin() -> Serve:
        return serve

    return StreamUpgrade((TUNNEL, V4) if not ports else (V4, TUNNEL), check, begin)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS and int(text) in _PORTS


def _port(text: str) -> int:
    if not _is_port(text):
        raise bad_request(f"port {text!r} is not a number between 1 and 65535")
    return int(text)


async def _dialed(pods: PodStreams, pod: Object, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | str:
    """Return a connection, or why there is none."""
    try:
        return await pods.dial(pod, port)
    except (OSError, PodStreamUnavailable) as error:
        cause = f"connect: {os.strerror(error.errno).lower()}" if isinstance(error, OSError) and error.errno else error
        failed = f"failed to connect to localhost:{port}: {cause}"
        return f"error forwarding port {port} to pod {pod['metadata']['uid']}, uid : {failed}"


class _Channels:
    """Forwarded ports as two channels each: data, and errors."""

    def __init__(self, socket: web.WebSocketResponse, pods: PodStreams, pod: Object, ports: Sequence[int]) -> None:
        self._socket, self._pods, self._pod, self._ports = socket, pods, pod, ports

    async def run(self) -> None:
        writers: dict[int, asyncio.StreamWriter] = {}
        async with _tasks() as start:
            for index, port in enumerate(self._ports):
                for channel in (2 * index, 2 * index + 1):  # a client learns from it which port a channel has
                    await self._socket.send_bytes(bytes((channel,)) + struct.pack("<H", port))
            copies = []
            for index, port in enumerate(self._ports):
                found = await _dialed(self._pods, self._pod, port)
                if isinstance(found, str):
                    await self._socket.send_bytes(bytes((2 * index + 1,)) + found.encode())
                    continue
                reader, writers[2 * index] = found
                copies.append(start(self._send(2 * index, reader)))
            try:
                if copies:
                    ended = start(asyncio.wait(copies))
                    await asyncio.wait((ended, start(self._receive(writers))), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for writer in writers.values():
                    writer.close()

    async def _receive(self, writers: Mapping[int, asyncio.StreamWriter]) -> None:
        async for data in _messages(self._socket):
            if (writer := writers.get(data[0])) is not None:
                with suppress(ConnectionError):
                    writer.write(data[1:])
                    await writer.drain()

    async def _send(self, channel: int, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                await self._socket.send_bytes(bytes((channel,)) + data)


class _Forwarded(Struct):
    """One connection of a tunnel: the stream for its errors, and the one for its data."""

    port: int
    error: int = 0
    data: int = 0


class _Tunnel:
    """Forwarded ports through SPDY: each connection has two streams with the same ``requestID``."""

    def __init__(self, socket: web.WebSocketResponse, pods: PodStreams, pod: Object) -> None:
        self._socket, self._pods, self._pod = socket, pods, pod
        self._session = SpdySession()
        self._forwarded: dict[str, _Forwarded] = {}  # by ID of the request
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._early: dict[int, list[StreamData]] = {}  # data that came before the connection
        self._copies: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with _tasks() as start:
            try:
                async for message in _messages(self._socket):
                    for event in self._session.receive(message):
                        await self._handle(event, start)
            except SpdyError:
                return
            finally:
                for writer in self._writers.values():
                    writer.close()

    async def _handle(self, event: SpdyEvent, start: Callable[[Any], asyncio.Task[None]]) -> None:
        match event:
            case PingReceived():
                await self._socket.send_bytes(event.frame)
            case StreamOpened():
                await self._open(event, start)
            case StreamData() if event.stream in self._early:
                self._early[event.stream].append(event)
            case StreamData():
                await self._write(event)
            case StreamReset():
                self._early.pop(event.stream, None)
                if copy := self._copies.pop(event.stream, None):
                    copy.cancel()

    async def _open(self, event: StreamOpened, start: Callable[[Any], asyncio.Task[None]]) -> None:
        headers = event.headers
        port, kind, request = headers.get("port", ""), headers.get("streamtype", ""), headers.get("requestid", "")
        if kind not in {"data", "error"} or not _is_port(port):
            await self._socket.send_bytes(self._session.reset(event.stream))
            return
        await self._socket.send_bytes(self._session.reply(event.stream))
        pair = self._forwarded.setdefault(request, _Forwarded(int(port)))
        if kind == "error":
            pair.error = event.stream
        else:
            pair.data = event.stream
            self._early[event.stream] = []
        if pair.error and pair.data:
            del self._forwarded[request]
            self._copies[pair.data] = start(self._forward(pair))

    async def _forward(self, pair: _Forwarded) -> None:
        """Connect, and copy what the pod sends; then both streams end."""
        found = await _dialed(self._pods, self._pod, pair.port)
        if isinstance(found, str):
            self._early.pop(pair.data, None)
            await self._socket.send_bytes(self._session.data(pair.error, found.encode(), finished=True))
            await self._socket.send_bytes(self._session.data(pair.data, b"", finished=True))
            return
        reader, writer = found
        self._writers[pair.data] = writer
        try:
            early = self._early[pair.data]
            while early:
                await self._write(early.pop(0))
            del self._early[pair.data]
            with suppress(ConnectionError):
                while data_read := await reader.read(_CHUNK):
                    await self._socket.send_bytes(self._session.data(pair.data, data_read))
            await self._socket.send_bytes(self._session.data(pair.error, b"", finished=True))
            await self._socket.send_bytes(self._session.data(pair.data, b"", finished=True))
        finally:
            del self._writers[pair.data]
            self._copies.pop(pair.data, None)
            writer.close()

    async def _write(self, event: StreamData) -> None:
        writer = self._writers.get(event.stream)
        if writer is None:  # the error stream, or one whose pod has closed it
            return
        with suppress(ConnectionError, RuntimeError):
            writer.write(event.data)
            if event.finished:
                writer.write_eof()
            await writer.drain()
