"""Announces to users, in Events, what becomes of the claims that hold our devices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from dra_kit.controller.claims.announcements import announcements
from dra_kit.controller.claims.follower import ClaimFollower
from dra_kit.controller.claims.lifecycle import Transition
from dra_kit.controller.claims.progress import Progress
from dra_kit.kube.events import EventRecorder
from dra_kit.process.logging import log_context

logger: logging.Logger = logging.getLogger(__name__)

_Pending: TypeAlias = "asyncio.Queue[tuple[Transition, bool, Callable[[], None]]]"
"""Transitions, whether they happened now, and what is called when they are announced."""


class Announcing:
    """An active part of the controller.

    Args:
        follower: knows what happens.
        recorder: takes the Events.
        progress: keeps which transitions are not announced yet.
    """

    name = "announcing"

    def __init__(self, follower: ClaimFollower, recorder: EventRecorder, progress: Progress) -> None:
        self._follower = follower
        self._recorder = recorder
        self._progress = progress

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when it follows."""
        pending: _Pending = asyncio.Queue()
        with self._follower.subscribed() as claims, self._progress.announcing():
            for step in claims.recent:
                pending.put_nowait((step, False, self._progress.begin(inherited=True)))
            ready.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(claims.steps, pending))
                group.create_task(self._announce_all(pending))

    async def _follow(self, steps: asyncio.Queue[Transition], pending: _Pending) -> None:
        """Take what happens at once: from when it was seen it counts as not announced."""
        while True:
            step = await steps.get()
            pending.put_nowait((step, True, self._progress.begin()))

    async def _announce_all(self, pending: _Pending) -> None:
        while True:
            step, now, announced = await pending.get()
            await self._recorder.room()  # one that is pushed out would be lost
            self._announce(step, announced, repeat=now)

    def _announce(self, step: Transition, announced: Callable[[], None], *, repeat: bool) -> None:
        metadata = step.claim.metadata
        with log_context(claim=f"{metadata.namespace}/{metadata.name}", claim_uid=metadata.uid):
            logger.info(
                "claim changed",
                extra={"change": step.change.value, "devices": [device.device for device in step.devices]},
            )
        events = announcements(step)
        left = len(events)

        def written() -> None:
            nonlocal left
            left -= 1
            if not left:
                announced()

        for each in events:
            self._recorder.record(
                each.regarding, "Normal",
                reason=each.reason, action=each.action, note=each.note, identity=each.identity, repeat=repeat,
                written=written,
            )  # fmt: skip
