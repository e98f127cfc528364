"""Work in threads that cannot be taken back: it is waited for, also by those who are cancelled."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from dra_kit.node.deadlines import run_in_thread_to_completion

name: ContextVar[str] = ContextVar("name", default="nobody")


async def test_result_and_error_come_back_from_the_thread() -> None:
    assert await run_in_thread_to_completion(lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(ZeroDivisionError):
        await run_in_thread_to_completion(lambda: 1 // 0)


async def test_the_caller_s_context_is_that_of_the_work() -> None:
    name.set("lunch")
    assert await run_in_thread_to_completion(name.get) == "lunch"


async def test_a_cancelled_caller_waits_for_the_end() -> None:
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


async def test_the_error_of_the_work_comes_before_the_cancellation() -> None:
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


async def test_who_is_cancelled_twice_gives_up_on_work_that_hangs() -> None:
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
