"""The files that a claim's record stands for: its CDI spec, and the metadata that its containers can read."""

from __future__ import annotations

from dra_kit.cdi.names import DEVICE_RULE, spec_file_name, valid_device_name
from dra_kit.cdi.store import SpecStore
from dra_kit.errors import PermanentError
from dra_kit.node.files.metadata import MetadataFiles
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.steps import Step, reached


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
        reached(Step.FILES_WRITTEN)

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
