"""Frames and messages of the wire, however they are cut, and what a peer may not send."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubelet.nri import messages as pb
from dra_kit.kubelet.nri.proto.ttrpc_pb2 import Request, Response, Status
from dra_kit.kubelet.nri.ttrpc import (
    CALLS_MAX,
    FRAME_MAX,
    FRAME_SENT_MAX,
    INVALID_ARGUMENT,
    MESSAGE_MAX,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    UNKNOWN,
    CallError,
    ConnectionLost,
    FrameReader,
    MessageReader,
    Method,
    Mux,
    ProtocolError,
    TtrpcConnection,
    TtrpcMessage,
    frames,
    message,
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


@given(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=9000)), max_size=5), st.lists(st.integers(0)))
def test_frames_do_not_depend_on_how_bytes_arrive(sent: list[tuple[int, bytes]], places: list[int]) -> None:
    data = b"".join(frames(connection, content) for connection, content in sent)
    reader = FrameReader()

    found = [frame for part in cut(data, places) for frame in reader.feed(part)]

    for number in range(6):
        expected = b"".join(content for connection, content in sent if connection == number)
        assert b"".join(content for connection, content in found if connection == number) == expected


@given(st.integers(0, MESSAGE_MAX) | st.integers(FRAME_SENT_MAX - 20, FRAME_SENT_MAX + 20))
def test_go_can_read_each_frame(size: int) -> None:
    """Go asks for the buffer's bytes, or for the rest of a message; its queue holds 256 frames."""
    sent = [len(content) for _, content in FrameReader().feed(frames(1, message(1, 1, bytes(size))))]

    assert sent == ([10 + size] if 10 + size <= FRAME_SENT_MAX else [10, size])


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=300)), max_size=5),
    st.lists(st.integers(0)),
)
def test_messages_do_not_depend_on_how_bytes_arrive(sent: list[tuple[int, int, bytes]], places: list[int]) -> None:
    data = b"".join(message(*item) for item in sent)
    reader = MessageReader()

    found = [item for part in cut(data, places) for item in reader.feed(part)]

    assert found == [TtrpcMessage(*item) for item in sent]


@given(st.integers(FRAME_MAX + 1, 2**32 - 1), st.binary(max_size=20))
def test_frame_that_is_too_large_ends_the_stream(length: int, rest: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"{length} bytes, the limit is {FRAME_MAX}"):
        list(FrameReader().feed(struct.pack(">II", 1, length) + rest))


@given(st.lists(st.integers(0)))
def test_message_that_is_too_large_is_skipped(places: list[int]) -> None:
    large = struct.pack(">IIBB", MESSAGE_MAX + 1, 7, 1, 0) + bytes(MESSAGE_MAX + 1)
    reader = MessageReader()

    found = [item for part in cut(large + message(9, 1, b"x"), places) for item in reader.feed(part)]

    assert found == [TtrpcMessage(7, 1, None), TtrpcMessage(9, 1, b"x")]


class Raw:
    """The other end of a multiplexer, which writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._frames = FrameReader()
        self._messages = MessageReader()
        self._found: list[TtrpcMessage] = []

    def request(self, stream: int, method: str = "Echo", payload: bytes = b"", service: str = "s") -> None:
        call = Request(service=service, method=method, payload=payload).SerializeToString()
        self.writer.write(frames(1, message(stream, 1, call)))

    async def message(self) -> TtrpcMessage:
        while not self._found:
            data = await self._reader.read(1 << 16)
            assert data, "closed"
            for _, content in self._frames.feed(data):
                self._found += self._messages.feed(content)
        return self._found.pop(0)

    async def answer(self) -> tuple[int, int, bytes]:
        """Stream, code and payload."""
        found = await self.message()
        response = Response.FromString(found.data or b"")
        return found.stream, response.status.code, response.payload


async def echo(request: Message, _: float | None) -> Message:
    return request


async def fail(_: Message, __: float | None) -> Message:
    raise RuntimeError("no CPUs left")


async def fail_at_file(_: Message, __: float | None) -> Message:
    raise FileNotFoundError(2, "No such file", os.fsdecode(b"/dev/caf\xe9"))


async def hang(_: Message, __: float | None) -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def huge(_: Message, __: float | None) -> Message:
    return pb.ConfigureRequest(config="x" * (MESSAGE_MAX + 1))


METHODS = {
    name: Method(pb.ConfigureRequest, serve)
    for name, serve in {"Echo": echo, "Fail": fail, "FailAtFile": fail_at_file, "Hang": hang, "Huge": huge}.items()
}


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[TtrpcConnection, Raw, asyncio.Task[None]]]:
    ours, theirs = socket.socketpair()
    mux = Mux(*await asyncio.open_unix_connection(sock=ours))
    connection = mux.open(1, {"s": METHODS})
    raw = Raw(*await asyncio.open_unix_connection(sock=theirs))
    running = asyncio.create_task(mux.run())
    try:
        yield connection, raw, running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raw.writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("stream", "method", "service", "payload", "code"),
    [
        (1, "Echo", "s", b"", 0),
        (2, "Echo", "s", b"", INVALID_ARGUMENT),
        (0, "Echo", "s", b"", INVALID_ARGUMENT),
        (1, "Other", "s", b"", UNIMPLEMENTED),
        (1, "Echo", "other", b"", UNIMPLEMENTED),
        (1, "Echo", "s", b"\xff", INVALID_ARGUMENT),
        (1, "Fail", "s", b"", UNKNOWN),
        (1, "FailAtFile", "s", b"", UNKNOWN),
        (1, "Huge", "s", b"", RESOURCE_EXHAUSTED),
    ],
)
async def test_code_of_an_answer(stream: int, method: str, service: str, payload: bytes, code: int) -> None:
    async with pair() as (_, raw, __):
        raw.request(stream, method, payload, service)

        assert (await raw.answer())[:2] == (stream, code)


async def test_stream_that_was_used_is_refused() -> None:
    async with pair() as (_, raw, __):
        for stream in (3, 3, 1, 5):
            raw.request(stream)

        answers = sorted([(await raw.answer())[:2] for _ in range(4)])

        assert answers == [(1, INVALID_ARGUMENT), (3, 0), (3, INVALID_ARGUMENT), (5, 0)]


async def test_unreadable_request_leaves_the_connection_usable() -> None:
    async with pair() as (_, raw, __):
        raw.writer.write(frames(1, message(1, 1, b"\xff\xff")))
        raw.writer.write(frames(1, struct.pack(">IIBB", MESSAGE_MAX + 1, 3, 1, 0) + bytes(MESSAGE_MAX + 1)))
        raw.request(5)

        assert [(await raw.answer())[:2] for _ in range(3)] == [(1, INVALID_ARGUMENT), (3, RESOURCE_EXHAUSTED), (5, 0)]


async def test_largest_message_passes_both_ways() -> None:
    # the request of ttrpc around it takes a few bytes
    payload = pb.ConfigureRequest(config="x" * (MESSAGE_MAX - 100)).SerializeToString()
    async with pair() as (_, raw, __):
        raw.request(1, payload=payload)

        assert await raw.answer() == (1, 0, payload)


async def test_frames_of_unknown_connections_are_dropped() -> None:
    async with pair() as (_, raw, __):
        raw.writer.write(frames(7, b"anything"))
        raw.request(1)

        assert (await raw.answer())[:2] == (1, 0)


async def test_messages_of_other_types_are_ignored() -> None:
    async with pair() as (_, raw, __):
        raw.writer.write(frames(1, message(1, 3, b"data") + message(1, 9, b"")))
        raw.request(1)

        assert (await raw.answer())[:2] == (1, 0)


async def test_calls_beyond_the_limit_are_refused() -> None:
    async with pair() as (_, raw, __):
        for number in range(CALLS_MAX + 1):
            raw.request(2 * number + 1, "Hang")

        assert (await raw.answer())[:2] == (2 * CALLS_MAX + 1, RESOURCE_EXHAUSTED)


async def test_hostile_length_closes_the_connection() -> None:
    async with pair() as (connection, raw, running):
        call = asyncio.create_task(connection.call("s", "M", pb.Empty(), pb.Empty))
        await raw.message()
        raw.writer.write(struct.pack(">II", 1, 2**32 - 1))

        with pytest.raises(ProtocolError):
            await running
        with pytest.raises(ConnectionLost, match="too large"):
            await call


async def test_cancelled_connection_answers_open_calls_with_an_error() -> None:
    async with pair() as (_, raw, running):
        raw.request(1, "Hang")
        raw.request(3, "Echo")
        await raw.answer()
        running.cancel()

        assert (await raw.answer())[:2] == (1, UNAVAILABLE)


async def test_call_gets_answer_error_or_timeout() -> None:
    async with pair() as (connection, raw, _):
        calls = [asyncio.create_task(connection.call("s", "M", pb.Empty(), pb.ConfigureRequest)) for _ in range(3)]
        streams = [(await raw.message()).stream for _ in calls]
        raw.writer.write(frames(1, message(5, 2, b"\xff")))
        raw.writer.write(frames(1, message(3, 2, Response(status=Status(code=5, message="gone")).SerializeToString())))
        config = pb.ConfigureRequest(config="c")
        raw.writer.write(frames(1, message(99, 2, b"")))
        raw.writer.write(frames(1, message(1, 2, Response(payload=config.SerializeToString()).SerializeToString())))

        assert streams == [1, 3, 5]
        assert await calls[0] == config
        with pytest.raises(CallError, match="gone"):
            await calls[1]
        with pytest.raises(CallError, match="unreadable"):
            await calls[2]
        with pytest.raises(TimeoutError):
            await connection.call("s", "M", pb.Empty(), pb.Empty, timeout=0.01)


async def test_failed_socket_ends_the_connection() -> None:
    async with pair() as (connection, raw, running):
        call = asyncio.create_task(connection.call("s", "M", pb.Empty(), pb.Empty))
        await raw.message()
        connection._mux._reader.set_exception(OSError(errno.ENOTCONN, "Transport endpoint is not connected"))
        await running

        with pytest.raises(ConnectionLost, match="not connected"):
            await call


async def test_call_on_a_closed_connection_fails() -> None:
    async with pair() as (connection, raw, running):
        raw.writer.close()
        await running

        with pytest.raises(ConnectionLost):
            await connection.call("s", "M", pb.Empty(), pb.Empty)
