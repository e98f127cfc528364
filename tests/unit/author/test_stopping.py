"""Waiting for the end of the process, in whatever thread and loop an author's code runs."""

from __future__ import annotations

import asyncio
import threading

import pytest

import dra_kit as dra

LONG = 3600.0


async def test_wait_returns_when_the_process_stops() -> None:
    stopping = dra.Stopping()
    waiting = [asyncio.create_task(stopping.wait()), asyncio.create_task(stopping.sleep(LONG))]
    await asyncio.sleep(0)
    assert not stopping
    stopping.set()
    assert await asyncio.gather(*waiting) == [None, True]
    assert stopping
    assert await stopping.sleep(LONG)
    assert stopping.blocking_sleep(LONG)


async def test_sleep_returns_after_its_time() -> None:
    stopping = dra.Stopping()
    assert not await stopping.sleep(0.001)
    assert not stopping.blocking_sleep(0.001)


def test_waiters_in_other_loops_are_woken() -> None:
    stopping, begun = dra.Stopping(), threading.Event()
    ended: list[bool] = []

    async def wait() -> None:
        task = asyncio.create_task(stopping.sleep(LONG))
        await asyncio.sleep(0)
        begun.set()
        ended.append(await task)

    def block() -> None:
        ended.append(stopping.blocking_sleep(LONG))

    threads = [threading.Thread(target=lambda: asyncio.run(wait())), threading.Thread(target=block)]
    for thread in threads:
        thread.start()
    begun.wait()
    stopping.set()
    for thread in threads:
        thread.join()
    assert ended == [True, True]


async def test_a_cancelled_waiter_is_removed() -> None:
    stopping = dra.Stopping()
    task = asyncio.create_task(stopping.wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stopping.set()


def test_a_closed_loop_does_not_block_the_notification_of_others() -> None:
    stopping = dra.Stopping()
    loop = asyncio.new_event_loop()
    task = loop.create_task(stopping.wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    stopping.set()
    assert stopping
    task.get_coro().close()
