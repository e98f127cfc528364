"""Work for claims that the kubelet has not asked for: what fails is reported, what hangs holds up nothing else."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.calls.deadlines import Calls
from dra_kit.node.calls.failures import log_failure
from dra_kit.node.claims.author.preparation import Preparation
from dra_kit.node.claims.durable import DurableClaims
from dra_kit.node.claims.reader import ClaimReader
from dra_kit.node.claims.releases import Releases
from dra_kit.node.claims.reports.news import ClaimNews
from dra_kit.node.locks.named import Locks
from dra_kit.node.state.records import UNKNOWN_BOOT, ClaimRecord
from dra_kit.process.logging import log_context

logger: logging.Logger = logging.getLogger(__name__)


class Unasked:
    """Finishes what the last process left half done, and releases what the kubelet will not release.

    Args:
        preparation: knows the boot, and whose code it is.
        reader: knows whether a claim is over.
        releases: releases claims.
        durable: records and files of claims.
        claims: the locks of all claims.
        calls: the work under way.
        news: is notified of claims that are prepared as they were before.
    """

    def __init__(
        self,
        preparation: Preparation,
        reader: ClaimReader,
        releases: Releases,
        durable: DurableClaims,
        *,
        claims: Locks,
        calls: Calls,
        news: ClaimNews,
    ) -> None:
        self._preparation = preparation
        self._reader = reader
        self._releases = releases
        self._durable = durable
        self._store = durable.store
        self._files = durable.files
        self._claims = claims
        self._calls = calls
        self._news = news

    async def resume(self) -> None:
        """Finish what the last process left half done, and make missing files again."""
        for known in self._store.claims():
            await self._see_to(known.reference, self._resume, "claim not resumed")  # done when the kubelet asks
        if self._store.may_lack_claims(self._files.uids()):  # whoever needs them may be among what was lost
            unclaimed = [str(effect.number) for effect in self._store.effects() if not effect.claims]
            unclaimed += [claim.uid for claim in self._store.lost()]
            if unclaimed:
                logger.warning("effects without a record of their claim are kept", extra={"kept": ",".join(unclaimed)})
            return
        await self._in_time(self._preparation.effects.undoing.undo_unneeded(), "effects not undone")
        for reference in self._store.needing():
            await self._see_to(reference, self._undo_unrecorded, "effects not undone")

    async def _resume(self, reference: ClaimReference) -> None:
        record = self._store.claim(reference.uid)
        if record is not None and record.phase == "releasing":
            await self._releases.of_record(record)
        elif record is not None and self._preparation.is_of_this_boot(record):
            await self._durable.make_files(record)
            self._news.resumed.notify(record)  # the last process may not have come to tell it

    async def _undo_unrecorded(self, reference: ClaimReference) -> None:
        # a claim whose files are kept has lost its record: its containers may run
        if self._store.has_claim(reference.uid) or reference.uid in self._files.uids():
            return
        begun = [item for item in self._store.effects_of(reference.uid) if item.phase != "reverting"]
        over = await self._reader.is_over(reference)
        # the kubelet asks again for one that is allocated, and finds what was begun further on; and containers may use
        # what was found without a record: it stays until the kubelet, or two looks at an orphan, say that none does
        keep = {item.number for item in begun if not over or item.boot_id == UNKNOWN_BOOT}
        await self._preparation.effects.undoing.release(reference, keep=keep)

    async def release_orphan(self, record: ClaimRecord, still: Callable[[ClaimRecord], Awaitable[bool]]) -> None:
        """Release a claim that the kubelet will not release, if it still is so; what fails is reported."""

        async def release(claim: ClaimReference) -> None:
            if self._store.claim(claim.uid) == record and await still(record):
                await self._releases.of_record(record)
                logger.info("claim released")

        await self._see_to(record.reference, release, "orphan not released")

    async def release_lost(self, claim: ClaimReference, still: Callable[[ClaimReference], Awaitable[bool]]) -> None:
        """Do the same for a claim whose record was lost or is damaged."""

        async def release(claim: ClaimReference) -> None:
            if self._store.claim(claim.uid) is None and await still(claim):
                await self._releases.without_record(claim)

        await self._see_to(claim, release, "orphan not released")

    async def _see_to(self, claim: ClaimReference, work: Callable[[ClaimReference], Awaitable[None]], no: str) -> None:
        async def alone() -> None:
            async with self._claims.hold(claim.uid):
                await work(claim)

        with log_context(claim=str(claim), claim_uid=claim.uid):
            await self._in_time(alone(), no)

    async def _in_time(self, work: Coroutine[Any, Any, None], no: str) -> None:
        def failed(error: Exception) -> None:
            log_failure(error, no, module=type(self._preparation.driver.preparer).__module__, logger=logger)

        late = f"{no} within {self._calls.deadline:g} s; what holds it up goes on"
        await self._calls.begin(work, failed=failed, late=lambda: late)
