"""The parts of the controller that run in its active replica only."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dra_kit.controller.election.leadership import Leadership
from dra_kit.errors import InternalError
from dra_kit.process.supervisor import Part

logger: logging.Logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 4.0
"""What active parts get to stop in; a lease that is not renewed is given away 5 s after it was given up here."""
DRAIN_SECONDS: Final = 15.0
"""What they get when the process is to end, and the lease is renewed until they have stopped."""


class ActiveParts:
    """A part of the controller: runs other parts while this replica is the active one, and stops them at once after.

    Each active life calls their ``run`` anew. One that fails ends the process, as any part does; so does one that
    cannot be stopped in time, because an author's blocking call holds it up: nothing else ends such a call.

    Args:
        leadership: tells when.
        stop_seconds: that stopping may take.
    """

    name = "active"

    def __init__(self, leadership: Leadership, *, stop_seconds: float = STOP_SECONDS) -> None:
        self._leadership = leadership
        self._stop_seconds = stop_seconds
        self._parts: list[Part] = []

    def add(self, part: Part) -> None:
        """Add a part; before :meth:`run`."""
        self._parts.append(part)

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once: a standby is what it is to be.

        Raises:
            Exception: of a part.
            InternalError: a part ended by itself, or does not stop in time.
        """
        ready.set()
        while True:
            await self._leadership.gained()
            await self._life()

    async def _life(self) -> None:
        lost = asyncio.create_task(self._leadership.lost(), name="lease lost")
        tasks = {asyncio.create_task(part.run(asyncio.Event()), name=part.name): part for part in self._parts}
        try:
            await asyncio.wait({lost, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            slow = await self._stopped(set(tasks))
        for task, part in tasks.items():
            if task.done() and not task.cancelled():
                error = task.exception()
                raise error or InternalError(f"part {part.name!r} ended by itself: it should run until it is stopped")
        if slow:
            raise InternalError(
                f"{', '.join(sorted(slow))} did not stop within {self._stop_seconds:g} s after the lease was lost: "
                "the process ends, since another replica becomes active"
            )

    async def _stopped(self, tasks: set[asyncio.Task[None]]) -> list[str]:
        """Cancel all tasks at once; return the names of those that go on."""
        if not tasks:
            return []
        for task in tasks:
            task.cancel()
        seconds = DRAIN_SECONDS if self._leadership.leading else self._stop_seconds
        _, going_on = await asyncio.wait(tasks, timeout=seconds)
        for task in going_on:
            task.cancel()  # a second time: whoever waits for a thread gives up on it
        if going_on:
            await asyncio.wait(going_on, timeout=0.1)
        return [task.get_name() for task in going_on]
