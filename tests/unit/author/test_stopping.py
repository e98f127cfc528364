"""Waiting for the end of the process, in whatever thread and loop an author's code runs."""

from __future__ import annotations

import asyncio
import threading

import pytest

import dra_kit as dra

LONG = 3600.0


async def test_waiting_ends_when_the_process_is_asked_to_end() -> None:
    stopping = dra.Stopping()
    waiting = [asyncio.create_task(stopping.wait()), asyncio.create_task(stopping.sleep(LONG))]
    await asyncio.sleep(0)
    assert not stopping
    stopping.set()
    assert await asyncio.gather(*waiting) == [None, True]
    assert stopping
    assert await stopping.sleep(LONG)
    assert stopping.blocking_sleep(LONG)


async def test_a_sleep_that_nobody_ends_is_over_after_its_time() -> None:
    stopping = dra.Stopping()
    assert not await stopping.sleep(0.001)
    assert not stopping.blocking_sleep(0.001)


def test_loops_of_other_threads_are_woken_too() -> None:
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


async def test_who_gives_up_is_not_waited_for() -> None:
    stopping = dra.Stopping()
    task = asyncio.create_task(stopping.wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stopping.set()


def test_a_loop_that_has_ended_keeps_nobody_from_being_told() -> None:
    stopping = dra.Stopping()
    loop = asyncio.new_event_loop()
    task = loop.create_task(stopping.wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    stopping.set()
    assert stopping
    task.get_coro().close()
