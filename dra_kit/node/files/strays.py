"""Files that no record stands for: leftovers of a process that was killed, or of claims whose records were lost."""

from __future__ import annotations

import logging

from dra_kit.errors import DraKitError
from dra_kit.node.files.claim_files import ClaimFiles
from dra_kit.node.locks.named import Locks
from dra_kit.node.state.store import Store

logger: logging.Logger = logging.getLogger(__name__)


class StrayFiles:
    """Removes them, unless records may have been lost.

    Args:
        store: the records.
        files: the CDI and metadata files of claims.
        claims: the locks of all claims.
    """

    def __init__(self, store: Store, files: ClaimFiles, claims: Locks) -> None:
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
