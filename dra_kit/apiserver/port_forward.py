"""SPDY/3.1 as a server speaks it, as far as ``kubectl port-forward`` needs it; without I/O.

kubectl 1.31 and newer sends SPDY through a WebSocket. Flow control is not used: neither kubectl nor the kubelet sends
or heeds ``WINDOW_UPDATE``.

Sources: draft-mbelshe-httpbis-spdy-00 for the frames; Kubernetes 1.37 ``staging/src/k8s.io/streaming`` for their use.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

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
