"""Requests of concurrent calls: when they are sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dra_kit.client.resources import Resource
from dra_kit.client.transport import ClientResponse
from dra_kit.errors import TransientError, Unavailable
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.reader import ClaimReader, RequestBatcher


class Server:
    """Notes which requests reached it; answers them when told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = asyncio.Event()
        self._bursts = RequestBatcher()

    async def ask(self, name: str) -> None:
        async with self._bursts:
            self.asked.append(name)
            await self.answers.wait()


class Clock:
    """That of the event loop: it stands still unless a test lets time pass, however long that takes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = loop.time()

    async def tick(self) -> None:
        """A millisecond."""
        self.now += 0.001
        await asyncio.sleep(0)

    async def until(self, server: Server, count: int) -> None:
        """As much time as it takes until so many requests have reached the server."""
        for _ in range(1000):
            if len(server.asked) >= count:
                return
            await self.tick()
        raise AssertionError(f"only {server.asked} were sent within a second")


async def turns(count: int = 5) -> None:
    """A few rounds of the event loop, in which no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture(autouse=True)
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop = asyncio.get_running_loop()
    made = Clock(loop)
    monkeypatch.setattr(loop, "time", lambda: made.now)
    return made


async def finish(server: Server, *calls: asyncio.Future[None]) -> None:
    server.answers.set()
    await asyncio.gather(*calls)


async def test_a_single_request_is_sent_at_once(server: Server) -> None:
    call = asyncio.ensure_future(server.ask("one"))
    await turns()
    assert server.asked == ["one"]
    await finish(server, call)


async def test_requests_of_one_call_are_sent_at_once(server: Server) -> None:
    calls = [asyncio.ensure_future(server.ask(str(number))) for number in range(100)]
    await turns()
    assert len(server.asked) == 100
    await finish(server, *calls)


async def test_requests_during_a_request_are_sent_together(server: Server, clock: Clock) -> None:
    first = asyncio.ensure_future(server.ask("first"))
    await turns()
    others = [asyncio.ensure_future(server.ask(str(number))) for number in range(5)]
    await turns()
    assert server.asked == ["first"]
    await clock.until(server, 2)
    assert len(server.asked) == 6
    await finish(server, first, *others)


async def test_a_steady_flow_of_requests_delays_none_too_long(server: Server, clock: Clock) -> None:
    calls = [asyncio.ensure_future(server.ask("first"))]
    await turns()
    while len(server.asked) < 2 and len(calls) < 100:
        calls.append(asyncio.ensure_future(server.ask("later")))
        await clock.tick()
    assert len(server.asked) >= 2
    await clock.until(server, len(calls))
    await finish(server, *calls)


async def test_a_request_after_a_burst_is_sent_at_once(server: Server, clock: Clock) -> None:
    calls = [asyncio.ensure_future(server.ask("first"))]
    await turns()
    calls.append(asyncio.ensure_future(server.ask("second")))
    await clock.until(server, 2)
    await finish(server, *calls)
    server.answers.clear()
    last = asyncio.ensure_future(server.ask("last"))
    await turns()
    assert server.asked == ["first", "second", "last"]
    await finish(server, last)


async def test_a_cancelled_request_does_not_delay_others(server: Server, clock: Clock) -> None:
    first = asyncio.ensure_future(server.ask("first"))
    await turns()
    held, other = (asyncio.ensure_future(server.ask(name)) for name in ("held", "other"))
    await turns()
    held.cancel()
    await clock.until(server, 2)
    assert server.asked == ["first", "other"]
    assert held.cancelled()
    await finish(server, first, other)
    server.answers.clear()
    last = asyncio.ensure_future(server.ask("last"))
    await turns()
    assert server.asked[-1] == "last"
    await finish(server, last)


class Unreachable(Server):
    """An API server that is asked for claims and then goes away."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        raise NotImplementedError

    async def get_answer(self, resource: Resource, name: str, namespace: str | None = None) -> ClientResponse:
        self.asked.append(name)
        await self.answers.wait()
        raise Unavailable("it is gone")


async def test_claims_of_pods_that_start_together_are_read_together(clock: Clock) -> None:
    server = Unreachable()
    reader = ClaimReader(server, "oven.example.com")
    first = asyncio.ensure_future(reader.fetch(ClaimReference("default", "first", "uid-1")))
    await turns()
    others = [asyncio.ensure_future(reader.fetch(ClaimReference("default", name, name))) for name in "abc"]
    await turns()
    assert server.asked == ["first"]
    await clock.until(server, 4)
    server.answers.set()
    for call in (first, *others):
        with pytest.raises(TransientError):
            await call
