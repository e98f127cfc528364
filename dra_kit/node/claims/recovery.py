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


class ClaimRecovery:
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


class LeftoverSweeper:
    """A part of the node process: finds out whose work is over, and removes what it left.

    Args:
        driver: the driver's name.
        kubelet_dir: the kubelet's root directory.
        processes: those of the driver on this node.
        strays: files that no record stands for.
        epochs: of claims.
        unasked: finishes what was begun.
        process_ended: called when another process has ended, in order or not.
        every: seconds between two looks; a look lists one directory.
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
        self._others = 0  # other processes at the last look
        self._killed = False  # a process was killed, and what it had begun has not been finished yet
        self._logged = ""

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once; the author's code may be called."""
        ready.set()
        self._killed = False  # before the start, which has just finished what was left
        others = self._others  # when this process began
        while True:
            try:
                before, others = others, self._look()
                if self._killed or others < before:
                    self._process_ended()
                if self._killed or (before and not others):
                    await self.sweep()
                elif not others:  # one may have come and gone between two looks
                    await self._epochs.forget_unneeded(self._alone)
                if self._killed:  # what it had begun without the kubelet, nobody asks for again
                    await self._unasked.resume()
                    self._killed = False
                self._logged = ""
            except DraKitError as error:  # a disk that does not work now is no reason to end
                self._report(error)
            await asyncio.sleep(self._every)

    def _report(self, error: DraKitError) -> None:
        if str(error) != self._logged:
            logger.error("leftovers not looked for", extra={"error": str(error), "code": error.code})
        self._logged = str(error)

    async def sweep(self) -> None:
        """Remove what nobody needs any more; a leftover that stays is no reason not to serve, or not to end."""
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
        """Return how many other processes are there."""
        removed, self._others = self._processes.sweep()
        self._killed = self._killed or removed > 0
        return self._others
