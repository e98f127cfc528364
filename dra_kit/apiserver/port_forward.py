"""``pods/portforward``: ports as channels of a WebSocket, or as streams of SPDY/3.1 that is sent through one.

kubectl 1.31 and newer sends SPDY through a WebSocket. Flow control is not used: neither kubectl nor the kubelet sends
or heeds ``WINDOW_UPDATE``. The frames are read and written without I/O, by :class:`SpdySession`.

Sources: draft-mbelshe-httpbis-spdy-00 for the frames; Kubernetes 1.37 ``staging/src/k8s.io/streaming`` for their use.
"""

from __future__ import annotations

import asyncio
import os
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias

from aiohttp import web
from msgspec import Struct

from dra_kit.apiserver.pod_streams import (
    CHUNK,
    V4,
    PodStreams,
    PodStreamUnavailable,
    Serve,
    StreamUpgrade,
    messages,
    running_tasks,
)
from dra_kit.apiserver.requests import Query
from dra_kit.apiserver.status_errors import bad_request
from dra_kit.kubernetes.values.json import Object

TUNNEL: Final = "SPDY/3.1+portforward.k8s.io"
_PORTS: Final = range(1, 1 << 16)
_DIGITS: Final = 5  # of the largest port
_PORTS_MAX: Final = 128  # each has two channels, whose numbers are one byte
_PAIRS_MAX: Final = 128  # requests that have one of their two streams
_EARLY_MAX: Final = 1 << 16  # bytes of a stream that are kept until there is a connection
_CONTROL: Final = 0x8000
_VERSION: Final = 3
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_FIN: Final = 0x01
_HEADER: Final = struct.Struct(">HHI")
_LARGEST_FRAME: Final = 1 << 24
_HEADERS_MAX: Final = 1 << 16
_CANCEL: Final = 5


class SpdyError(Exception):
    """The other side does not speak SPDY/3.1."""


class StreamOpened(Struct, frozen=True):
    """The client opened a stream; names of headers are in lower case."""

    stream: int
    headers: Mapping[str, str]
    finished: bool


class StreamData(Struct, frozen=True):
    """Data of a stream; ``finished``: the client sends no more."""

    stream: int
    data: bytes
    finished: bool


class StreamReset(Struct, frozen=True):
    """The client gave a stream up."""

    stream: int


class PingReceived(Struct, frozen=True):
    """The client waits for the same frame."""

    frame: bytes


SpdyEvent: TypeAlias = StreamOpened | StreamData | StreamReset | PingReceived


class SpdySession:
    """One connection: reads what the client sends, and encodes what the server sends."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._inflate = zlib.decompressobj(zdict=_DICTIONARY)
        self._deflate = zlib.compressobj(zdict=_DICTIONARY)

    def receive(self, data: bytes) -> Iterator[SpdyEvent]:
        """Yield what the client did.

        Raises:
            SpdyError: it does not speak SPDY/3.1.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            first, second, rest = _HEADER.unpack_from(self._buffer)
            flags, length = rest >> 24, rest & (_LARGEST_FRAME - 1)
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[:end])
            del self._buffer[:end]
            body = frame[_HEADER.size :]
            if not first & _CONTROL:
                yield StreamData((first << 16) | second, body, bool(flags & _FIN))
                continue
            if first != _CONTROL | _VERSION:
                raise SpdyError(f"frame of version {first & ~_CONTROL}")
            try:
                yield from self._control(second, flags, frame, body)
            except (struct.error, zlib.error, UnicodeDecodeError) as error:
                raise SpdyError(str(error)) from error

    def _control(self, kind: int, flags: int, frame: bytes, body: bytes) -> Iterator[SpdyEvent]:
        match kind:
            case 1:
                (stream,) = struct.unpack_from(">I", body)
                yield StreamOpened(stream, self._headers(body[10:]), bool(flags & _FIN))
            case 3:
                (stream,) = struct.unpack_from(">I", body)
                yield StreamReset(stream)
            case 6:
                yield PingReceived(frame)
            case _:
                pass  # settings, windows, the announcement of the end: nothing to do

    def _headers(self, block: bytes) -> dict[str, str]:
        data = self._inflate.decompress(block, _HEADERS_MAX)
        if self._inflate.unconsumed_tail:
            raise SpdyError("headers are too large")
        (count,) = struct.unpack_from(">I", data)
        texts, place = [], 4
        for _ in range(min(2 * count, _HEADERS_MAX)):
            (length,) = struct.unpack_from(">I", data, place)
            texts.append(data[place + 4 : place + 4 + length].decode())
            place += 4 + length
        return {name.lower(): value for name, value in zip(texts[::2], texts[1::2], strict=True)}

    def reply(self, stream: int) -> bytes:
        """Return the frame that accepts a stream."""
        block = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control_frame(_SYN_REPLY, struct.pack(">I", stream) + block)

    @staticmethod
    def data(stream: int, data: bytes, *, finished: bool = False) -> bytes:
        """Return a frame of data; ``finished``: the server sends no more on this stream."""
        return struct.pack(">II", stream, (_FIN if finished else 0) << 24 | len(data)) + data

    @staticmethod
    def reset(stream: int, status: int = _CANCEL) -> bytes:
        """Return the frame that ends a stream in both directions."""
        return _control_frame(_RST_STREAM, struct.pack(">II", stream, status))


def _control_frame(kind: int, body: bytes) -> bytes:
    return _HEADER.pack(_CONTROL | _VERSION, kind, len(body)) + body


def _dictionary() -> bytes:
    """Return the text that SPDY/3 assumes before the first header: frequent names with their lengths, and values."""
    names = """
        options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age
        allow authorization cache-control connection content-base content-encoding content-language content-length
        content-location content-md5 content-range content-type date etag expect expires from host if-match
        if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma
        proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade
        user-agent vary via warning www-authenticate method get status
    """.split()  # noqa: SIM905 - as a list, they are a page
    counted = [*names, "200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin"]
    codes = (100, 101, 201, 202, 205, 206, 300, *range(302, 308), 402, *range(405, 418), 502, 504, 505)
    values = (
        "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
        "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
        "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
        "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
        "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
    )
    found = b"".join(struct.pack(">I", len(name)) + name.encode() for name in counted)
    return found + "".join(map(str, codes)).encode() + values.encode()


_DICTIONARY: Final = _dictionary()


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

    @asynccontextmanager
    async def begin() -> AsyncIterator[Serve]:
        yield serve

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
        async with running_tasks() as start:
            for index, port in enumerate(self._ports):
                for channel in (2 * index, 2 * index + 1):  # a client learns from it which port a channel has
                    await self._socket.send_bytes(bytes((channel,)) + struct.pack("<H", port))
            copies = []
            try:
                for index, port in enumerate(self._ports):
                    found = await _dialed(self._pods, self._pod, port)
                    if isinstance(found, str):
                        await self._socket.send_bytes(bytes((2 * index + 1,)) + found.encode())
                        continue
                    reader, writers[2 * index] = found
                    copies.append(start(self._send(2 * index, reader)))
                if copies:
                    ended = start(asyncio.wait(copies))
                    await asyncio.wait((ended, start(self._receive(writers))), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for writer in writers.values():
                    writer.close()

    async def _receive(self, writers: Mapping[int, asyncio.StreamWriter]) -> None:
        async for data in messages(self._socket):
            if (writer := writers.get(data[0])) is not None:
                with suppress(ConnectionError):
                    writer.write(data[1:])
                    await writer.drain()

    async def _send(self, channel: int, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                await self._socket.send_bytes(bytes((channel,)) + data)


class _Forwarded(Struct):
    """One connection of a tunnel: the stream for its errors, and the one for its data."""

    port: int
    error: int = 0
    data: int = 0


class _Early:
    """What a client sends before there is a connection; ``over`` is set once that is decided."""

    def __init__(self) -> None:
        self.received: list[StreamData] = []
        self.size = 0
        self.over = asyncio.Event()

    def add(self, event: StreamData) -> None:
        self.received.append(event)
        self.size += len(event.data) + _HEADER.size


class _Tunnel:
    """Forwarded ports through SPDY: each connection has two streams with the same ``requestID``."""

    def __init__(self, socket: web.WebSocketResponse, pods: PodStreams, pod: Object) -> None:
        self._socket, self._pods, self._pod = socket, pods, pod
        self._session = SpdySession()
        self._forwarded: dict[str, _Forwarded] = {}  # by ID of the request
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._early: dict[int, _Early] = {}  # by stream
        self._copies: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with running_tasks() as start:
            try:
                async for message in messages(self._socket):
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
                await self._keep(event)
            case StreamData():
                await self._write(event)
            case StreamReset():
                self._forget(event.stream)
                if copy := self._copies.pop(event.stream, None):
                    copy.cancel()

    async def _open(self, event: StreamOpened, start: Callable[[Any], asyncio.Task[None]]) -> None:
        headers = event.headers
        port, kind, request = headers.get("port", ""), headers.get("streamtype", ""), headers.get("requestid", "")
        if kind not in {"data", "error"} or not _is_port(port):
            await self._socket.send_bytes(self._session.reset(event.stream))
            return
        pair = self._forwarded.get(request) or _Forwarded(int(port))
        is_new = request not in self._forwarded
        if (is_new and len(self._forwarded) >= _PAIRS_MAX) or (pair.error if kind == "error" else pair.data):
            await self._socket.send_bytes(self._session.reset(event.stream))
            return
        await self._socket.send_bytes(self._session.reply(event.stream))
        self._forwarded[request] = pair
        if kind == "error":
            pair.error = event.stream
        else:
            pair.data = event.stream
            self._early[event.stream] = _Early()
        if pair.error and pair.data:
            del self._forwarded[request]
            self._copies[pair.data] = start(self._forward(pair))

    async def _keep(self, event: StreamData) -> None:
        """Keep data for a connection; with much of it, the client waits, or loses the stream if it has only one."""
        early = self._early[event.stream]
        early.add(event)
        if early.size <= _EARLY_MAX:
            return
        if event.stream in self._copies:
            await early.over.wait()
        else:
            self._forget(event.stream)
            await self._socket.send_bytes(self._session.reset(event.stream))

    def _forget(self, stream: int) -> None:
        """Give up a stream that may still wait for its second one, or for the connection."""
        self._early.pop(stream, None)
        for request, pair in list(self._forwarded.items()):
            if stream in (pair.error, pair.data):
                del self._forwarded[request]
                self._early.pop(pair.data, None)

    async def _forward(self, pair: _Forwarded) -> None:
        """Connect, and copy what the pod sends; then both streams end."""
        early = self._early[pair.data]
        try:
            found = await _dialed(self._pods, self._pod, pair.port)
            if isinstance(found, str):
                await self._socket.send_bytes(self._session.data(pair.error, found.encode(), finished=True))
                await self._socket.send_bytes(self._session.data(pair.data, b"", finished=True))
                return
            reader, self._writers[pair.data] = found
            for event in early.received:
                self._pass(event)
            self._early.pop(pair.data, None)
            early.over.set()
            with suppress(ConnectionError):
                while data_read := await reader.read(CHUNK):
                    await self._socket.send_bytes(self._session.data(pair.data, data_read))
            await self._socket.send_bytes(self._session.data(pair.error, b"", finished=True))
            await self._socket.send_bytes(self._session.data(pair.data, b"", finished=True))
        finally:
            self._early.pop(pair.data, None)
            early.over.set()
            self._copies.pop(pair.data, None)
            if writer := self._writers.pop(pair.data, None):
                writer.close()

    async def _write(self, event: StreamData) -> None:
        self._pass(event)
        if writer := self._writers.get(event.stream):
            with suppress(ConnectionError):
                await writer.drain()

    def _pass(self, event: StreamData) -> None:
        """Write data to the connection of a stream, if there is one: the pod may have closed it."""
        if writer := self._writers.get(event.stream):
            with suppress(ConnectionError, RuntimeError):
                writer.write(event.data)
                if event.finished:
                    writer.write_eof()
