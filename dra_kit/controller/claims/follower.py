"""Follows the claims of the cluster and tells users, in Events, what becomes of those that hold our devices."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dra_kit.controller.claims.announcements import announcements
from dra_kit.controller.claims.cache import ClaimCache, kept
from dra_kit.controller.claims.lifecycle import Transition
from dra_kit.errors import Unavailable
from dra_kit.kube.client import Client
from dra_kit.kube.events import EventRecorder
from dra_kit.kube.resources import RESOURCE_CLAIMS
from dra_kit.process.logging import log_context

logger: logging.Logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 10.0


class ClaimFollower:
    """A part of the controller: the periodic list, and the service behind the watch's handler.

    The watch brings changes at once; the list brings what the watch lost, deletions above all. Nothing is written but
    Events.

    Args:
        client: to list with.
        driver: name of the driver whose devices count.
        recorder: takes the Events.
        resync_seconds: between two lists, give or take a tenth.
    """

    name = "claims"

    def __init__(self, client: Client, driver: str, recorder: EventRecorder, *, resync_seconds: float) -> None:
        self._client = client
        self._recorder = recorder
        self._resync_seconds = resync_seconds
        self._cache = ClaimCache(driver)

    async def run(self, ready: asyncio.Event) -> None:
        """Lists again and again.

        Args:
            ready: set after the first list; watch events may come from then on.

        Raises:
            KubeError: the API server refuses the list.
        """
        while True:
            # in step, all controllers of a cluster would list at once
            pause = self._resync_seconds * random.uniform(0.9, 1.1)  # noqa: S311 - no secret
            try:
                await self.resync()
                ready.set()
            except Unavailable as error:
                logger.warning("claims cannot be listed now", extra={"error": str(error)})
                pause = min(pause, _RETRY_SECONDS)
            await asyncio.sleep(pause)

    async def resync(self) -> None:
        """Brings the cache to what the API server says; what had been missed is announced, except the first time.

        Raises:
            KubeError: the list failed.
        """
        with self._cache.listing():
            found = await self._client.list(RESOURCE_CLAIMS, keep=kept)
            self._announce(self._cache.replace(found.items, found.resource_version))
        logger.debug("claims listed", extra={"claims": len(found.items), "ours": len(self._cache)})

    async def on_claim(self, event_type: str | None, claim: Mapping[str, Any]) -> None:
        """Takes one event of the watch.

        Args:
            event_type: ADDED, MODIFIED or DELETED; None for an object of the watch's initial list.
            claim: the object, in its last state where it was deleted.
        """
        self._announce(self._cache.observe(claim, deleted=event_type == "DELETED"))

    def _announce(self, steps: Iterable[Transition]) -> None:
        for step in steps:
            metadata = step.claim.metadata
            with log_context(claim=f"{metadata.namespace}/{metadata.name}", claim_uid=metadata.uid):
                logger.info(
                    "claim changed",
                    extra={"change": step.change.value, "devices": [device.device for device in step.devices]},
                )
            for each in announcements(step):
                self._recorder.record(each.regarding, "Normal", reason=each.reason, action=each.action, note=each.note)
