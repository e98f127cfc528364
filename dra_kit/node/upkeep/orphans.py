"""Claims that nobody will release any more: the kubelet forgot them, or they vanished while the driver was away.

An orphan is a recorded claim that is gone, has another UID, or whose allocation no longer names our devices; so is one
whose record was lost or damaged, as long as something else on this node names it. The kubelet releases what it knows
within a minute (its own reconciliation, Kubernetes 1.37), so a claim is only released here when it was an orphan at two
looks in a row.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dra_kit.errors import DraKitError, NotFound
from dra_kit.kube.resources import RESOURCE_CLAIMS
from dra_kit.node.claims.reader import Getter, is_over, still_holds
from dra_kit.node.claims.service import ClaimService
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import Store
from dra_kit.process.logging import log_context
from dra_kit.resource.reference import ClaimReference

logger = logging.getLogger(__name__)

SUSPICION_ROUNDS: Final = 10
"""How many times longer than between the two looks at a suspect it takes until all claims are looked at again."""


class Orphans:
    """A part of the node process.

    Args:
        driver: the driver's name.
        api: reads claims.
        store: the records.
        service: releases orphans.
        patience: seconds between the two looks.
    """

    name = "orphans"

    def __init__(self, driver: str, api: Getter, store: Store, service: ClaimService, *, patience: float) -> None:
        self._driver = driver
        self._api = api
        self._store = store
        self._service = service
        self._patience = patience

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; one GET for each recorded claim in a round."""
        ready.set()
        while True:
            try:
                suspects = await self._orphans(self._store.claims())
                lost = await self._gone(self._store.lost())
            except DraKitError as error:  # a disk that does not work now is no reason to end
                logger.error("orphans not looked for", extra={"error": str(error), "code": error.code})
                suspects, lost = [], []
            await asyncio.sleep(self._patience)
            for record in await self._orphans(suspects):
                await self._release(record)
            for claim in await self._gone(lost):
                with log_context(claim=str(claim), claim_uid=claim.uid):
                    logger.warning("claim without a record is gone and nobody has released it")
                    await self._service.release_lost(claim, self.is_gone)
            await asyncio.sleep((SUSPICION_ROUNDS - 1) * self._patience)

    async def _orphans(self, records: list[ClaimRecord]) -> list[ClaimRecord]:
        return [record for record in records if await self.is_orphan(record)]

    async def is_orphan(self, record: ClaimRecord) -> bool:
        """Whether the API server knows that the claim is over; an API server that does not answer knows nothing."""
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, record.name, record.namespace)
        except NotFound:
            return True
        except DraKitError:
            return False
        return not all(still_holds(raw, record.uid, self._driver, item.pool, item.device) for item in record.devices)

    async def _gone(self, claims: list[ClaimReference]) -> list[ClaimReference]:
        return [claim for claim in claims if await self.is_gone(claim)]

    async def is_gone(self, claim: ClaimReference) -> bool:
        """The same of a claim without a record; nobody knows which devices it had."""
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        except NotFound:
            return True
        except DraKitError:
            return False
        return is_over(raw, claim, self._driver)

    async def _release(self, record: ClaimRecord) -> None:
        with log_context(claim=str(record.reference), claim_uid=record.uid):
            logger.warning("claim is gone and nobody has released it")
            # if that fails it is still there at the next look
            await self._service.release_orphan(record, self.is_orphan)
