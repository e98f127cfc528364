"""An HTTP/1.1 answer, read as its bytes come (RFC 9112); of its headers only what decides something here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_HEAD_BYTES: Final = 256 * 1024
_CHUNK_LINE_BYTES: Final = 4096


class BadReply(ConnectionError):
    """What came is no HTTP/1.1 answer; the connection is of no use any more."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer.

    Attributes:
        status: the status code, never an interim one.
        warnings: the ``Warning`` headers.
        body: decoded from chunks where it came in some.
        reusable: whether the connection can be used for another request.
    """

    status: int
    warnings: tuple[str, ...]
    body: bytes
    reusable: bool


@dataclass(slots=True)
class _Head:
    status: int
    warnings: list[str]
    length: int | None = None  # None: until the connection ends
    chunked: bool = False
    reusable: bool = True


class ReplyReader:
    """Reads the answer to one request that is no HEAD."""

    __slots__ = ("_body", "_data", "_head")

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: _Head | None = None
        self._body = bytearray()  # of chunks

    def feed(self, data: bytes) -> Reply | None:
        """The answer, once all of it has come.

        Raises:
            BadReply: it is no HTTP/1.1 answer.
        """
        self._data += data
        if self._head is None:
            self._head = self._read_head()
        head = self._head
        if head is None:
            return None
        if head.chunked:
            return self._reply(head, bytes(self._body)) if self._read_chunks() else None
        if head.length is None or len(self._data) < head.length:
            return None
        body = bytes(self._data[: head.length])
        del self._data[: head.length]
        return self._reply(head, body)

    def end(self) -> Reply | None:
        """The answer that the end of the connection completes; None where something is missing."""
        head = self._head
        if head is None or head.chunked or head.length is not None:
            return None
        return Reply(head.status, tuple(head.warnings), bytes(self._data), reusable=False)

    def _reply(self, head: _Head, body: bytes) -> Reply:
        # what comes after an answer nobody has asked for
        return Reply(head.status, tuple(head.warnings), body, head.reusable and not self._data)

    def _read_head(self) -> _Head | None:
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            first, *fields = self._data[:end].decode("latin-1").split("\r\n")
            del self._data[: end + 4]
            version, _, rest = first.partition(" ")
            if version not in {"HTTP/1.1", "HTTP/1.0"} or not (rest[:3].isascii() and rest[:3].isdigit()):
                raise BadReply(f"no HTTP/1.1 answer, it begins with {first[:80]!r}")
            status = int(rest[:3])
            if status >= 200:
                return _head(status, fields, persistent=version == "HTTP/1.1")
        if len(self._data) > _HEAD_BYTES:
            raise BadReply(f"no HTTP/1.1 answer, its headers have more than {_HEAD_BYTES} bytes")
        return None

    def _read_chunks(self) -> bool:
        """Whether all have come."""
        while (line := self._data.find(b"\r\n")) >= 0:
            size = _chunk_size(self._data[:line])
            if size == 0:
                end = self._data.find(b"\r\n\r\n", line)  # after trailers, which nobody needs
                if end >= 0:
                    del self._data[: end + 4]
                return end >= 0
            end = line + 2 + size
            if len(self._data) < end + 2:
                return False
            if self._data[end : end + 2] != b"\r\n":
                raise BadReply("no HTTP/1.1 answer, a chunk is longer than it says")
            self._body += self._data[line + 2 : end]
            del self._data[: end + 2]
        if len(self._data) > _CHUNK_LINE_BYTES:
            raise BadReply("no HTTP/1.1 answer, a chunk does not say how long it is")
        return False


def _head(status: int, fields: list[str], *, persistent: bool) -> _Head:
    head = _Head(status, [], reusable=persistent)
    lengths = set()
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or name != name.strip():
            raise BadReply(f"no HTTP/1.1 answer, one of its headers is {field[:80]!r}")
        value = value.strip(" \t")
        match name.lower():
            case "warning":
                head.warnings.append(value)
            case "content-length":
                lengths.add(value)
            case "transfer-encoding":
                if value.lower() != "chunked" or head.chunked:
                    raise BadReply(f"answer with Transfer-Encoding {value[:80]!r}, which was not asked for")
                head.chunked = True
            case "connection":
                head.reusable = head.reusable and "close" not in value.lower()
            case _:
                pass
    if status in {204, 304}:
        head.length, head.chunked = 0, False
    elif head.chunked:
        head.reusable = head.reusable and not lengths  # whoever sent both is not to be trusted with another request
    elif lengths:
        head.length = _length(lengths)
    return head


def _length(lengths: set[str]) -> int:
    value = min(lengths)
    if len(lengths) > 1 or not (value.isascii() and value.isdigit()):
        raise BadReply(f"answer with Content-Length {', '.join(sorted(lengths))[:80]}")
    return int(value)


def _chunk_size(line: bytearray) -> int:
    digits = line.partition(b";")[0].rstrip()
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise BadReply(f"no HTTP/1.1 answer, a chunk's length is {bytes(digits[:80])!r}")
    return int(digits, 16)
