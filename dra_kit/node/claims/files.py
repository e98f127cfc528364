"""A claim's record, then its files: written, repaired when they are removed, deleted when no record stands for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dra_kit.errors import DraKitError, PermanentError
from dra_kit.kubelet.cdi.spec import DEVICE_RULE, valid_device_name
from dra_kit.kubelet.cdi.store import SpecStore, spec_file_name
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
    """A part of the node process: makes the files of prepared claims again that somebody has removed or changed.

    Also those that could not be written when something became known of a device later, which nobody asks for again.

    Args:
        directories: where the files of claims are.
        store: the records.
        files: what the records stand for.
        claims: the locks of all claims.
        boot_id: of this boot; what was prepared before it is prepared again when the kubelet asks.
        every: seconds between two looks; a look at directories that have not changed costs a stat of each.
    """

    name = "mending"

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
        """Look again after the end of another process, which may not have written the files of its claims."""
        self._seen = []

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once; what the last process left is finished."""
        ready.set()
        while True:
            found = [_state(item) for item in self._directories]
            if found != self._seen or self._files.unwritten():
                self._seen = found
                if not await self._mend_all():
                    self._seen = []
            await asyncio.sleep(self._every)

    async def _mend_all(self) -> bool:
        """Return whether all went well; else it is tried again at the next look."""
        failures: list[DraKitError] = []
        unwritten = self._files.unwritten()
        try:
            prepared = [record for record in self._store.claims() if self._is_in_force(record)]
            self._files.give_up(unwritten - {record.uid for record in prepared})
            missing = [record for record in prepared if not self._files.intact(record)]
        except DraKitError as error:  # the state cannot be read now
            missing, failures = [], [error]
        for record in missing:
            try:
                with log_context(claim=str(record.reference), claim_uid=record.uid):
                    await self._mend(record)
            except DraKitError as error:
                failures.append(error)
        for text, code in {str(error): error.code for error in failures}.items():
            logger.error("files of claims not made again", extra={"error": text, "code": code})
        return not failures

    def _is_in_force(self, record: ClaimRecord) -> bool:
        return record.phase == "prepared" and record.boot_id == self._boot_id

    async def _mend(self, known: ClaimRecord) -> None:
        async with self._claims.try_hold(known.uid) as alone:  # else its owner sees to them
            record = self._store.claim(known.uid) if alone else None
            if record is None or not self._is_in_force(record):
                return
            if self._files.intact(record):
                return
            if record.spec is not None and record.uid not in self._files.uids():
                logger.warning("files were removed by somebody else, they are made again")
            await run_in_thread_to_completion(self._files.write, record)


def _state(directory: Path) -> tuple[int, int] | None:
    """Return what changes with every file that comes or goes."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


class ClaimFiles:
    """Derived data: made again from the record whenever they are missing. The methods block.

    Args:
        cdi: the directory of CDI specs.
        metadata: the directory of metadata files.
    """

    def __init__(self, cdi: SpecStore, metadata: MetadataFiles) -> None:
        self._cdi = cdi
        self._metadata = metadata
        self._written: dict[str, ClaimRecord] = {}
        self._unwritten: set[str] = set()

    def write(self, record: ClaimRecord) -> None:
        """Make the files agree with the record; the CDI spec last, since it points to the others.

        Raises:
            StoreError: when a directory cannot be written.
        """
        self._unwritten.add(record.uid)
        self._metadata.write(record)
        if record.spec is not None:
            self._cdi.write(record.uid, record.spec)
        self._written[record.uid] = record
        self._unwritten.discard(record.uid)
        hit(Failpoint.FILES_WRITTEN)

    def wrote(self, record: ClaimRecord) -> bool:
        """Return whether :meth:`write` was called with this very record last, and did not fail."""
        return self._written.get(record.uid) is record

    def unwritten(self) -> set[str]:
        """Return UIDs of claims whose last write has failed, or is under way."""
        return set(self._unwritten)

    def give_up(self, uids: set[str]) -> None:
        """Give up the files of claims that need none now: they are released, or were prepared before this boot."""
        self._unwritten -= uids

    def intact(self, record: ClaimRecord) -> bool:
        """Return whether the files are of this very record and unchanged, as far as their attributes show."""
        known = self._written.get(record.uid)  # the driver's other process may have stored another record since
        if known is None or (known is not record and known != record) or record.uid in self._unwritten:
            return False
        self._written[record.uid] = record
        return (record.spec is None or self._cdi.intact(record.uid)) and self._metadata.intact(record)

    def check(self, uid: str) -> None:
        """See to it that a claim can have files, before anything is done for it.

        Raises:
            PermanentError: its UID is no part of a file name or of a CDI name (code ``invalid-claim-uid``).
        """
        spec_file_name(self._cdi.driver, uid)
        if not valid_device_name(uid):
            raise PermanentError(
                f"claim UID {uid!r} cannot be part of a CDI name: {DEVICE_RULE}; API servers make no such UIDs, look "
                "at what has created or restored the claim",
                code="invalid-claim-uid",
            )

    def remove(self, uid: str) -> None:
        """Remove the files of a claim; none is fine, and one whose UID is no file name has none.

        Raises:
            StoreError: when a directory cannot be written.
        """
        self._written.pop(uid, None)
        self._unwritten.discard(uid)
        try:
            self._cdi.path(uid)
        except PermanentError:
            return
        self._cdi.remove(uid)
        self._metadata.remove(uid)

    def uids(self) -> set[str]:
        """Return UIDs of the claims that have files."""
        return self._cdi.uids() | self._metadata.uids()

    def remove_temporary(self) -> None:
        """Remove what a process left that was killed while it wrote.

        Raises:
            StoreError: when a directory cannot be written.
        """
        self._cdi.sweep(None)


class ClaimWriter:
    """What outlives the process; the lock of the claim is held by the caller.

    Attributes:
        store: the records.
        files: the CDI and metadata files of claims.
    """

    def __init__(self, store: StateStore, files: ClaimFiles) -> None:
        self.store = store
        self.files = files

    async def begin(self, record: ClaimRecord, *, epoch: int) -> None:
        """Store that a claim is being prepared, before anything is done for it that a release has to undo.

        Raises:
            TransientError: when the claim was released since ``epoch`` was read; nothing is stored then.
        """
        await self.store.put_claim(record, epoch=epoch, then=lambda _: hit(Failpoint.CLAIM_BEGUN))

    async def put(
        self, record: ClaimRecord, *, epoch: int, outcomes: Mapping[int, str | None] | None = None
    ) -> ClaimRecord:
        """Store a record; its files may be written then, and :meth:`make_files` sees to that.

        Args:
            record: of the claim.
            epoch: read before its preparation began.
            outcomes: of the effects that it was prepared with, by their numbers.

        Returns:
            The record as it is stored: outdated where an effect has another outcome by now.

        Raises:
            TransientError: when the claim was released since ``epoch`` was read; nothing is stored then.
        """
        with span("store claim"):
            return await self.store.put_claim(record, epoch=epoch, then=self._write_early, outcomes=outcomes)

    def _write_early(self, record: ClaimRecord) -> None:
        """Write the files early, in the same thread; when that fails, the record is written, and then the files."""
        hit(Failpoint.CLAIM_STORED)
        with suppress(DraKitError):
            self.files.write(record)

    async def make_files(self, record: ClaimRecord) -> None:
        """See to it that the files of a stored record are there.

        Raises:
            StoreError: when a directory cannot be written.
        """
        if not self.files.intact(record):
            await run_in_thread_to_completion(self.files.write, record)


class StrayFileSweeper:
    """Removes them, unless records may have been lost.

    Args:
        store: the records.
        files: the CDI and metadata files of claims.
        claims: the locks of all claims.
    """

    def __init__(self, store: StateStore, files: ClaimFiles, claims: NamedLocks) -> None:
        self._store = store
        self._files = files
        self._claims = claims

    async def sweep(self) -> None:
        """Remove files that no record stands for; a leftover that stays is no reason not to serve."""
        try:
            uids = self._files.uids()
            strays = [uid for uid in uids if not self._store.has_claim(uid)]
            lacking = not await self._store.explained(uids)  # asked last: another process may salvage meanwhile
            for uid in strays:
                if lacking:  # running containers may need them; they go when the kubelet releases it
                    logger.warning("files without a record are kept", extra={"claim_uid": uid})
                else:
                    await self._remove(uid)
            self._files.remove_temporary()
        except DraKitError as error:
            logger.error("files of released claims not removed", extra={"error": str(error), "code": error.code})

    async def _remove(self, uid: str) -> None:
        async with self._claims.try_hold(uid) as alone:
            # the driver's other process may be preparing it now: record first, then the files
            if alone and not self._store.has_claim(uid):
                self._files.remove(uid)
