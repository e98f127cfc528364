from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import re
import threading
from typing import Any, cast

import pytest

from dra_kit.author.calls import PendingResult, call, run_in_thread
from dra_kit.errors import TransientError
from tests.support.api import eventually

WHERE: contextvars.ContextVar[str] = contextvars.ContextVar("WHERE", default="nowhere")


class Author:
    def blocking(self, number: int, *, add: int = 0) -> tuple[int, bool]:
        return number + add, threading.current_thread() is threading.main_thread()

    async def asynchronous(self, number: int, *, add: int = 0) -> tuple[int, bool]:
        return number + add, threading.current_thread() is threading.main_thread()

    def later(self, number: int) -> Any:
        return self.asynchronous(number)


async def test_def_runs_in_its_own_thread() -> None:
    assert await call(Author().blocking, 1, add=1) == (2, False)


async def test_async_def_runs_in_the_loop() -> None:
    assert await call(cast("Any", Author().asynchronous), 1, add=1) == (2, True)


async def test_an_awaitable_returned_by_a_def_is_awaited_in_the_loop() -> None:
    assert await call(Author().later, 3) == (3, True)


async def test_a_decorated_async_def_runs_in_the_loop() -> None:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    assert await call(decorate(Author().asynchronous), 4) == (4, True)


async def test_calls_block_neither_the_loop_nor_each_other() -> None:
    barrier = threading.Barrier(20)  # opens when all twenty wait at once
    async with asyncio.timeout(60):
        assert len(await asyncio.gather(*(run_in_thread(barrier.wait) for _ in range(20)))) == 20


async def test_context_variables_are_copied_into_the_thread_only() -> None:
    WHERE.set("loop")

    def look() -> str:
        before = WHERE.get()
        WHERE.set("thread")
        return before

    assert await call(look) == "loop"
    assert WHERE.get() == "loop"


async def test_an_exception_of_the_author_is_raised_unchanged() -> None:
    def fail() -> None:
        raise KeyError("gpu-0")

    with pytest.raises(KeyError, match="gpu-0") as caught:
        await call(fail)
    assert caught.traceback[-1].name == "fail"


@pytest.mark.parametrize(
    "error", [StopIteration("x"), SystemExit("x"), KeyboardInterrupt("x"), asyncio.CancelledError("x")]
)
async def test_system_exit_and_cancellation_of_a_def_become_errors(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError, match=rf"^raised {type(error).__name__}\(x\)$"):
        await call(fail)


@pytest.mark.parametrize("error", [SystemExit("x"), KeyboardInterrupt("x"), asyncio.CancelledError("x")])
async def test_system_exit_and_cancellation_of_a_coroutine_become_errors(error: BaseException) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(RuntimeError, match=rf"^raised {type(error).__name__}\(x\)$") as caught:
        await call(cast("Any", fail))
    assert "fail" in [entry.name for entry in caught.traceback]


async def test_a_cancelled_coroutine_stops() -> None:
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(call(cast("Any", wait)))
    await begun.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


class Blocked:
    """A call that blocks until it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        self.left = threading.Event()
        self.error = error

    def __call__(self) -> None:
        self.entered.set()
        self.go.wait(60)
        self.left.set()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, ValueError("too late")])
async def test_cancellation_waits_for_the_thread(error: Exception | None) -> None:
    blocked = Blocked(error)
    task = asyncio.create_task(run_in_thread(blocked))
    await eventually(blocked.entered.is_set)
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    blocked.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert blocked.left.is_set()


async def test_a_second_cancellation_abandons_the_thread() -> None:
    blocked = Blocked(ValueError("far too late"))
    task = asyncio.create_task(run_in_thread(blocked))
    await eventually(blocked.entered.is_set)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not blocked.left.is_set()
    blocked.go.set()
    await eventually(blocked.left.is_set)


def test_a_hanging_call_does_not_block_process_exit() -> None:
    blocked = Blocked()
    before = set(threading.enumerate())  # a thread of an earlier test may be about to end

    async def give_up() -> None:
        task = asyncio.create_task(run_in_thread(blocked))
        await eventually(blocked.entered.is_set)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(give_up())
    made = set(threading.enumerate()) - before
    assert made
    assert all(thread.daemon for thread in made)
    blocked.go.set()  # the loop is closed: the result is dropped without an error
    assert blocked.left.wait(30)


STOPPING = r"api\.get\(…\) has no result: the process of the driver is stopping"


def _stopping(loop: asyncio.AbstractEventLoop) -> PendingResult[None]:
    """A result whose work is cancelled, as all tasks are when the process stops."""

    async def start() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    return PendingResult(start, lambda: loop, "api.get(…)", "api.get(…)")


async def test_thread_that_waits_for_a_result_learns_that_the_process_stops() -> None:
    with pytest.raises(TransientError, match=STOPPING):
        await run_in_thread(_stopping(asyncio.get_running_loop()).result)


async def test_other_event_loop_that_awaits_a_result_learns_that_the_process_stops() -> None:
    async def awaited(pending: PendingResult[None]) -> None:
        await pending

    pending = _stopping(asyncio.get_running_loop())
    with pytest.raises(TransientError, match=STOPPING):
        await run_in_thread(lambda: asyncio.run(awaited(pending)))


def test_thread_does_not_wait_for_a_loop_that_was_closed_before_it_began_the_work() -> None:
    loop = asyncio.new_event_loop()
    pending, asked = _stopping(loop), threading.Event()
    errors: list[str] = []

    def wait() -> None:
        asked.set()
        try:
            pending.result()
        except TransientError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    asked.wait()
    loop.close()
    thread.join(60)
    assert [re.match(STOPPING, error) is not None for error in errors] == [True]


async def test_result_that_is_never_requested_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    pending = _stopping(asyncio.get_running_loop())
    del pending
    gc.collect()
    [record] = caplog.records
    assert record.message == "result never requested: nothing was sent"
    assert record.__dict__["remedy"] == "write 'await api.get(…)', or in def .result()"
