from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from dra_kit.errors import Conflict
from dra_kit.sandbox.informers import WorkQueue


async def test_key_added_repeatedly_is_reconciled_once() -> None:
    done: list[str] = []
    finished = asyncio.Event()

    async def reconcile(key: str) -> None:
        done.append(key)
        if key == "last":
            finished.set()

    queue = WorkQueue("test", reconcile)
    for key in ("a", "b", "a", "a", "last"):
        queue.add(key)
    await until_done(queue, finished)

    assert done == ["a", "b", "last"]


async def test_failed_key_is_requeued() -> None:
    attempts: list[str] = []
    finished = asyncio.Event()

    async def reconcile(key: str) -> None:
        attempts.append(key)
        if len(attempts) < 3:
            raise Conflict("changed meanwhile", status=409)
        finished.set()

    queue = WorkQueue("test", reconcile)
    queue.add("a")
    await until_done(queue, finished)

    assert attempts == ["a", "a", "a"]


async def test_unexpected_error_is_logged_and_the_key_is_requeued(caplog: pytest.LogCaptureFixture) -> None:
    attempts: list[str] = []
    finished = asyncio.Event()

    async def reconcile(key: str) -> None:
        attempts.append(key)
        if attempts.count("a") == 2:
            finished.set()
        elif key == "a":
            raise KeyError("spec")

    queue = WorkQueue("test", reconcile)
    for key in ("a", "b"):
        queue.add(key)
    await until_done(queue, finished)

    assert attempts == ["a", "b", "a"]
    [record] = [item for item in caplog.records if item.levelname == "ERROR"]
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError


async def until_done(queue: WorkQueue[str], finished: asyncio.Event) -> None:
    task = asyncio.create_task(queue.run())
    await asyncio.wait_for(finished.wait(), 30)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
