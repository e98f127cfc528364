"""Releases claims and undoes everything that is recorded of them, also while one of them is being prepared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress

from dra_kit.errors import DraKitError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.events import ClaimEvents
from dra_kit.node.claims.files import ClaimWriter
from dra_kit.node.claims.preparer_runner import PreparerRunner
from dra_kit.node.deadlines import run_in_thread_to_completion, run_to_completion
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.locks import CallSerializer, NamedLocks
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import StateStore

logger: logging.Logger = logging.getLogger(__name__)


class ClaimReleaser:
    """Releases claims; the caller holds the lock of the claim."""

    def __init__(
        self, runner: PreparerRunner, writer: ClaimWriter, serializer: CallSerializer, events: ClaimEvents
    ) -> None:
        self._runner = runner
        self._effects = runner.effects.reverter
        self._store = writer.store
        self._files = writer.files
        self._serializer = serializer
        self._events = events

    async def release(self, reference: ClaimReference) -> None:
        """Release a claim, whether or not it has a record.

        Raises:
            PrepareError: something could not be undone; it stays recorded, and the next call tries again.
        """
        record, needed = self._store.claim_and_needs(reference.uid)
        if record is not None:
            await self._release_record(record, needed)
            logger.info("claim released")
        elif self._store.has_claim(reference.uid) or self._store.misspelt(reference.uid):
            await self.release_without_record(reference)
        else:
            await self._effects.release(reference)
            with suppress(DraKitError):  # files without a record; the next start sweeps them
                await run_in_thread_to_completion(self._files.remove, reference.uid)

    async def release_record(self, record: ClaimRecord) -> None:
        """Undo everything in a record, and delete the record last, so that a release can be finished after a crash."""
        await self._release_record(record, self._store.needs(record.uid))

    async def _release_record(self, record: ClaimRecord, needed: Collection[int]) -> None:
        if not self._runner.has_unprepare and not needed:
            await self._forget(record)
            return
        async with self._serializer.taken((item.pool, item.device) for item in record.devices):
            await self.release_serialized(record)

    async def release_serialized(self, record: ClaimRecord, *, keep_effects: bool = False) -> None:
        """Do the same once no other call of the author's code can interfere.

        With ``keep_effects``, the claim's effects stay in force, for a prepare that follows soon.
        """
        await self._store.begin_release(record)
        hit(Failpoint.RELEASE_BEGUN)
        await run_in_thread_to_completion(self._files.remove, record.uid)
        if not keep_effects:
            await self._effects.release(record.reference)
        if self._runner.has_unprepare:
            await self._runner.started.wait()
            await run_to_completion(self._unprepare_and_forget(record))
        else:
            await self._forget(record)

    async def _unprepare_and_forget(self, record: ClaimRecord) -> None:
        await self._runner.unprepare(record)
        hit(Failpoint.AUTHOR_UNPREPARED)
        await self._forget(record)

    async def _forget(self, record: ClaimRecord) -> None:
        self._events.released.notify(record.reference)
        await self._store.forget_claim(record.uid, first=self._files.remove)
        hit(Failpoint.CLAIM_FORGOTTEN)

    async def release_without_record(self, reference: ClaimReference) -> None:
        """Release a claim whose record is lost or corrupt: its effects, its files, and the corrupt record itself."""
        await self._effects.release(reference)
        self._events.released.notify(reference)
        await self._store.forget_claim(reference.uid, first=self._files.remove)
        logger.warning("claim without a readable record released")


class PrepareEpochs:
    """The epochs of claims: a release ends the epoch, and a preparation that began before it cannot be stored.

    A preparation begins before it waits for the lock of its claim: the driver's other process may release the claim
    meanwhile, and the lock does not tell which of the two came first.
    """

    def __init__(self, store: StateStore, claims: NamedLocks) -> None:
        self._store = store
        self._claims = claims
        self._preparing: dict[str, int] = {}
        self._ended: set[str] = set()

    def preparing(self) -> set[str]:
        """Return the UIDs of the claims that this process is preparing."""
        return set(self._preparing)

    def begin(self, uid: str) -> int:
        """Return the epoch of a preparation that begins now.

        A release sees the preparation until :meth:`over` is called.
        """
        epoch = self._store.epoch()
        self._preparing[uid] = self._preparing.get(uid, 0) + 1
        return epoch

    async def over(self, uid: str) -> None:
        """Note that a preparation has finished, whether or not it succeeded."""
        self._preparing[uid] -= 1
        await self._forget(uid)

    async def end(self, uid: str) -> None:
        """Note that the claim is being released: the result of a preparation in progress will be discarded."""
        if uid in self._preparing:
            self._ended.add(uid)
            await self._store.end_epoch(uid)
            hit(Failpoint.EPOCH_ENDED)
            await self._forget(uid)
        elif self._claims.held_elsewhere(uid):  # the driver's other process may be preparing it
            await self._store.end_epoch(uid)
            hit(Failpoint.EPOCH_ENDED_ELSEWHERE)

    async def _forget(self, uid: str) -> None:
        if not self._preparing.get(uid):
            self._preparing.pop(uid, None)
            if uid in self._ended:
                self._ended.discard(uid)
                await self._store.forget_epoch(uid)
                hit(Failpoint.EPOCH_FORGOTTEN)

    async def forget_unneeded(self, alone: Callable[[], bool]) -> None:
        """Drop the epochs that only other processes needed, unless another process still runs.

        ``alone`` is called after the epochs are read.
        """
        epochs = self._store.epochs()
        if epochs and alone():
            self._ended |= epochs.keys() & self._preparing.keys()  # dropped when the preparation has finished
            if unneeded := [n for uid, n in epochs.items() if uid not in self._preparing]:
                await self._store.forget_epochs(unneeded)
