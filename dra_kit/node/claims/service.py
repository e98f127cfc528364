"""The node's answers to the kubelet: claims prepared and released, one at a time each, durably and repeatably."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dra_kit.author.driver import Driver
from dra_kit.author.prepared import DeviceMetadata, DeviceStatus
from dra_kit.author.preparer import Preparer
from dra_kit.errors import DraKitError
from dra_kit.node.calls.concurrency import Turns
from dra_kit.node.calls.deadlines import Calls, to_its_end
from dra_kit.node.calls.failures import told
from dra_kit.node.claims.exclusive import ExclusiveDevices
from dra_kit.node.claims.preparation import Preparation
from dra_kit.node.claims.reader import AllocatedClaim, ClaimReader, Getter
from dra_kit.node.claims.status import has_statuses, updated
from dra_kit.node.effects.engine import EffectEngine
from dra_kit.node.files.claim_files import ClaimFiles
from dra_kit.node.locks.named import Locks
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import Store
from dra_kit.node.steps import Step, reached
from dra_kit.node.waiting import in_thread
from dra_kit.plugin.service import PreparedDevice
from dra_kit.process.logging import log_context
from dra_kit.resource.reference import ClaimReference

logger = logging.getLogger(__name__)

Answer = Sequence[PreparedDevice]
Failed = Callable[[ClaimReference, DraKitError], None]
Prepared = Callable[[ClaimRecord], None]
Released = Callable[[str], None]


class ClaimService:
    """Implements :class:`dra_kit.plugin.service.NodeService`.

    Args:
        driver: whose claims these are.
        api: reads claims.
        store: the durable records.
        files: the CDI and metadata files of claims.
        preparation: runs the author's code.
        effects: undone when a claim is released.
        failed: told of each claim that could not be prepared, for Events.
        prepared: told of each claim that was prepared anew, for its status.
        resumed: told of each claim that was prepared before, for the same.
        released: told of the UID of each claim that was released.
        claims: the locks of all claims, by UID.
        locks: directory of further locks that hold across processes.
        deadline: seconds after which the kubelet is answered, whatever still runs.
    """

    def __init__(
        self,
        driver: Driver[Any, Any],
        *,
        api: Getter,
        store: Store,
        files: ClaimFiles,
        preparation: Preparation,
        effects: EffectEngine,
        failed: Failed,
        prepared: Prepared,
        resumed: Prepared,
        released: Released,
        claims: Locks,
        locks: Path,
        deadline: float,
    ) -> None:
        self._driver = driver
        self._reader = ClaimReader(api, driver.name)
        self._store = store
        self._files = files
        self._preparation = preparation
        self._effects = effects
        self._failed = failed
        self._prepared = prepared
        self._resumed = resumed
        self._released = released
        self._deadline = deadline
        self._calls = Calls(deadline)
        self._claims = claims
        self._exclusive = ExclusiveDevices(
            driver.name,
            api=api,
            store=store,
            claims=claims,
            devices=Locks(locks / "devices.lock"),
            release=self._release,
            release_lost=self._release_lost,
        )
        self._turns = Turns(driver.concurrency, Locks(locks / "calls.lock"))
        self._preparing: dict[str, int] = {}
        self._ended_epochs: set[str] = set()

    # -- what the kubelet calls

    async def prepare(self, claims: Sequence[ClaimReference]) -> dict[str, Sequence[PreparedDevice] | Exception]:
        """See :class:`dra_kit.plugin.service.NodeService`."""
        calls = [self._begin_prepare(claim) for claim in claims]
        return {claim.uid: await call for claim, call in zip(claims, calls, strict=True)}

    async def unprepare(self, claims: Sequence[ClaimReference]) -> dict[str, Exception | None]:
        """See :class:`dra_kit.plugin.service.NodeService`."""
        calls = [self._begin_unprepare(claim) for claim in claims]
        return {claim.uid: await call for claim, call in zip(claims, calls, strict=True)}

    def _begin_prepare(self, reference: ClaimReference, *, again: bool = False) -> asyncio.Future[Answer | Exception]:
        def failed(error: Exception) -> Exception:
            problem = self._told(error, "claim not prepared")
            self._failed(reference, problem)
            return problem

        with log_context(claim=str(reference), claim_uid=reference.uid):
            return self._calls.begin(self._prepare(reference, again=again), failed=failed, late=self._late)

    def prepare_again(self, reference: ClaimReference) -> asyncio.Future[Answer | Exception]:
        """Prepare a claim that the kubelet does not ask for, if it is prepared; an exception is an answer, too."""
        return self._begin_prepare(reference, again=True)

    def _begin_unprepare(self, reference: ClaimReference) -> asyncio.Future[Exception | None]:
        with log_context(claim=str(reference), claim_uid=reference.uid):
            late = f"not released within {self._deadline:g} s; what holds it up goes on; the kubelet tries again"
            return self._calls.begin(
                self._unprepare(reference),
                failed=lambda error: self._told(error, "claim not released"),
                late=lambda: late,
            )

    def _told(self, error: Exception, message: str) -> DraKitError:
        return told(error, message, module=type(self._driver.preparer).__module__, logger=logger)

    def _late(self) -> str:
        why = self._preparation.lacking() or "what is still running is rolled back when it ends"
        return f"not prepared within {self._deadline:g} s: {why}; the kubelet tries again"

    # -- prepare

    async def _prepare(self, reference: ClaimReference, *, again: bool) -> Answer:
        self._files.check(reference.uid)
        epoch = self._store.epoch()
        self._preparing[reference.uid] = self._preparing.get(reference.uid, 0) + 1
        try:
            async with self._claims.hold(reference.uid):
                if again and not self._is_prepared(reference.uid):
                    return []  # released meanwhile, and the kubelet has not asked for it
                # asked for when nothing else can happen to the claim here any more: never an older state than ours
                claim = await self._reader.fetch(reference)
                reached(Step.CLAIM_FETCHED)
                with log_context(pod=claim.pods):
                    answer = await self._prepare_alone(claim, epoch)
                reached(Step.PREPARED)
                return answer
        finally:
            self._preparing[reference.uid] -= 1
            await self._forget_epoch(reference.uid)

    def _is_prepared(self, uid: str) -> bool:
        record = self._store.claim(uid)
        return record is not None and record.phase == "prepared"

    async def _forget_epoch(self, uid: str) -> None:
        if not self._preparing.get(uid):
            self._preparing.pop(uid, None)
            if uid in self._ended_epochs:
                self._ended_epochs.discard(uid)
                await self._store.forget_epoch(uid)
                reached(Step.EPOCH_FORGOTTEN)

    async def forget_epochs(self, alone: Callable[[], bool]) -> None:
        """Drop the epochs that only other processes needed, if there is none; asked when the epochs are known."""
        epochs = self._store.epochs()
        if epochs and alone():
            self._ended_epochs |= epochs.keys() & self._preparing.keys()  # forgotten when that has ended
            if unneeded := [n for uid, n in epochs.items() if uid not in self._preparing]:
                await self._store.forget_epochs(unneeded)

    async def _prepare_alone(self, claim: AllocatedClaim, epoch: int) -> Answer:
        record = self._store.claim(claim.reference.uid)
        if record is not None and (record.phase == "releasing" or record.allocation != claim.allocation):
            await self._release(record)
            record = None
        if record is not None and self._preparation.is_current(record):
            self._preparation.check_device_nodes(record.spec)
            await self._write_files(record)
            if not has_statuses(claim.raw, self._driver.name, record):
                self._resumed(record)  # it may have been written since the claim was fetched
            return record.answer()
        async with (
            self._exclusive.kept_for(claim),
            self._turns.taken((result.pool, result.device) for result in claim.results),
        ):
            record = await self._prepare_anew(claim, epoch, before=record)
        return record.answer()

    async def _prepare_anew(self, claim: AllocatedClaim, epoch: int, *, before: ClaimRecord | None) -> ClaimRecord:
        if before is not None and self._preparation.is_of_this_boot(before) and self._store.effects_of(before.uid):
            # from now on these may make way for others, and then the record must not be answered from any more
            outdated = before.model_copy(update={"outdated": True})
            await self._store.put_claim(outdated, epoch=epoch, then=self._write_early)
        in_force = self._store.needs(claim.reference.uid)
        try:
            record = await self._preparation.prepare(claim, before)
            reached(Step.AUTHOR_RETURNED)
            await self._store.put_claim(record, epoch=epoch, then=self._write_early)
        except BaseException:
            # also when cancelled at the deadline: what was begun is undone before the claim's lock is given up
            stored = self._store.claim(claim.reference.uid)
            if stored is None or not self._preparation.is_of_this_boot(stored):
                await self._roll_back(claim.reference, in_force if stored is None else ())
            raise
        if not self._files.wrote(record):
            await self._write_files(record)
        logger.info(
            "claim prepared",
            extra={"devices": ",".join(f"{item.pool}/{item.device}" for item in record.devices)},
        )
        self._prepared(record)
        return record

    async def _roll_back(self, reference: ClaimReference, in_force: Collection[int]) -> None:
        """Undo what a failed preparation began; ``in_force`` are numbers of what the claim needed before it."""
        try:
            # of a claim whose record was lost or is damaged containers may run
            lost = self._store.has_claim(reference.uid) or self._store.may_lack_claims(self._files.uids())
            await self._effects.release(reference, keep=in_force if lost else ())
        except DraKitError as error:
            logger.warning("roll-back incomplete", extra={"error": str(error), "code": error.code})

    def _write_early(self, record: ClaimRecord) -> None:
        """Spares a hop to another thread; when it fails, the record is written all the same and it is tried again."""
        with suppress(DraKitError):
            self._files.write(record)

    async def _write_files(self, record: ClaimRecord) -> None:
        if not self._files.intact(record):
            await in_thread(self._files.write, record)

    # -- unprepare

    async def _unprepare(self, reference: ClaimReference) -> None:
        if reference.uid in self._preparing:
            self._ended_epochs.add(reference.uid)
            await self._store.end_epoch(reference.uid)
            reached(Step.EPOCH_ENDED)
            await self._forget_epoch(reference.uid)
        elif self._claims.held_elsewhere(reference.uid):  # the driver's other process may be preparing it
            await self._store.end_epoch(reference.uid)
            reached(Step.EPOCH_ENDED_ELSEWHERE)
        async with self._claims.hold(reference.uid):
            record = self._store.claim(reference.uid)
            if record is not None:
                await self._release(record)
                logger.info("claim released")
            elif self._store.has_claim(reference.uid) or self._store.misspelt(reference.uid):
                await self._release_lost(reference)
            else:
                await self._effects.release(reference)
                with suppress(DraKitError):  # files that no record stands for; the next start sweeps them
                    await in_thread(self._files.remove, reference.uid)

    async def release_orphan(self, record: ClaimRecord, still: Callable[[ClaimRecord], Awaitable[bool]]) -> None:
        """Release a claim that the kubelet will not release, if it still is so; what fails is told."""

        async def release(claim: ClaimReference) -> None:
            if self._store.claim(claim.uid) == record and await still(record):
                await self._release(record)
                logger.info("claim released")

        await self._see_to(record.reference, release, "orphan not released")

    async def release_lost(self, claim: ClaimReference, still: Callable[[ClaimReference], Awaitable[bool]]) -> None:
        """The same of a claim whose record was lost or is damaged."""

        async def release(claim: ClaimReference) -> None:
            if self._store.claim(claim.uid) is None and await still(claim):
                await self._release_lost(claim)

        await self._see_to(claim, release, "orphan not released")

    async def _release_lost(self, reference: ClaimReference) -> None:
        """Undo what is known of a claim without its record: its effects, its files, and the record if it is damaged."""
        await self._effects.release(reference)
        self._reader.forget(reference)
        self._released(reference.uid)
        await self._store.forget_claim(reference.uid, first=self._files.remove)
        logger.warning("claim released by its UID, effects and files, without its record")

    async def _see_to(self, claim: ClaimReference, work: Callable[[ClaimReference], Awaitable[None]], no: str) -> None:
        """Work for a claim that the kubelet has not asked for: what fails is told, what hangs holds up nothing else."""

        async def alone() -> None:
            async with self._claims.hold(claim.uid):
                await work(claim)

        with log_context(claim=str(claim), claim_uid=claim.uid):
            await self._in_time(alone(), no)

    async def _in_time(self, work: Coroutine[Any, Any, None], no: str) -> None:
        late = f"{no} within {self._deadline:g} s; what holds it up goes on"
        await self._calls.begin(work, failed=lambda error: self._told(error, no), late=lambda: late)

    async def _release(self, record: ClaimRecord) -> None:
        """Undo everything that a record stands for; the record goes last, so that a crash leaves it to be finished."""
        imperative = type(self._driver.preparer).unprepare is not Preparer.unprepare
        if imperative or self._store.needs(record.uid):
            async with self._turns.taken((item.pool, item.device) for item in record.devices):
                await self._store.begin_release(record.uid)
                reached(Step.RELEASE_BEGUN)
                await in_thread(self._files.remove, record.uid)
                await self._effects.release(record.reference)
                if imperative:
                    await self._preparation.started.wait()
                    await to_its_end(self._unprepare_and_forget(record))
                    return
        await self._forget(record)

    async def _unprepare_and_forget(self, record: ClaimRecord) -> None:
        await self._preparation.unprepare(record)
        reached(Step.AUTHOR_UNPREPARED)
        await self._forget(record)

    async def _forget(self, record: ClaimRecord) -> None:
        self._reader.forget(record.reference)
        self._released(record.uid)
        await self._store.forget_claim(record.uid, first=self._files.remove)
        reached(Step.CLAIM_FORGOTTEN)

    # -- facts that come later

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
                    await self._store.put_claim(record, epoch=self._store.epoch(), then=self._write_early)
                    self._prepared(record)
                    await self._write_files(record)
                return True

        # a claim that is being prepared is waited for: its record comes at the end; the others wait for none of that
        uids = {record.uid for record in self._store.claims()} | set(self._preparing)
        if not any(await asyncio.gather(*map(update, uids))):
            logger.warning(
                "facts of a device dropped: no claim is prepared with it", extra={"pool": pool, "device": device}
            )

    # -- the life of the process

    async def resume(self) -> None:
        """Finish what the last process left half done, and make missing files again."""
        for known in self._store.claims():
            await self._see_to(known.reference, self._resume, "claim not resumed")  # done when the kubelet asks
        if self._store.may_lack_claims(self._files.uids()):  # whoever needs them may be among what was lost
            kept = [str(effect.number) for effect in self._store.effects() if not effect.claims]
            kept += [claim.uid for claim in self._store.lost()]
            if kept:
                logger.warning("effects without a record of their claim are kept", extra={"kept": ",".join(kept)})
            return
        await self._in_time(self._effects.undo_unneeded(), "effects not undone")
        for reference in self._store.needing():
            await self._see_to(reference, self._undo_unrecorded, "effects not undone")

    async def _resume(self, reference: ClaimReference) -> None:
        record = self._store.claim(reference.uid)
        if record is not None and record.phase == "releasing":
            await self._release(record)
        elif record is not None and self._preparation.is_of_this_boot(record):
            await self._write_files(record)
            self._resumed(record)  # the last process may not have come to tell it

    async def _undo_unrecorded(self, reference: ClaimReference) -> None:
        # a claim whose files are kept has lost its record: its containers may run
        if not self._store.has_claim(reference.uid) and reference.uid not in self._files.uids():
            await self._effects.release(reference)

    async def drain(self, grace: float) -> None:
        """Wait for what runs, at most ``grace`` seconds, then give up on it."""
        await self._calls.drain(grace)
