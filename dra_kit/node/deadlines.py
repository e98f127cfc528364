"""Runs work for the kubelet under a deadline, and work in threads that cannot be cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, Generic, TypeVar

from typing_extensions import ParamSpec

from dra_kit.errors import TransientError
from dra_kit.process.logging import context_of

logger: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")
_CANCELLED: Final = "cancelled, because the driver stops or its code has cancelled itself; the kubelet retries"
_REPORT_RESERVE: Final = 0.1  # of the deadline, in seconds: reserved for retrying work to report its progress
_ANSWER_SENT: Final = 0.02  # seconds until an answer has left the process
_ROLLBACK: Final = 2.0  # seconds for cancelled work to undo what it began, on shutdown
_try_until: ContextVar[float | None] = ContextVar("try_until", default=None)


def retry_deadline() -> float | None:
    """Return the event loop time until which the current work may retry; None without a deadline."""
    return _try_until.get()


@contextmanager
def retry_window(seconds: float) -> Iterator[None]:
    """Limit retries in this context: after ``seconds``, retrying work must report its progress; 0 means at once."""
    before = _try_until.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _try_until.reset(before)


class DeadlineRunner:
    """Runs work under a deadline; calls ``at_rest`` when all of it has finished and a short time has passed.

    Attributes:
        deadline: seconds that a piece of work may take that begins now.
    """

    def __init__(self, deadline: float, *, at_rest: Callable[[], None] | None = None) -> None:
        self.deadline = deadline
        self._at_rest = at_rest
        self._rest: asyncio.TimerHandle | None = None
        self._running: dict[asyncio.Task[None], Context] = {}
        self._drained = False

    def begin(
        self, work: Coroutine[Any, Any, T], *, failed: Callable[[Exception], T], late: Callable[[], str]
    ) -> asyncio.Future[T]:
        """Do the work, and return in time: either its result, or an answer made from an error.

        The work is cancelled at its deadline, even if no caller waits for it any more. It holds its locks until it has
        finished, so a call that hangs blocks no other claim. A result after the deadline is discarded. After
        :meth:`drain`, no work is started any more: the answer is that it was cut off.

        Args:
            work: the work to do.
            failed: makes an answer from an error of the work, or from a TransientError if the deadline passed (code
                ``deadline``) or the work was cut off; called once.
            late: returns what is reported when the deadline passes, with the remedy; called at that time.

        Returns:
            The answer, which is never an exception.
        """
        loop = asyncio.get_running_loop()
        call = _Call(work, loop.create_future(), failed, late)
        if self._drained:
            call.ended()
            return call.answer
        if self._rest is not None:
            self._rest.cancel()
        context = copy_context()
        context.run(_try_until.set, loop.time() + self.deadline * (1 - _REPORT_RESERVE))
        task = loop.create_task(call.run(), context=context)
        alarm = loop.call_later(self.deadline, call.cut_short, task)
        self._running[task] = context

        def ended(_: asyncio.Task[None]) -> None:
            self._running.pop(task, None)
            alarm.cancel()
            call.ended()
            if not self._running and self._at_rest is not None:
                self._rest = loop.call_later(_ANSWER_SENT, self._at_rest)

        task.add_done_callback(ended)
        return call.answer

    def works_on(self, uid: str) -> bool:
        """Return whether work for a claim is running."""
        return any(context_of(context).get("claim_uid") == uid for context in self._running.values())

    async def drain(self, grace: float) -> None:
        """Wait for running work, at most ``grace`` seconds, then cancel it and let it undo what it began."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=grace)
        if self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(set(self._running), timeout=_ROLLBACK)
        for task in self._running:
            task.cancel()  # for the second time, which no work survives
        self._drained = True


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Do work that would have to start over if it were cut off at a deadline.

    A first cancellation waits until the work has finished. A second one, on shutdown, cuts it off.

    Args:
        work: its errors are logged if no caller waits for it any more.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
        else:
            if (error := task.exception()) is not None:
                logger.warning("failed after its deadline", extra={"error": str(error)})
        raise
    return task.result()


class _Call(Generic[T]):
    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        answer: asyncio.Future[T],
        failed: Callable[[Exception], T],
        late: Callable[[], str],
    ) -> None:
        self.answer = answer
        self._work = work
        self._failed = failed
        self._late = late

    async def run(self) -> None:
        try:
            result = await self._work
        except Exception as error:  # noqa: BLE001 - there is an answer in any case
            if not self.answer.done():
                self.answer.set_result(self._failed(error))
        else:
            if not self.answer.done():
                self.answer.set_result(result)

    def cut_short(self, task: asyncio.Task[None]) -> None:
        if not self.answer.done():
            self.answer.set_result(self._failed(TransientError(self._late(), code="deadline")))
        task.cancel()

    def ended(self) -> None:
        """Note that the task is done, even if it was cancelled before it began."""
        self._work.close()
        if not self.answer.done():
            self.answer.set_result(self._failed(TransientError(_CANCELLED)))


P = ParamSpec("P")


class UncancellableFuture(asyncio.Future[T]):
    """The outcome of work in a thread, which continues even if no task waits for it.

    See :func:`wait_to_completion`.
    """

    _asked_to_stop = False

    def cancel(self, msg: Any | None = None) -> bool:
        """Ignore the first cancellation; on the second one, at shutdown, give up."""
        if self._asked_to_stop:
            return super().cancel(msg)
        self._asked_to_stop = True
        return False  # the waiting task is cancelled when it resumes

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Set the outcome of the work; call it in the thread of the loop."""
        if self.done():  # given up
            return
        if error is None:
            self.set_result(result)
        else:
            self.set_exception(error)


async def wait_to_completion(work: UncancellableFuture[T]) -> T:
    """Return the outcome of the work.

    If the caller is cancelled, it still waits for the work, so that no work goes on while its effects are being undone.
    An error of the work takes precedence over the cancellation.
    """
    try:
        return await work
    except asyncio.CancelledError:
        if work.done() and not work.cancelled():
            work.result()
        raise


async def run_in_thread_to_completion(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run in a thread like :func:`asyncio.to_thread`, but wait for it as :func:`wait_to_completion` does."""
    loop = asyncio.get_running_loop()
    outcome: UncancellableFuture[T] = UncancellableFuture(loop=loop)
    context = copy_context()

    def ended(done: asyncio.Future[T]) -> None:
        error = done.exception()
        outcome.settle(None if error else done.result(), error)

    loop.run_in_executor(None, lambda: context.run(work, *args, **kwargs)).add_done_callback(ended)
    return await wait_to_completion(outcome)
