from __future__ import annotations

import asyncio

import pytest

from dra_kit.node.locks import Locks


async def test_one_at_a_time_for_each_name() -> None:
    locks = Locks()
    log: list[str] = []

    async def work(name: str, mark: str) -> None:
        async with locks.hold(name):
            log.append(f"+{mark}")
            await asyncio.sleep(0)
            log.append(f"-{mark}")

    await asyncio.gather(work("a", "1"), work("a", "2"), work("a", "3"))
    assert log == ["+1", "-1", "+2", "-2", "+3", "-3"]


async def test_other_names_are_not_waited_for() -> None:
    locks = Locks()
    async with locks.hold("a"), asyncio.timeout(60), locks.hold("b"):
        assert locks.held("a")
        assert locks.held("b")
    assert not locks.held("a")


async def test_whoever_gives_up_waiting_leaves_nothing_behind() -> None:
    locks = Locks()

    async def wait() -> None:
        async with locks.hold("a"):
            raise AssertionError("never gets it")

    async with locks.hold("a"):
        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert locks.held("a")
    assert not locks.held("a")


async def test_an_error_frees_the_lock() -> None:
    locks = Locks()
    with pytest.raises(RuntimeError):
        async with locks.hold("a"):
            raise RuntimeError
    async with asyncio.timeout(60), locks.hold("a"):
        pass
