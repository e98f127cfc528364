"""Claims that the kubelet does not ask for: unfinished work, orphans, and leftovers of a killed process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from dra_kit.client.informer import jittered
from dra_kit.errors import DraKitError
from dra_kit.kubelet.device_use import KubeletCheckpoint
from dra_kit.kubelet.sockets import remove_stale_sockets
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.events import ClaimEvents, log_failure
from dra_kit.node.claims.files import ClaimWriter, StrayFileSweeper
from dra_kit.node.claims.preparer_runner import PreparerRunner
from dra_kit.node.claims.reader import ClaimReader
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

    ``after`` are the seconds between two checks, and from the first check that finds a claim gone to its release.
    """

    name = "orphans"

    def __init__(
        self,
        store: StateStore,
        recovery: ClaimRecovery,
        *,
        checkpoint: KubeletCheckpoint,
        after: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._recovery = recovery
        self._checkpoint = checkpoint
        self._after = after
        self._clock = clock
        self._seen_gone: dict[ClaimReference, float] = {}

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        ready.set()
        while True:
            await self.look()
            await asyncio.sleep(jittered(self._after, 0.1))

    async def look(self) -> None:
        """Check every recorded claim that the kubelet does not list with one GET each, and release those that are due.

        Where the kubelet's list can be read, claims of running pods cost no request: their GETs are most of what idle
        nodes of a large cluster send.
        """
        try:
            claims: dict[ClaimReference, ClaimRecord | None] = {item.reference: item for item in self._store.claims()}
            claims |= dict.fromkeys(self._store.lost())
        except DraKitError as error:  # a failing disk must not stop the process
            logger.error("orphaned claims not searched for", extra={"error": str(error), "code": error.code})
            return
        listed = self._checkpoint.pods()
        self._seen_gone = {
            claim: since for claim, since in self._seen_gone.items() if claim in claims and claim.uid not in listed
        }
        for claim, record in claims.items():
            if claim.uid not in listed and self._is_due(claim, await self._recovery.is_over(claim, record)):
                with log_context(claim=str(claim), claim_uid=claim.uid):
                    logger.warning("orphaned claim found, releasing it")
                    # if the release fails, the next check finds the claim again
                    await self._recovery.release_orphan(claim, record, lambda uid: uid not in self._checkpoint.pods())

    def _is_due(self, claim: ClaimReference, gone: bool | None) -> bool:
        """Return whether a claim has been gone for long enough, at two checks."""
        if gone is False:
            self._seen_gone.pop(claim, None)
        if not gone:
            return False
        since = self._seen_gone.setdefault(claim, self._clock())
        return self._clock() - since >= self._after


class ClaimRecovery:
    """Finishes the unfinished work of the last process, and releases claims that the kubelet will not release."""

    def __init__(
        self,
        runner: PreparerRunner,
        reader: ClaimReader,
        releaser: ClaimReleaser,
        writer: ClaimWriter,
        *,
        claims: NamedLocks,
        calls: DeadlineRunner,
        events: ClaimEvents,
    ) -> None:
        self._runner = runner
        self._reader = reader
        self._releaser = releaser
        self._writer = writer
        self._store = writer.store
        self._files = writer.files
        self._claims = claims
        self._calls = calls
        self._events = events

    async def resume(self) -> None:
        """Finish the unfinished work of the last process, and restore missing files."""
        for known in self._store.claims():
            await self._run_locked(known.reference, self._resume, "claim not resumed")  # retried when the kubelet asks
        if self._store.may_lack_claims(self._files.uids()):  # the claims that need them may be among the lost ones
            unclaimed = [str(effect.number) for effect in self._store.effects() if not effect.claims]
            unclaimed += [claim.uid for claim in self._store.lost()]
            if unclaimed:
                logger.warning(
                    "effects without a record of their claim not undone", extra={"kept": ",".join(unclaimed)}
                )
            return
        await self._run_in_time(self._runner.effects.reverter.undo_unneeded(), "effects not undone")
        for reference in self._store.needing():
            await self._run_locked(reference, self._undo_unrecorded, "effects not undone")

    async def _resume(self, reference: ClaimReference) -> None:
        record = self._store.claim(reference.uid)
        if record is not None and record.phase == "releasing":
            await self._releaser.release_record(record)
        elif record is not None and self._runner.is_of_this_boot(record):
            await self._writer.make_files(record)
            self._events.resumed.notify(record)  # the last process may not have reported it

    async def _undo_unrecorded(self, reference: ClaimReference) -> None:
        # a claim without a record whose files still exist has lost its record: its containers may run
        if self._store.has_claim(reference.uid) or reference.uid in self._files.uids():
            return
        begun = [item for item in self._store.effects_of(reference.uid) if item.phase != "reverting"]
        over = await self.is_over(reference, None)
        # effects of an allocated claim are kept: the kubelet asks again, and they are further on by then. Effects that
        # were found without a record are kept too, since containers may use them, until the kubelet, or two orphan
        # checks, show that none does
        keep = {item.number for item in begun if not over or item.boot_id == UNKNOWN_BOOT}
        await self._runner.effects.reverter.release(reference, keep=keep)

    async def is_over(self, claim: ClaimReference, record: ClaimRecord | None) -> bool | None:
        """Return whether a claim no longer exists or lacks a recorded device; None if the API server does not answer.

        The devices of a claim without a record are unknown: any device of the driver counts.
        """
        return await self._reader.is_over(
            claim, [(item.pool, item.device) for item in record.devices] if record else ()
        )

    async def release_orphan(
        self, claim: ClaimReference, record: ClaimRecord | None, confirm: Callable[[str], bool]
    ) -> None:
        """Release a claim that the kubelet will not release, if that is still so, and report failures.

        ``record`` is None if that is lost or corrupt. ``confirm`` returns whether the kubelet still does not list the
        claim with this UID.
        """

        async def release(_: ClaimReference) -> None:
            unchanged = self._store.claim(claim.uid) == record
            if not unchanged or not await self.is_over(claim, record) or not confirm(claim.uid):
                return
            if record is None:
                await self._releaser.release_without_record(claim)
            else:
                await self._releaser.release_record(record)
                logger.info("claim released")

        await self._run_locked(claim, release, "orphan not released")

    async def _run_locked(
        self, claim: ClaimReference, work: Callable[[ClaimReference], Awaitable[None]], no: str
    ) -> None:
        async def alone() -> None:
            async with self._claims.hold(claim.uid):
                await work(claim)

        with log_context(claim=str(claim), claim_uid=claim.uid):
            await self._run_in_time(alone(), no)

    async def _run_in_time(self, work: Coroutine[Any, Any, None], no: str) -> None:
        def failed(error: Exception) -> None:
            log_failure(error, no, module=type(self._runner.driver.preparer).__module__, logger=logger)

        late = f"{no} within {self._calls.deadline:g} s; the work continues"
        await self._calls.begin(work, failed=failed, late=lambda: late)


class LeftoverSweeper:
    """A part of the node process: finds processes of the driver that have stopped, and removes what they left.

    Every ``every`` seconds it lists one directory. It calls ``process_ended`` when another process has stopped.
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
        recovery: ClaimRecovery,
        process_ended: Callable[[], None],
        every: float,
    ) -> None:
        self._driver = driver
        self._kubelet_dir = kubelet_dir
        self._processes = processes
        self._epochs = epochs
        self._recovery = recovery
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
                    await self._recovery.resume()
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
            fields = {"path": str(error.filename or self._kubelet_dir), "error": error.strerror}
            logger.error("stale sockets not removed", extra=fields)
        await self._strays.sweep()

    def _alone(self) -> bool:
        return not self._look()

    def _look(self) -> int:
        """Return the number of other processes of the driver."""
        removed, self._others = self._processes.sweep()
        self._killed = self._killed or removed > 0
        return self._others
