"""A claim's record made durable, and after it the files that are derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from dra_kit.errors import DraKitError
from dra_kit.node.files.claim_files import ClaimFiles
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import Store
from dra_kit.node.steps import Step, reached
from dra_kit.node.waiting import in_thread
from dra_kit.process.tracing import span


class DurableClaims:
    """What outlives the process; the lock of the claim is held by the caller.

    Attributes:
        store: the records.
        files: the CDI and metadata files of claims.
    """

    def __init__(self, store: Store, files: ClaimFiles) -> None:
        self.store = store
        self.files = files

    async def begin(self, record: ClaimRecord, *, epoch: int) -> None:
        """Store that a claim is being prepared, before anything is done for it that a release has to undo.

        Raises:
            TransientError: when the claim was released since ``epoch`` was read; nothing is stored then.
        """
        await self.store.put_claim(record, epoch=epoch, then=lambda _: reached(Step.CLAIM_BEGUN))

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
