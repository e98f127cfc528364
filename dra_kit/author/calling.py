"""Calling an author's method, whether it is ``def`` or ``async def``."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class UnderWay:
    """A call of an author's method that has not returned.

    Attributes:
        method: ``Class.method``.
        since: when it began, by :func:`time.monotonic`.
        loop: that of the caller.
        context: the caller's context variables, which tell what the call is about.
    """

    method: str
    since: float
    loop: asyncio.AbstractEventLoop
    context: contextvars.Context


_under_way: dict[UnderWay, None] = {}


def under_way(loop: asyncio.AbstractEventLoop) -> list[UnderWay]:
    """Return the calls made from a loop that have not returned, oldest first; may be asked from any thread."""
    return [item for item in list(_under_way) if item.loop is loop]


async def call(function: Callable[P, T | Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of an author's method; ``def`` methods run in a thread of their own.

    The thread is a daemon: a call that hangs for ever keeps neither other calls nor the end of the process. Until it
    has returned, :func:`under_way` tells of it.
    """
    item = UnderWay(_title(function), time.monotonic(), asyncio.get_running_loop(), contextvars.copy_context())
    _under_way[item] = None
    try:
        result: Any
        if inspect.iscoroutinefunction(inspect.unwrap(function)):
            result = function(*args, **kwargs)
        else:
            result = await in_thread(function, *args, **kwargs)
        if inspect.isawaitable(result):
            result = await result
    except GeneratorExit:
        raise  # nobody awaits it any more
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, Exception) or (
            isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
        ):
            raise
        raise as_error(error) from None
    else:
        outcome: T = result
        return outcome
    finally:
        del _under_way[item]


class Escaped(RuntimeError):
    """Stands for what may not leave an author's call.

    Args:
        what: was raised, such as ``SystemExit(1)``.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"raised {what}")
        self.what = what


def as_error(error: BaseException) -> Exception:
    """Return what an author's code raised, as an error that ends nothing but the call.

    SystemExit and the like would end the process, CancelledError would look as if the caller had been cancelled, and
    StopIteration cannot pass through a future.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return Escaped(f"{type(error).__name__}({error})").with_traceback(error.__traceback__)


def _title(function: Callable[..., object]) -> str:
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "author")
    return name if owner is None else f"{type(owner).__name__}.{name}"


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function in a daemon thread, with the caller's context variables."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to ask for it
    context = contextvars.copy_context()

    def finish(result: Any, error: BaseException | None) -> None:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(as_error(error))

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as caught:  # noqa: BLE001 - handed to the caller
            error = caught
        try:
            loop.call_soon_threadsafe(finish, result, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits for the result any more

    threading.Thread(target=run, name=getattr(function, "__qualname__", "author"), daemon=True).start()
    try:
        await asyncio.wait({future})
    except asyncio.CancelledError:
        # A thread cannot be stopped. Whoever holds a lock around this call must hold it until the thread has
        # ended; being cancelled a second time (the end of the process) gives up on it.
        await asyncio.wait({future})
        raise
    return future.result()
