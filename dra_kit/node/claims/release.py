"""Claims released: everything undone that a record stands for."""

from __future__ import annotations

import logging
from contextlib import suppress

from dra_kit.errors import DraKitError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.calls.concurrency import Turns
from dra_kit.node.calls.deadlines import to_its_end
from dra_kit.node.claims.author.preparation import Preparation
from dra_kit.node.claims.durable import DurableClaims
from dra_kit.node.claims.reports.news import ClaimNews
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.steps import Step, reached
from dra_kit.node.waiting import in_thread

logger: logging.Logger = logging.getLogger(__name__)


class Releases:
    """The lock of the claim is held by the caller.

    Args:
        preparation: runs the author's code.
        durable: records and files of claims.
        turns: of the author's calls.
        news: is notified of claims that are released.
    """

    def __init__(self, preparation: Preparation, durable: DurableClaims, turns: Turns, news: ClaimNews) -> None:
        self._preparation = preparation
        self._effects = preparation.effects.undoing
        self._store = durable.store
        self._files = durable.files
        self._turns = turns
        self._news = news

    async def release(self, reference: ClaimReference) -> None:
        """Release a claim, whatever is known of it.

        Raises:
            PrepareError: something could not be undone; it stays recorded, and is tried again with the next call.
        """
        record = self._store.claim(reference.uid)
        if record is not None:
            await self.of_record(record)
            logger.info("claim released")
        elif self._store.has_claim(reference.uid) or self._store.misspelt(reference.uid):
            await self.without_record(reference)
        else:
            await self._effects.release(reference)
            with suppress(DraKitError):  # files that no record stands for; the next start sweeps them
                await in_thread(self._files.remove, reference.uid)

    async def of_record(self, record: ClaimRecord) -> None:
        """Undo everything that a record stands for; the record goes last, so that a crash leaves it to be finished."""
        if not self._preparation.is_imperative and not self._store.needs(record.uid):
            await self._forget(record)
            return
        async with self._turns.taken((item.pool, item.device) for item in record.devices):
            await self.in_turn(record)

    async def in_turn(self, record: ClaimRecord, *, keep_effects: bool = False) -> None:
        """Do the same, where no other call of the author's can be in the way any more.

        Args:
            record: what is to be undone.
            keep_effects: leave the claim's effects as they are, for a prepare that comes soon.
        """
        await self._store.begin_release(record)
        reached(Step.RELEASE_BEGUN)
        await in_thread(self._files.remove, record.uid)
        if not keep_effects:
            await self._effects.release(record.reference)
        if self._preparation.is_imperative:
            await self._preparation.started.wait()
            await to_its_end(self._unprepare_and_forget(record))
        else:
            await self._forget(record)

    async def _unprepare_and_forget(self, record: ClaimRecord) -> None:
        await self._preparation.author.unprepare(record)
        reached(Step.AUTHOR_UNPREPARED)
        await self._forget(record)

    async def _forget(self, record: ClaimRecord) -> None:
        self._news.released.notify(record.reference)
        await self._store.forget_claim(record.uid, first=self._files.remove)
        reached(Step.CLAIM_FORGOTTEN)

    async def without_record(self, reference: ClaimReference) -> None:
        """Undo what is known of a claim without its record: its effects, its files, and the record if it is damaged."""
        await self._effects.release(reference)
        self._news.released.notify(reference)
        await self._store.forget_claim(reference.uid, first=self._files.remove)
        logger.warning("claim released by its UID, effects and files, without its record")
