from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from dra_kit.author.calls import call, run_in_thread

WHERE: contextvars.ContextVar[str] = contextvars.ContextVar("WHERE", default="nowhere")


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.005)


class Author:
    def blocking(self, number: int, *, add: int = 0) -> tuple[int, bool]:
        return number + add, threading.current_thread() is threading.main_thread()

    async def asynchronous(self, number: int, *, add: int = 0) -> tuple[int, bool]:
        return number + add, threading.current_thread() is threading.main_thread()

    def later(self, number: int) -> Any:
        return self.asynchronous(number)


async def test_def_runs_in_a_thread_of_its_own() -> None:
    assert await call(Author().blocking, 1, add=1) == (2, False)


async def test_async_def_runs_in_the_loop() -> None:
    assert await call(cast("Any", Author().asynchronous), 1, add=1) == (2, True)


async def test_what_a_def_returns_to_be_awaited_is_awaited_in_the_loop() -> None:
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


async def test_context_variables_reach_the_thread_and_do_not_come_back() -> None:
    WHERE.set("loop")

    def look() -> str:
        before = WHERE.get()
        WHERE.set("thread")
        return before

    assert await call(look) == "loop"
    assert WHERE.get() == "loop"


async def test_an_exception_is_the_authors_own() -> None:
    def fail() -> None:
        raise KeyError("gpu-0")

    with pytest.raises(KeyError, match="gpu-0") as caught:
        await call(fail)
    assert caught.traceback[-1].name == "fail"


@pytest.mark.parametrize(
    "error", [StopIteration("x"), SystemExit("x"), KeyboardInterrupt("x"), asyncio.CancelledError("x")]
)
async def test_what_would_end_the_process_or_look_like_cancellation_becomes_an_error(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError, match=rf"^raised {type(error).__name__}\(x\)$"):
        await call(fail)


@pytest.mark.parametrize("error", [SystemExit("x"), KeyboardInterrupt("x"), asyncio.CancelledError("x")])
async def test_so_it_does_when_a_coroutine_raises_it(error: BaseException) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(RuntimeError, match=rf"^raised {type(error).__name__}\(x\)$") as caught:
        await call(cast("Any", fail))
    assert "fail" in [entry.name for entry in caught.traceback]


async def test_a_coroutine_that_is_cancelled_ends() -> None:
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
async def test_being_cancelled_waits_until_the_thread_has_ended(error: Exception | None) -> None:
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


async def test_being_cancelled_twice_gives_up() -> None:
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


def test_a_call_that_hangs_keeps_nobody_from_ending() -> None:
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
    blocked.go.set()  # the loop is closed: its result goes nowhere, and that is no error
    assert blocked.left.wait(30)
