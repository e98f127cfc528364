"""Work for the kubelet under a deadline: the kubelet is answered in time, whatever the work does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from dra_kit.errors import TransientError

T = TypeVar("T")

_UNDOING: Final = 2.0  # seconds that cancelled work gets to undo what it began, when the process ends


class Calls:
    """The work that runs now.

    Args:
        deadline: seconds that a piece of work may take.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._running: set[asyncio.Task[Any]] = set()

    async def in_time(self, work: Coroutine[Any, Any, T], late: Callable[[], str]) -> T:
        """The result of the work, or an error when the deadline passes; the work then ends in its own time.

        It is cancelled at its deadline, also when nobody waits for it any more, and keeps its locks until it has
        ended: a call that hangs holds up nobody else.

        Args:
            work: what is to be done.
            late: what is told when the deadline passes; asked then.

        Raises:
            TransientError: when the deadline passes (code ``deadline``).
        """
        task = asyncio.ensure_future(work)
        self._running.add(task)
        alarm = asyncio.get_running_loop().call_later(self._deadline, task.cancel)
        task.add_done_callback(lambda _: alarm.cancel())
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait({task}, timeout=self._deadline)
        if done and not task.cancelled():
            return task.result()
        raise TransientError(f"{late()}; the kubelet tries again", code="deadline")

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at here, so that a late failure is no "never retrieved" warning

    async def drain(self, grace: float) -> None:
        """Wait for what runs, at most ``grace`` seconds, then cancel it and let it undo what it began."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=grace)
        if self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(set(self._running), timeout=_UNDOING)
