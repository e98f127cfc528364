"""Files of prepared claims that somebody removes: a container that starts again needs them before anybody asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dra_kit.errors import DraKitError
from dra_kit.node.service import ClaimService

logger = logging.getLogger(__name__)

LOOK_EVERY: Final = 5.0
"""Seconds between two looks; a look at directories that have not changed costs a stat of each."""


class Mending:
    """A part of the node process.

    Args:
        directories: where the files of claims are.
        service: makes them again.
    """

    name = "mending"

    def __init__(self, directories: Sequence[Path], service: ClaimService) -> None:
        self._directories = tuple(directories)
        self._service = service

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once; what the last process left is finished."""
        ready.set()
        seen: list[tuple[int, int] | None] = []
        while True:
            found = [_state(item) for item in self._directories]
            if found != seen:
                try:
                    await self._service.mend()
                    seen = found
                except DraKitError as error:  # tried again at the next look
                    logger.error("files of claims not made again", extra={"error": str(error), "code": error.code})
            await asyncio.sleep(LOOK_EVERY)


def _state(directory: Path) -> tuple[int, int] | None:
    """What changes with every file that comes or goes."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
