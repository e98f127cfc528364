"""Work in threads that cannot be cancelled: even a cancelled caller waits for it."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from dra_kit.node.deadlines import run_in_thread_to_completion

name: ContextVar[str] = ContextVar("name", default="unset")


async def test_result_and_error_come_back_from_the_thread() -> None:
    assert await run_in_thread_to_completion(lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(ZeroDivisionError):
        await run_in_thread_to_completion(lambda: 1 // 0)


async def test_thread_has_the_context_of_the_caller() -> None:
    name.set("lunch")
    assert await run_in_thread_to_completion(name.get) == "lunch"


async def test_cancelled_caller_waits_for_the_thread() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        go_on.wait(60)

    caller = asyncio.ensure_future(run_in_thread_to_completion(work))
    await asyncio.to_thread(entered.wait, 60)
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(caller, 60)


async def test_error_of_the_thread_takes_precedence_over_the_cancellation() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        go_on.wait(60)
        raise OSError("no space")

    caller = asyncio.ensure_future(run_in_thread_to_completion(work))
    await asyncio.to_thread(entered.wait, 60)
    caller.cancel()
    go_on.set()
    with pytest.raises(OSError, match="no space"):
        await asyncio.wait_for(caller, 60)


async def test_second_cancellation_abandons_hanging_work() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        go_on.wait(60)

    caller = asyncio.ensure_future(run_in_thread_to_completion(work))
    await asyncio.to_thread(entered.wait, 60)
    caller.cancel()
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(caller, 60)
    go_on.set()
