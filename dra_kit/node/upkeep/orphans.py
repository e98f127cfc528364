"""Claims that nobody will release any more: the kubelet forgot them, or they vanished while the driver was away.

An orphan is a recorded claim that is gone, has another UID, or whose allocation no longer names our devices; so is one
whose record was lost or damaged, as long as something else on this node names it. That its containers have ended, only
the kubelet knows, which releases what it knows within a minute of that (its own reconciliation, Kubernetes 1.37). So an
orphan is released here only when it was one at two looks with a long time between, and never while the kubelet's own
checkpoint lists it, where that can be read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from dra_kit.errors import DraKitError, NotFound
from dra_kit.kube.resources import RESOURCE_CLAIMS
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.reader import Getter, is_over, still_holds
from dra_kit.node.claims.unasked import Unasked
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import Store
from dra_kit.plugin.kubelet_checkpoint import KubeletCheckpoint
from dra_kit.process.logging import log_context

logger: logging.Logger = logging.getLogger(__name__)


class Orphans:
    """A part of the node process.

    Args:
        driver: the driver's name.
        api: reads claims.
        store: the records.
        unasked: releases orphans.
        checkpoint: the claims that the kubelet will release itself.
        after: seconds from the first look that found a claim gone to its release, and between two looks.
        clock: gives seconds that only rise.
    """

    name = "orphans"

    def __init__(
        self,
        driver: str,
        api: Getter,
        store: Store,
        unasked: Unasked,
        *,
        checkpoint: KubeletCheckpoint,
        after: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._api = api
        self._store = store
        self._unasked = unasked
        self._checkpoint = checkpoint
        self._after = after
        self._clock = clock
        self._seen_gone: dict[ClaimReference, float] = {}

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        ready.set()
        while True:
            await self.look()
            await asyncio.sleep(self._after)

    async def look(self) -> None:
        """Look at every recorded claim, by one GET each, and release those whose time has come."""
        try:
            records, lost = self._store.claims(), self._store.lost()
        except DraKitError as error:  # a disk that does not work now is no reason to end
            logger.error("orphans not looked for", extra={"error": str(error), "code": error.code})
            return
        known = {*(record.reference for record in records), *lost}
        self._seen_gone = {claim: since for claim, since in self._seen_gone.items() if claim in known}
        for record in records:
            if self._is_due(record.reference, await self._is_orphan(record)):
                await self._release(record)
        for claim in lost:
            if self._is_due(claim, await self._is_gone(claim)):
                with log_context(claim=str(claim), claim_uid=claim.uid):
                    logger.warning("claim without a record is gone and nobody has released it")
                    await self._unasked.release_lost(claim, self._is_still_gone)

    def _is_due(self, claim: ClaimReference, gone: bool | None) -> bool:
        """Return whether a claim has been gone long enough, at two looks, and the kubelet does not know it either."""
        if gone is False:
            self._seen_gone.pop(claim, None)
        if not gone:
            return False
        since = self._seen_gone.setdefault(claim, self._clock())
        return self._clock() - since >= self._after and claim.uid not in self._checkpoint.pods()

    async def _is_orphan(self, record: ClaimRecord) -> bool | None:
        """Return whether the API server knows that the claim is over; None when it does not answer."""
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, record.name, record.namespace)
        except NotFound:
            return True
        except DraKitError:
            return None
        return not all(still_holds(raw, record.uid, self._driver, item.pool, item.device) for item in record.devices)

    async def _is_gone(self, claim: ClaimReference) -> bool | None:
        """Return the same of a claim without a record; nobody knows which devices it had."""
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        except NotFound:
            return True
        except DraKitError:
            return None
        return is_over(raw, claim, self._driver)

    async def _is_still_orphan(self, record: ClaimRecord) -> bool:
        return bool(await self._is_orphan(record)) and record.uid not in self._checkpoint.pods()

    async def _is_still_gone(self, claim: ClaimReference) -> bool:
        return bool(await self._is_gone(claim)) and claim.uid not in self._checkpoint.pods()

    async def _release(self, record: ClaimRecord) -> None:
        with log_context(claim=str(record.reference), claim_uid=record.uid):
            logger.warning("claim is gone and nobody has released it")
            # if that fails it is still there at the next look
            await self._unasked.release_orphan(record, self._is_still_orphan)
