"""Waiting for what cannot be taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

from typing_extensions import ParamSpec

T = TypeVar("T")
P = ParamSpec("P")


class Unstoppable(asyncio.Future[T]):
    """The outcome of work in a thread that goes on whether somebody waits for it or not; see :func:`to_the_end`."""

    _asked_to_stop = False

    def cancel(self, msg: Any | None = None) -> bool:
        """Do nothing at first; cancelled a second time, at the end of the process, give up."""
        if self._asked_to_stop:
            return super().cancel(msg)
        self._asked_to_stop = True
        return False  # the task that waits is cancelled as soon as it goes on

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Note that the work is done; in the thread of the loop."""
        if self.done():  # given up on
            return
        if error is None:
            self.set_result(result)
        else:
            self.set_exception(error)


async def to_the_end(work: Unstoppable[T]) -> T:
    """Return the outcome of the work.

    When the caller is cancelled, the work is waited for all the same, so that nothing is done behind the back of
    whoever undoes it next. Its error then comes before the cancellation.
    """
    try:
        return await work
    except asyncio.CancelledError:
        if work.done() and not work.cancelled():
            work.result()
        raise


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run in a thread like :func:`asyncio.to_thread`, but wait for it by the rules of :func:`to_the_end`."""
    loop = asyncio.get_running_loop()
    outcome: Unstoppable[T] = Unstoppable(loop=loop)
    context = copy_context()

    def ended(done: asyncio.Future[T]) -> None:
        error = done.exception()
        outcome.settle(None if error else done.result(), error)

    loop.run_in_executor(None, lambda: context.run(work, *args, **kwargs)).add_done_callback(ended)
    return await to_the_end(outcome)
