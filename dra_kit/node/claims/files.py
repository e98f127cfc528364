"""Files of prepared claims that somebody removes: a container that starts again needs them before anybody asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from dra_kit.errors import DraKitError
from dra_kit.node.files.claim_files import ClaimFiles
from dra_kit.node.locks.named import Locks
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import Store
from dra_kit.node.waiting import in_thread
from dra_kit.process.logging import log_context

logger: logging.Logger = logging.getLogger(__name__)


class Mending:
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
        store: Store,
        files: ClaimFiles,
        claims: Locks,
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
            await in_thread(self._files.write, record)


def _state(directory: Path) -> tuple[int, int] | None:
    """Return what changes with every file that comes or goes."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
