"""One claim prepared, from the kubelet's question to the answer: read, kept alone, made true, made durable."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from dra_kit.errors import DraKitError
from dra_kit.node.calls.concurrency import Turns
from dra_kit.node.claims.durable import DurableClaims
from dra_kit.node.claims.epochs import Epochs
from dra_kit.node.claims.exclusive import ExclusiveDevices
from dra_kit.node.claims.news import ClaimNews
from dra_kit.node.claims.preparation import Preparation
from dra_kit.node.claims.reader import AllocatedClaim, ClaimReader
from dra_kit.node.claims.releases import Releases
from dra_kit.node.claims.status import has_statuses
from dra_kit.node.locks.named import Locks
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.steps import Step, reached
from dra_kit.process.logging import log_context
from dra_kit.resource.reference import ClaimReference

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preparing:
    """Prepares one claim at a time; keeps nothing between calls.

    Attributes:
        reader: reads claims from the API server.
        preparation: runs the author's code.
        durable: records and files of claims.
        claims: the locks of all claims.
        epochs: of the preparing that is under way.
        exclusive: who has which device.
        turns: of the author's calls.
        releases: releases what was prepared for another allocation.
        news: is told what became of claims.
    """

    reader: ClaimReader
    preparation: Preparation
    durable: DurableClaims
    claims: Locks
    epochs: Epochs
    exclusive: ExclusiveDevices
    turns: Turns
    releases: Releases
    news: ClaimNews

    async def prepare(self, reference: ClaimReference, *, again: bool = False) -> ClaimRecord | None:
        """Prepare a claim, or find that it is prepared as it should be.

        Args:
            reference: the claim.
            again: nobody asked for it; prepare it only if it still is prepared.

        Returns:
            The record, which is durable; None for a claim that is not prepared any more.

        Raises:
            DraKitError: with a text for the user.
        """
        self.durable.files.check(reference.uid)
        async with self.epochs.begun(reference.uid) as epoch, self.claims.hold(reference.uid):
            if again and not self._is_prepared(reference.uid):
                return None  # released meanwhile, and the kubelet has not asked for it
            # asked for when nothing else can happen to the claim here any more: never an older state than ours
            claim = await self.reader.fetch(reference)
            reached(Step.CLAIM_FETCHED)
            with log_context(pod=claim.pods):
                record = await self._prepare_alone(claim, epoch)
            reached(Step.PREPARED)
            return record

    def _is_prepared(self, uid: str) -> bool:
        record = self.durable.store.claim(uid)
        return record is not None and record.phase == "prepared"

    async def _prepare_alone(self, claim: AllocatedClaim, epoch: int) -> ClaimRecord:
        record = self.durable.store.claim(claim.reference.uid)
        if record is not None and (record.phase == "releasing" or record.allocation != claim.allocation):
            await self.releases.of_record(record)
            record = None
        if record is not None and self.preparation.is_current(record):
            await self.durable.make_files(record)
            if not has_statuses(claim.raw, self.preparation.driver.name, record):
                self.news.resumed.tell(record)  # it may have been written since the claim was fetched
            return record
        async with (
            self.exclusive.kept_for(claim),
            self.turns.taken((result.pool, result.device) for result in claim.results),
        ):
            return await self._prepare_anew(claim, epoch, before=record)

    async def _prepare_anew(self, claim: AllocatedClaim, epoch: int, *, before: ClaimRecord | None) -> ClaimRecord:
        if (
            before is not None
            and self.preparation.is_of_this_boot(before)
            and self.durable.store.effects_of(before.uid)
        ):
            # from now on these may make way for others, and then the record must not be answered from any more
            await self.durable.put(before.model_copy(update={"outdated": True}), epoch=epoch)
        in_force = self.durable.store.needs(claim.reference.uid)
        try:
            record = await self.preparation.prepare(claim, before)
            reached(Step.AUTHOR_RETURNED)
            await self.durable.put(record, epoch=epoch)
        except BaseException:
            # also when cancelled at the deadline: what was begun is undone before the claim's lock is given up
            stored = self.durable.store.claim(claim.reference.uid)
            if stored is None or not self.preparation.is_of_this_boot(stored):
                await self._roll_back(claim.reference, in_force if stored is None else ())
            raise
        if not self.durable.files.wrote(record):
            await self.durable.make_files(record)
        logger.info(
            "claim prepared",
            extra={"devices": ",".join(f"{item.pool}/{item.device}" for item in record.devices)},
        )
        self.news.prepared.tell(record)
        return record

    async def _roll_back(self, reference: ClaimReference, in_force: Collection[int]) -> None:
        """Undo what a failed preparation began; ``in_force`` are numbers of what the claim needed before it."""
        try:
            # of a claim whose record was lost or is damaged containers may run
            lost = self.durable.store.has_claim(reference.uid) or self.durable.store.may_lack_claims(
                self.durable.files.uids()
            )
            await self.preparation.effects.release(reference, keep=in_force if lost else ())
        except DraKitError as error:
            logger.warning("roll-back incomplete", extra={"error": str(error), "code": error.code})
