"""A relay between two connections, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from dra_kit.process.connections import Connection, relay

Ends = tuple[Connection, Connection]
"""The client's end of the one connection, and the server's end of the other."""


async def pair() -> Ends:
    one, other = socket.create_server(("127.0.0.1", 0)), socket.socket()
    with one:
        other.connect(one.getsockname())
        accepted, _ = one.accept()
    return await asyncio.open_connection(sock=other), await asyncio.open_connection(sock=accepted)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    client, near = await pair()
    far, server = await pair()

    async def pass_on() -> None:
        try:
            await relay(near, far)
        finally:
            near[1].close()
            far[1].close()

    task = asyncio.create_task(pass_on())
    yield client, server
    for _, writer in (client, server):
        writer.transport.abort()
    await asyncio.wait_for(task, 60)


async def test_the_end_of_one_side_is_passed_on_and_the_other_may_still_answer(ends: Ends) -> None:
    client, server = ends
    client[1].write(b"ab" * 100_000)
    client[1].write_eof()

    asked = await asyncio.wait_for(server[0].read(), 60)
    server[1].write(asked[::-1])
    server[1].write_eof()

    assert await asyncio.wait_for(client[0].read(), 60) == b"ba" * 100_000


@pytest.mark.parametrize("resets", [0, 1])
async def test_a_reset_of_one_side_ends_the_other(ends: Ends, resets: int) -> None:
    lost, other = ends[resets], ends[1 - resets]
    lost[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    lost[1].transport.abort()

    assert await asyncio.wait_for(other[0].read(), 60) == b""
