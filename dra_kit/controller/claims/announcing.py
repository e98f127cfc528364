"""Tells users in Events what becomes of the claims that hold our devices."""

from __future__ import annotations

import asyncio
import logging

from dra_kit.controller.claims.announcements import announcements
from dra_kit.controller.claims.follower import ClaimFollower
from dra_kit.controller.claims.lifecycle import Transition
from dra_kit.kube.events import EventRecorder
from dra_kit.process.logging import log_context

logger: logging.Logger = logging.getLogger(__name__)


class Announcing:
    """An active part of the controller.

    Args:
        follower: knows what happens.
        recorder: takes the Events.
    """

    name = "announcing"

    def __init__(self, follower: ClaimFollower, recorder: EventRecorder) -> None:
        self._follower = follower
        self._recorder = recorder

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when it follows."""
        with self._follower.subscribed() as claims:
            ready.set()
            for step in claims.recent:
                self._announce(step, repeat=False)
            while True:
                self._announce(await claims.steps.get())

    def _announce(self, step: Transition, *, repeat: bool = True) -> None:
        metadata = step.claim.metadata
        with log_context(claim=f"{metadata.namespace}/{metadata.name}", claim_uid=metadata.uid):
            logger.info(
                "claim changed",
                extra={"change": step.change.value, "devices": [device.device for device in step.devices]},
            )
        for each in announcements(step):
            self._recorder.record(
                each.regarding, "Normal",
                reason=each.reason, action=each.action, note=each.note, identity=each.identity, repeat=repeat,
            )  # fmt: skip
