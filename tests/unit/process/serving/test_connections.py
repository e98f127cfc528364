"""Connections of a server: who makes room for whom, and none is lost when the server stops."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dra_kit.process.connections import ConnectionLimiter, ConnectionLimits, WaitingConnections

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def ok(_: web.BaseRequest) -> web.Response:
    return web.Response(text="ok")


@asynccontextmanager
async def serving(limits: ConnectionLimits, answer: object = ok) -> AsyncIterator[int]:
    server = web.Server(answer, handler_cancellation=True)  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with ConnectionLimiter(server, listening, None, limits).serving():
            yield listening.getsockname()[1]
        await server.shutdown(0.1)


@asynccontextmanager
async def connected(
    port: int, sent: bytes = b"", source: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        writer.write(sent)
        yield reader, writer
    finally:
        writer.transport.abort()


async def status(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        line = await reader.readline()
        if line:
            await reader.readuntil(b"ok")
        return line


async def ask(port: int, source: str = "127.0.0.1") -> bytes:
    async with connected(port, GET, source) as (reader, _):
        return await status(reader)


async def test_clients_that_reconnect_from_many_addresses_do_not_cut_a_request_off() -> None:
    stop = asyncio.Event()

    async def reconnect(port: int, source: str) -> None:
        while not stop.is_set():
            with suppress(OSError):
                async with connected(port, b"GET /hea", source) as (reader, _):
                    await reader.read()

    async with serving(ConnectionLimits(connections=16)) as port:
        attackers = [asyncio.create_task(reconnect(port, f"127.0.0.{number}")) for number in range(2, 50)]
        assert {await ask(port) for _ in range(30)} == {b"HTTP/1.1 200 OK\r\n"}
        stop.set()
        for task in attackers:
            task.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)


async def test_served_connections_leave_half_of_the_places_to_new_ones() -> None:
    async with serving(ConnectionLimits(connections=4)) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for reader, writer in held:
            writer.write(GET)
            assert b"200" in await status(reader)
        async with connected(port) as (first, writer), connected(port) as (_, _):
            writer.write(GET)
            assert b"200" in await status(first)
        for _, writer in held:
            writer.transport.abort()


async def test_new_connections_do_not_evict_served_ones() -> None:
    limits = ConnectionLimits(connections=4, grace_seconds=0)
    async with serving(limits) as port, connected(port, GET) as (reader, writer):
        assert b"200" in await status(reader)
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        for _, each in held:
            each.write(b"GET /hea")
        assert await held[0][0].read() == b""
        writer.write(GET)
        assert b"200" in await status(reader)
        for _, each in held:
            each.transport.abort()


async def hold_until(release: asyncio.Event, entered: asyncio.Semaphore, request: web.BaseRequest) -> web.Response:
    if request.path == "/busy":
        entered.release()
        await release.wait()
    return web.Response(text="ok")


BUSY = GET.replace(b"/ ", b"/busy ")


async def test_connections_wait_while_small_requests_are_answered_and_known_addresses_are_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dra_kit.process.connections._FRESH_SECONDS", 3600.0)  # after that, the newest would be next
    release, entered, order = asyncio.Event(), asyncio.Semaphore(0), []
    came, waiting = WaitingConnections._came, asyncio.Semaphore(0)

    def note(connections: WaitingConnections, accepted: socket.socket) -> None:
        came(connections, accepted)
        waiting.release()

    async def answer(request: web.BaseRequest) -> web.Response:
        response = await hold_until(release, entered, request)
        order.append(request.path)
        return response

    async with serving(ConnectionLimits(connections=4), answer) as port, AsyncExitStack() as stack:
        assert b"200" in await ask(port)  # makes its address known
        for number in range(4):
            await stack.enter_async_context(connected(port, BUSY, f"127.0.0.{20 + number}"))
            async with asyncio.timeout(60):
                await entered.acquire()
        order.clear()
        monkeypatch.setattr(WaitingConnections, "_came", note)
        readers = []
        for path, source in ((b"/1 ", "127.0.0.12"), (b"/2 ", "127.0.0.13"), (b"/3 ", "127.0.0.1")):
            reader, _ = await stack.enter_async_context(connected(port, GET.replace(b"/ ", path), source))
            readers.append(reader)
            async with asyncio.timeout(60):
                await waiting.acquire()
        release.set()
        assert {await status(reader) for reader in readers} == {b"HTTP/1.1 200 OK\r\n"}
        assert order == ["/busy"] * 4 + ["/3", "/1", "/2"]


async def test_clients_that_ask_all_the_time_leave_half_of_the_places_to_others() -> None:
    release, entered = asyncio.Event(), asyncio.Semaphore(0)
    answer = partial(hold_until, release, entered)
    async with serving(ConnectionLimits(connections=4), answer) as port, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(port, GET, f"127.0.0.{10 + each}")) for each in range(4)]
        for reader, writer in clients:
            assert b"200" in await status(reader)
            writer.write(BUSY)
            async with asyncio.timeout(60):
                await entered.acquire()
        async with connected(port, BUSY) as (other, _):
            await asyncio.sleep(0.1)  # what is asserted does not depend on whether it is there by now
            release.set()
            for reader, _ in clients:
                assert b"200" in await status(reader)  # none is cut off
            assert b"200" in await status(other)


async def test_connection_is_not_evicted_right_after_it_gets_its_place() -> None:
    limits = ConnectionLimits(connections=1, grace_seconds=3600)
    async with serving(limits) as port, connected(port, GET[:5]) as (reader, writer):
        await asyncio.sleep(0.1)
        other = asyncio.create_task(ask(port, "127.0.0.2"))
        await asyncio.sleep(0.1)
        writer.write(GET[5:])
        assert b"200" in await status(reader)
        writer.transport.abort()
        assert b"200" in await other


async def test_failed_request_does_not_make_its_connection_a_served_one() -> None:
    async def refuse(_: web.BaseRequest) -> web.Response:
        return web.Response(status=401, text="ok")

    limits = ConnectionLimits(first_seconds=0.2, idle_seconds=3600)
    async with serving(limits, refuse) as port, connected(port, GET) as (reader, _):
        assert b"401" in await status(reader)
        async with asyncio.timeout(60):
            assert await reader.read() == b""


async def test_the_handler_of_a_connection_that_makes_room_is_cancelled() -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def hold(request: web.BaseRequest) -> web.Response:
        if not await request.read():
            return web.Response(text="ok")
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    large = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000
    async with serving(ConnectionLimits(connections=1), hold) as port, connected(port, large) as (reader, _):
        await entered.wait()
        assert b"200" in await ask(port)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        async with asyncio.timeout(60):
            await cancelled.wait()


@pytest.mark.parametrize("turns", range(4))
async def test_a_connection_that_comes_while_the_server_stops_is_closed(tmp_path: Path, turns: int) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
            listening.bind(str(tmp_path / "s.sock"))
            async with ConnectionLimiter(web.Server(ok), listening, None, ConnectionLimits(connections=4)).serving():
                await asyncio.sleep(0.01)
                client.connect(str(tmp_path / "s.sock"))
                for _ in range(turns):
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        gc.collect()
    assert [str(each.message) for each in found if each.category is ResourceWarning] == []


@pytest.mark.parametrize("sent", [b"", b"GET /hea", GET], ids=["nothing", "a part of a request", "a request"])
async def test_connection_that_waits_for_its_client_for_too_long_is_closed(sent: bytes) -> None:
    limits = ConnectionLimits(first_seconds=0.1, request_seconds=0.1, idle_seconds=0.2)
    async with serving(limits) as port, asyncio.timeout(60), connected(port, sent) as (reader, _):
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK" if sent == GET else b"")


@pytest.mark.processes
async def test_server_does_not_wake_up_while_requests_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the watches of a quiet cluster are; a process that only waits needs no processor."""
    release, entered = asyncio.Event(), asyncio.Semaphore(0)
    loop, scheduled = asyncio.get_running_loop(), list[float]()
    at = loop.call_at

    def call_at(when: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
        scheduled.append(when - loop.time())
        return at(when, *args, **options)

    limits = ConnectionLimits(first_seconds=0.1, request_seconds=0.1)
    async with (
        serving(limits, partial(hold_until, release, entered)) as port,
        connected(port, b"GET /busy HTTP/1.1\r\nHost: x\r\n\r\n") as (reader, _),
    ):
        await entered.acquire()
        await asyncio.sleep(1.1)  # until the checks have come for which the new connection was the cause
        monkeypatch.setattr(loop, "call_at", call_at)
        await asyncio.sleep(1.5)
        assert len(scheduled) == 1, scheduled  # the sleep itself
        release.set()
        assert b"200" in await status(reader)
