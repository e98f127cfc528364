"""SPDY as kubectl sends it through a WebSocket."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.apiserver import port_forward
from dra_kit.apiserver.port_forward import (
    PingReceived,
    SpdyError,
    SpdyEvent,
    SpdySession,
    StreamData,
    StreamOpened,
    StreamReset,
)


class SpdyClient:
    """Encodes what a client sends, and decodes the headers of replies."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=port_forward._DICTIONARY)
        self.inflate = zlib.decompressobj(zdict=port_forward._DICTIONARY)

    def open(self, stream: int, headers: dict[str, str]) -> bytes:
        block = struct.pack(">I", len(headers))
        for text in (text for header in headers.items() for text in header):
            block += struct.pack(">I", len(text.encode())) + text.encode()
        packed = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        body = struct.pack(">IIH", stream, 0, 0) + packed
        return struct.pack(">HHI", 0x8003, 1, len(body)) + body


def control(kind: int, body: bytes) -> bytes:
    return struct.pack(">HHI", 0x8003, kind, len(body)) + body


HEADERS = st.dictionaries(st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True), st.text(max_size=40), max_size=4)
ODD = st.integers(0, 1000).map(lambda number: 2 * number + 1)
EVENTS = st.one_of(
    st.builds(StreamOpened, ODD, HEADERS, st.just(False)),
    st.builds(StreamData, ODD, st.binary(max_size=300), st.booleans()),
    st.builds(StreamReset, ODD),
    st.integers(0, 2**32 - 1).map(lambda number: PingReceived(control(6, struct.pack(">I", number)))),
)


def encoded(client: SpdyClient, event: SpdyEvent) -> bytes:
    match event:
        case StreamOpened():
            return client.open(event.stream, dict(event.headers))
        case StreamData():
            return SpdySession.data(event.stream, event.data, finished=event.finished)
        case StreamReset():
            return SpdySession.reset(event.stream)
    return event.frame


def test_the_dictionary_is_that_of_the_protocol() -> None:
    assert (len(port_forward._DICTIONARY), zlib.adler32(port_forward._DICTIONARY)) == (1423, 0xE3C6A7C2)


@settings(max_examples=10)  # strategies of headers are slow
@given(st.lists(EVENTS, max_size=4), st.integers(1, 50))
def test_events_do_not_depend_on_how_they_arrive(events: list[SpdyEvent], size: int) -> None:
    client, session = SpdyClient(), SpdySession()
    data = b"".join(encoded(client, event) for event in events)

    received = [event for i in range(0, len(data), size) for event in session.receive(data[i : i + size])]

    assert received == events


def test_replies_have_no_headers() -> None:
    client, session = SpdyClient(), SpdySession()

    blocks = [session.reply(stream)[12:] for stream in (1, 3)]

    assert [client.inflate.decompress(block) for block in blocks] == [b"\0\0\0\0"] * 2


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">HHI", 0x8002, 1, 0),
        control(1, b"\0\0\0\1" + b"x" * 20),
        control(3, b"\0"),
    ],
)
def test_other_protocols_are_rejected(data: bytes) -> None:
    with pytest.raises(SpdyError):
        list(SpdySession().receive(data + bytes(100)))


def test_headers_are_limited() -> None:
    client = SpdyClient()

    with pytest.raises(SpdyError, match="headers are too large"):
        list(SpdySession().receive(client.open(1, {"a": "x" * 10_000_000})))
