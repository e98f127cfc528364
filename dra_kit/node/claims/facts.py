"""What becomes known of a device after it was prepared: kept in the records of its claims, and published."""

from __future__ import annotations

import asyncio
import logging

from dra_kit.author.prepared import DeviceMetadata, DeviceStatus
from dra_kit.node.claims.durable import DurableClaims
from dra_kit.node.claims.epochs import Epochs
from dra_kit.node.claims.news import ClaimNews
from dra_kit.node.claims.status import updated
from dra_kit.node.locks.named import Locks
from dra_kit.process.logging import log_context

logger = logging.getLogger(__name__)


class LateFacts:
    """What ``context.update`` comes to.

    Args:
        durable: records and files of claims.
        claims: the locks of all claims.
        epochs: knows which claims are being prepared.
        news: is told of claims whose devices something became known of.
    """

    def __init__(self, durable: DurableClaims, claims: Locks, epochs: Epochs, news: ClaimNews) -> None:
        self._durable = durable
        self._store = durable.store
        self._claims = claims
        self._epochs = epochs
        self._news = news

    async def update(
        self, pool: str, device: str, status: DeviceStatus | None, metadata: DeviceMetadata | None
    ) -> None:
        """Keep and publish what became known of a device after it was prepared, for every claim that has it."""

        async def update(uid: str) -> bool:
            async with self._claims.hold(uid):
                record = self._store.claim(uid)
                if record is None or record.phase != "prepared" or not record.has(pool, device):
                    return False
                with log_context(claim=str(record.reference), claim_uid=uid):
                    record = updated(record, pool, device, status, metadata)
                    await self._durable.put(record, epoch=self._store.epoch())
                    self._news.prepared.tell(record)
                    await self._durable.make_files(record)
                return True

        # a claim that is being prepared is waited for: its record comes at the end; the others wait for none of that
        uids = {record.uid for record in self._store.claims()} | self._epochs.preparing()
        if not any(await asyncio.gather(*map(update, uids))):
            logger.warning(
                "facts of a device dropped: no claim is prepared with it", extra={"pool": pool, "device": device}
            )
