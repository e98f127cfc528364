"""A claim's record made durable, and after it the files that are derived from it."""

from __future__ import annotations

from contextlib import suppress

from dra_kit.errors import DraKitError
from dra_kit.node.files.claim_files import ClaimFiles
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import Store
from dra_kit.node.steps import Step, reached
from dra_kit.node.waiting import in_thread


class DurableClaims:
    """What outlives the process; the lock of the claim is held by the caller.

    Attributes:
        store: the records.
        files: the CDI and metadata files of claims.
    """

    def __init__(self, store: Store, files: ClaimFiles) -> None:
        self.store = store
        self.files = files

    async def put(self, record: ClaimRecord, *, epoch: int) -> None:
        """Store a record; its files may be written then, and :meth:`make_files` sees to that.

        Raises:
            TransientError: when the claim was released since ``epoch`` was read; nothing is stored then.
        """
        await self.store.put_claim(record, epoch=epoch, then=self._write_early)

    def _write_early(self, record: ClaimRecord) -> None:
        """Spares a hop to another thread; when it fails, the record is written all the same and it is tried again."""
        reached(Step.CLAIM_STORED)
        with suppress(DraKitError):
            self.files.write(record)

    async def make_files(self, record: ClaimRecord) -> None:
        """See to it that the files of a stored record are there.

        Raises:
            StoreError: when a directory cannot be written.
        """
        if not self.files.intact(record):
            await in_thread(self.files.write, record)
