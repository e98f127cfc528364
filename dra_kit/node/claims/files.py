"""The files of claims: written after the record, restored if removed, deleted if no record exists for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dra_kit.errors import DraKitError, PermanentError
from dra_kit.kubelet.cdi.spec import DEVICE_RULE, valid_device_name
from dra_kit.kubelet.cdi.store import SpecStore, spec_file_name
from dra_kit.node.claims.guard import HookGuard
from dra_kit.node.claims.metadata import MetadataFiles
from dra_kit.node.deadlines import run_in_thread_to_completion
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.locks import NamedLocks
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import StateStore
from dra_kit.process.logging import log_context
from dra_kit.process.tracing import span

logger: logging.Logger = logging.getLogger(__name__)


class FileRepair:
    """A part of the node process: restores the files of prepared claims that another process has removed or changed.

    It also retries files that could not be written after ``context.update``: the kubelet does not ask for them again.

    Claims of an earlier boot are prepared again when the kubelet asks. Every ``every`` seconds the directories are
    checked, which costs one stat each if they are unchanged.
    """

    name = "file-repair"

    def __init__(
        self,
        directories: Sequence[Path],
        store: StateStore,
        files: ClaimFiles,
        claims: NamedLocks,
        *,
        boot_id: str,
        every: float,
    ) -> None:
        self._directories = tuple(directories)
        self._store = store
        self._files = files
        self._claims = claims
        self._boot_id = boot_id
        self._every = every
        self._seen: list[tuple[int, int] | None] = []

    def look_again(self) -> None:
        """Check again after another process has stopped, which may not have written the files of its claims."""
        self._seen = []

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once; also finishes what the last process left."""
        ready.set()
        while True:
            found = [_state(item) for item in self._directories]
            if found != self._seen or self._files.unwritten():
                self._seen = found
                if not await self._repair_all():
                    self._seen = []
            await asyncio.sleep(self._every)

    async def _repair_all(self) -> bool:
        """Return whether everything succeeded; otherwise the next check tries again."""
        failures: list[DraKitError] = []
        unwritten = self._files.unwritten()
        try:
            prepared = [record for record in self._store.claims() if record.is_in_force(self._boot_id)]
            self._files.give_up(unwritten - {record.uid for record in prepared})
            missing = [record for record in prepared if not self._files.intact(record)]
        except DraKitError as error:  # the state cannot be read at the moment
            missing, failures = [], [error]
        for record in missing:
            try:
                with log_context(claim=str(record.reference), claim_uid=record.uid):
                    await self._repair(record)
            except DraKitError as error:
                failures.append(error)
        for text, code in {str(error): error.code for error in failures}.items():
            logger.error("files of claims not restored", extra={"error": text, "code": code})
        return not failures

    async def _repair(self, known: ClaimRecord) -> None:
        async with self._claims.try_hold(known.uid) as alone:  # otherwise the holder of the lock writes them
            record = self._store.claim(known.uid) if alone else None
            if record is None or not record.is_in_force(self._boot_id) or self._files.intact(record):
                return
            if record.spec is not None and not self._files.exist(record.uid):
                logger.warning("files were removed by another program, restoring them")
            await run_in_thread_to_completion(self._files.write, record)


def _state(directory: Path) -> tuple[int, int] | None:
    """Return a value that changes whenever a file is added to or removed from the directory."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


class ClaimFiles:
    """The CDI specs and metadata files of claims, derived from the records.

    The methods block, and raise a StoreError if a directory cannot be read or written.

    Args:
        cdi: the directory of CDI specs.
        metadata: the directory of metadata.
        former_guard: of claims that a release with pod hooks has prepared; None for a driver that has some.
    """

    def __init__(self, cdi: SpecStore, metadata: MetadataFiles, former_guard: HookGuard | None = None) -> None:
        self._cdi = cdi
        self._metadata = metadata
        self._former_guard = former_guard
        self._written: dict[str, ClaimRecord] = {}
        self._unwritten: set[str] = set()

    def write(self, record: ClaimRecord) -> None:
        """Write the files of a record; the CDI spec comes last, since it refers to the others."""
        self._unwritten.add(record.uid)
        self._metadata.write(record)
        if (spec := record.spec) is not None:
            guard = self._former_guard
            self._cdi.write(record.uid, spec if guard is None else guard.lifted(spec))
        self._written[record.uid] = record
        self._unwritten.discard(record.uid)
        hit(Failpoint.FILES_WRITTEN)

    def wrote(self, record: ClaimRecord) -> bool:
        """Return whether the last call of :meth:`write` was for exactly this record, and succeeded."""
        return self._written.get(record.uid) is record

    def unwritten(self) -> set[str]:
        """Return the UIDs of claims whose last write has failed or is in progress."""
        return set(self._unwritten)

    def give_up(self, uids: set[str]) -> None:
        """Stop tracking the files of claims that need none: they are released, or were prepared before this boot."""
        self._unwritten -= uids

    def intact(self, record: ClaimRecord) -> bool:
        """Return whether the files belong to exactly this record and are unchanged, judging by their attributes."""
        known = self._written.get(record.uid)  # the driver's other process may have stored another record meanwhile
        if known is None or (known is not record and known != record) or record.uid in self._unwritten:
            return False
        self._written[record.uid] = record
        return (record.spec is None or self._cdi.intact(record.uid)) and self._metadata.intact(record)

    def check(self, uid: str) -> None:
        """Check that a claim can have files, before anything is done for it.

        Raises:
            PermanentError: its UID cannot be part of a file name or of a CDI name (code ``invalid-claim-uid``).
        """
        spec_file_name(self._cdi.driver, uid)
        if not valid_device_name(uid):
            raise PermanentError(
                f"claim UID {uid!r} cannot be part of a CDI name: {DEVICE_RULE}; no API server creates such a "
                "UID, check what has created or restored the claim",
                code="invalid-claim-uid",
            )

    def remove(self, uid: str) -> None:
        """Remove the files of a claim, if any; a UID that is not a valid file name has none."""
        self._written.pop(uid, None)
        self._unwritten.discard(uid)
        try:
            self._cdi.remove(uid)
        except PermanentError:
            return
        self._metadata.remove(uid)

    def exist(self, uid: str) -> bool:
        """Return whether a claim has files, whatever their content."""
        return self._cdi.exists(uid) or self._metadata.exists(uid)

    def uids(self) -> set[str]:
        """Return the UIDs of the claims that have files."""
        return self._cdi.uids() | self._metadata.uids()

    def remove_temporary(self) -> None:
        """Remove the temporary files of a process that was killed while it wrote."""
        self._cdi.sweep(None)


class ClaimWriter:
    """Writes the record and the files of a claim; the caller holds the lock of the claim."""

    def __init__(self, store: StateStore, files: ClaimFiles) -> None:
        self.store = store
        self.files = files

    async def put(
        self, record: ClaimRecord, *, epoch: int, outcomes: Mapping[int, str | None] | None = None
    ) -> ClaimRecord:
        """Store a record, and possibly write its files already; :meth:`make_files` ensures that they are written.

        See :meth:`dra_kit.node.state.store.StateStore.put_claim` for arguments, result and errors.
        """
        with span("store claim"):
            return await self.store.put_claim(record, epoch=epoch, then=self._write_early, outcomes=outcomes)

    def _write_early(self, record: ClaimRecord) -> None:
        """Write the files early, in the writer's thread; if that fails, :meth:`make_files` writes them later."""
        hit(Failpoint.CLAIM_STORED)
        with suppress(DraKitError):
            self.files.write(record)

    async def make_files(self, record: ClaimRecord) -> None:
        """Ensure that the files of a stored record exist.

        Raises:
            StoreError: a directory cannot be written.
        """
        if not self.files.intact(record):
            await run_in_thread_to_completion(self.files.write, record)


class StrayFileSweeper:
    """Removes files that have no record, unless records may have been lost."""

    def __init__(self, store: StateStore, files: ClaimFiles, claims: NamedLocks) -> None:
        self._store = store
        self._files = files
        self._claims = claims

    async def sweep(self) -> None:
        """Remove files that have no record; a file that cannot be removed does not keep the driver from serving."""
        try:
            uids = self._files.uids()
            strays = [uid for uid in uids if not self._store.has_claim(uid)]
            may_be_needed = not await self._store.explained(uids)  # checked last: another process may salvage meanwhile
            for uid in strays:
                if may_be_needed:  # running containers may need them; a release removes them
                    logger.warning("files without a record not removed", extra={"claim_uid": uid})
                else:
                    await self._remove(uid)
            self._files.remove_temporary()
        except DraKitError as error:
            logger.error("files of released claims not removed", extra={"error": str(error), "code": error.code})

    async def _remove(self, uid: str) -> None:
        async with self._claims.try_hold(uid) as alone:
            # the driver's other process may be preparing it now: it writes the record first, then the files
            if alone and not self._store.has_claim(uid):
                self._files.remove(uid)
