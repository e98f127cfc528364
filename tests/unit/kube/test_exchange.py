from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from dra_kit.errors import Unavailable
from dra_kit.kube.client import Client
from dra_kit.kube.connection import Connection
from dra_kit.kube.credentials import Credentials
from dra_kit.kube.resources import NODES

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


CUT = b"<cut>"


class Server:
    """Sends what a test writes down, one text for each request; after ``CUT`` it hangs up."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.asked = asyncio.Event()
        self.connections = 0
        self.port = 0
        self.requests: list[bytes] = []
        self.tasks: list[asyncio.Task[None]] = []

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                self.asked.set()
                answer = self.answers.pop(0)
                writer.write(answer.removesuffix(CUT))
                if answer.endswith(CUT):
                    break
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def client(self, **given: float) -> Client:
        return Client(Credentials(Connection(f"http://127.0.0.1:{self.port}")), user_agent="dra-kit/test", **given)


@asynccontextmanager
async def served(*answers: bytes) -> AsyncIterator[Server]:
    server = Server(*answers)
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield server
        await asyncio.gather(*server.tasks)


async def test_a_connection_is_used_again() -> None:
    async with served(ANSWER, ANSWER, ANSWER) as server, server.client() as client:
        for _ in range(3):
            assert await client.get(NODES, "node-1") == {}
    assert server.connections == 1


async def test_a_connection_that_may_hold_something_else_is_not_used_again() -> None:
    async with served(ANSWER + b"HTTP/1.1 200 OK\r\n", ANSWER) as server, server.client() as client:
        await client.get(NODES, "node-1")
        await client.get(NODES, "node-1")
    assert server.connections == 2


async def test_an_answer_amid_which_the_server_hangs_up_is_told_and_not_asked_for_again() -> None:
    async with served(ANSWER, ANSWER[:-1] + CUT) as server, server.client() as client:
        await client.get(NODES, "node-1")
        with pytest.raises(Unavailable, match="amid its answer"):
            await client.get(NODES, "node-1")
    assert len(server.requests) == 2


async def test_what_is_no_http_is_told() -> None:
    async with served(b"SSH-2.0-OpenSSH_9\r\n\r\n") as server, server.client() as client:
        with pytest.raises(Unavailable, match="it begins with 'SSH-2"):
            await client.get(NODES, "node-1")


async def test_a_request_that_is_cancelled_leaves_no_connection_behind() -> None:
    async with served(b"HTTP/1.1 200 OK\r\n", ANSWER) as server, server.client() as client:
        get = asyncio.ensure_future(client.get(NODES, "node-1"))
        await server.asked.wait()
        get.cancel()
        with pytest.raises(asyncio.CancelledError):
            await get
        assert await client.get(NODES, "node-1") == {}
    assert server.connections == 2


async def test_waiting_for_a_connection_counts_as_waiting_for_the_answer() -> None:
    async with served(*[b"HTTP/1.1 200 OK\r\n"] * 20) as server, server.client(timeout=0.2) as client:
        found = await asyncio.gather(*(client.get(NODES, "node-1") for _ in range(20)), return_exceptions=True)
    assert {type(error) for error in found} == {Unavailable}
    assert all("no answer in time" in str(error) for error in found)


async def test_a_header_of_two_lines_is_not_sent() -> None:
    async with served(ANSWER) as server:
        credentials = Credentials(Connection(f"http://127.0.0.1:{server.port}", "Bearer a\r\nX: y"))
        async with Client(credentials, user_agent="dra-kit/test") as client:
            with pytest.raises(Unavailable, match="more than one line"):
                await client.get(NODES, "node-1")
    assert server.requests == []
