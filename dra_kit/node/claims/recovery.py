"""Claims that the kubelet does not ask for: unfinished work, orphans, and leftovers of a killed process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.errors import DraKitError, NotFound
from dra_kit.kubelet.checkpoint import KubeletCheckpoint
from dra_kit.kubelet.sockets import remove_stale_sockets
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.events import ClaimEvents, log_failure
from dra_kit.node.claims.files import ClaimWriter, StrayFileSweeper
from dra_kit.node.claims.preparer_runner import PreparerRunner
from dra_kit.node.claims.reader import ClaimApi, ClaimReader, is_over, still_holds
from dra_kit.node.claims.release import ClaimReleaser, PrepareEpochs
from dra_kit.node.deadlines import DeadlineRunner
from dra_kit.node.locks import NamedLocks
from dra_kit.node.processes import DriverProcesses
from dra_kit.node.state.records import UNKNOWN_BOOT, ClaimRecord
from dra_kit.node.state.store import StateStore
from dra_kit.process.logging import log_context

logger: logging.Logger = logging.getLogger(__name__)


class OrphanReleaser:
    """A part of the node process that releases orphaned claims.

    Args:
        driver: the driver's name.
        api: reads claims.
        store: the records.
        unasked: releases orphans.
        checkpoint: the claims that the kubelet will release itself.
        after: seconds between two checks, and from the first check that finds a claim gone to its release.
        clock: returns monotonic seconds.
    """

    name = "orphans"

    def __init__(
        self,
        driver: str,
        api: ClaimApi,
        store: StateStore,
        unasked: ClaimRecovery,
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
        """Check every recorded claim with one GET each, and release those that are due."""
        try:
            records, lost = self._store.claims(), self._store.lost()
        except DraKitError as error:  # a failing disk must not stop the process
            logger.error("orphaned claims not searched for", extra={"error": str(error), "code": error.code})
            return
        known = {*(record.reference for record in records), *lost}
        self._seen_gone = {claim: since for claim, since in self._seen_gone.items() if claim in known}
        for record in records:
            if self._is_due(record.reference, await self._is_orphan(record)):
                await self._release(record)
        for claim in lost:
            if self._is_due(claim, await self._is_gone(claim)):
                with log_context(claim=str(claim), claim_uid=claim.uid):
                    logger.warning("orphaned claim without a record found, releasing it")
                    await self._unasked.release_lost(claim, self._is_still_gone)

    def _is_due(self, claim: ClaimReference, gone: bool | None) -> bool:
        """Return whether a claim has been gone for long enough, at two checks, and the kubelet does not list it."""
        if gone is False:
            self._seen_gone.pop(claim, None)
        if not gone:
            return False
        since = self._seen_gone.setdefault(claim, self._clock())
        return self._clock() - since >= self._after and claim.uid not in self._checkpoint.pods()

    async def _is_orphan(self, record: ClaimRecord) -> bool | None:
        """Return whether the API server reports that the claim is over; None if it does not answer."""
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, record.name, record.namespace)
        except NotFound:
            return True
        except DraKitError:
            return None
        return not all(still_holds(raw, record.uid, self._driver, item.pool, item.device) for item in record.devices)

    async def _is_gone(self, claim: ClaimReference) -> bool | None:
        """Return the same for a claim without a record, whose devices are unknown."""
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
            logger.warning("orphaned claim found, releasing it")
            # if the release fails, the next check finds the claim again
            await self._unasked.release_orphan(record, self._is_still_orphan)


class ClaimRecovery:
    """Finishes the unfinished work of the last process, and releases claims that the kubelet will not release.

    Args:
        preparation: knows the boot and the driver's code.
        reader: knows whether a claim is over.
        releases: releases claims.
        durable: records and files of claims.
        claims: the locks of all claims.
        calls: the work in progress.
        news: notified of claims that are still prepared as before.
    """

    def __init__(
        self,
        preparation: PreparerRunner,
        reader: ClaimReader,
        releases: ClaimReleaser,
        durable: ClaimWriter,
        *,
        claims: NamedLocks,
        calls: DeadlineRunner,
        news: ClaimEvents,
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
        """Finish the unfinished work of the last process, and restore missing files."""
        for known in self._store.claims():
            await self._see_to(known.reference, self._resume, "claim not resumed")  # retried when the kubelet asks
        if self._store.may_lack_claims(self._files.uids()):  # the claims that need them may be among the lost ones
            unclaimed = [str(effect.number) for effect in self._store.effects() if not effect.claims]
            unclaimed += [claim.uid for claim in self._store.lost()]
            if unclaimed:
                logger.warning(
                    "effects without a record of their claim not undone", extra={"kept": ",".join(unclaimed)}
                )
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
            self._news.resumed.notify(record)  # the last process may not have reported it

    async def _undo_unrecorded(self, reference: ClaimReference) -> None:
        # a claim without a record whose files still exist has lost its record: its containers may run
        if self._store.has_claim(reference.uid) or reference.uid in self._files.uids():
            return
        begun = [item for item in self._store.effects_of(reference.uid) if item.phase != "reverting"]
        over = await self._reader.is_over(reference)
        # effects of an allocated claim are kept: the kubelet asks again, and they are further on by then. Effects that
        # were found without a record are kept too, since containers may use them, until the kubelet, or two orphan
        # checks, show that none does
        keep = {item.number for item in begun if not over or item.boot_id == UNKNOWN_BOOT}
        await self._preparation.effects.undoing.release(reference, keep=keep)

    async def release_orphan(self, record: ClaimRecord, still: Callable[[ClaimRecord], Awaitable[bool]]) -> None:
        """Release a claim that the kubelet will not release, if ``still`` confirms it; report failures."""

        async def release(claim: ClaimReference) -> None:
            if self._store.claim(claim.uid) == record and await still(record):
                await self._releases.of_record(record)
                logger.info("claim released")

        await self._see_to(record.reference, release, "orphan not released")

    async def release_lost(self, claim: ClaimReference, still: Callable[[ClaimReference], Awaitable[bool]]) -> None:
        """Do the same for a claim whose record is lost or corrupt."""

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

        late = f"{no} within {self._calls.deadline:g} s; the work continues"
        await self._calls.begin(work, failed=failed, late=lambda: late)


class LeftoverSweeper:
    """A part of the node process: finds processes of the driver that have stopped, and removes what they left.

    Args:
        driver: the driver's name.
        kubelet_dir: the kubelet's root directory.
        processes: the driver's processes on this node.
        strays: files that have no record.
        epochs: of claims.
        unasked: finishes unfinished work.
        process_ended: called when another process has stopped, cleanly or not.
        every: seconds between two checks; a check lists one directory.
    """

    name = "leftovers"

    def __init__(
        self,
        driver: str,
        kubelet_dir: Path,
        processes: DriverProcesses,
        strays: StrayFileSweeper,
        *,
        epochs: PrepareEpochs,
        unasked: ClaimRecovery,
        process_ended: Callable[[], None],
        every: float,
    ) -> None:
        self._driver = driver
        self._kubelet_dir = kubelet_dir
        self._processes = processes
        self._epochs = epochs
        self._unasked = unasked
        self._strays = strays
        self._process_ended = process_ended
        self._every = every
        self._others = 0  # number of other processes at the last check
        self._killed = False  # a process was killed, and its work is not finished yet
        self._logged = ""

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once; the author's code may be called."""
        ready.set()
        self._killed = False  # killed before the start, which has just finished that work
        others = self._others  # at the start of this process
        while True:
            try:
                before, others = others, self._look()
                if self._killed or others < before:
                    self._process_ended()
                if self._killed or (before and not others):
                    await self.sweep()
                elif not others:  # one may have started and stopped between two checks
                    await self._epochs.forget_unneeded(self._alone)
                if self._killed:  # the kubelet does not ask again for what it had begun itself
                    await self._unasked.resume()
                    self._killed = False
                self._logged = ""
            except DraKitError as error:  # a failing disk must not stop the process
                self._report(error)
            await asyncio.sleep(self._every)

    def _report(self, error: DraKitError) -> None:
        if str(error) != self._logged:
            logger.error("leftovers not searched for", extra={"error": str(error), "code": error.code})
        self._logged = str(error)

    async def sweep(self) -> None:
        """Remove leftovers, best effort.

        A leftover that cannot be removed keeps the driver neither from serving nor from stopping.
        """
        alone = False
        try:
            alone = self._alone()
            await self._epochs.forget_unneeded(self._alone)
        except DraKitError as error:
            self._report(error)
        try:
            for path in remove_stale_sockets(self._kubelet_dir, self._driver, alone=alone):
                logger.info("stale socket removed", extra={"path": str(path)})
        except OSError as error:
            logger.error("stale sockets not removed", extra={"error": str(error)})
        await self._strays.sweep()

    def _alone(self) -> bool:
        return not self._look()

    def _look(self) -> int:
        """Return the number of other processes of the driver."""
        removed, self._others = self._processes.sweep()
        self._killed = self._killed or removed > 0
        return self._others
