"""What is left of a driver on a node: watched until it is nothing."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dra_kit.errors import DraKitError
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import Store

logger: logging.Logger = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at the state, which is a file."""
_DATABASE: Final = "state.sqlite"
_OURS: Final = (_DATABASE, *(f"{_DATABASE}-{of}" for of in ("wal", "shm", "lock", "transactions")), "health.json")
_OUR_FOLDERS: Final = ("locks", "children", "device-metadata")
_AUTHORS: Final = "author"


class Remaining:
    """A part of the process: tells what is left, and when nothing is.

    Args:
        store: the records.
        title: what people read of an effect.
        ended: called once when nothing is left.
    """

    name = "remaining"

    def __init__(self, store: Store, title: Callable[[EffectRecord], str], ended: Callable[[], None]) -> None:
        self._store = store
        self._title = title
        self._ended = ended
        self._told: tuple[list[str], list[str]] | None = None

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        ready.set()
        while True:
            try:
                left = self.left()
            except DraKitError as error:  # a disk that does not work now is no reason to end
                logger.error("what is left is not known", extra={"error": str(error), "code": error.code})
            else:
                self._tell(*left)
                if left == ([], []):
                    self._ended()
                    await asyncio.Event().wait()
            await asyncio.sleep(LOOK_EVERY)

    def left(self) -> tuple[list[str], list[str]]:
        """Claims that are not released, and effects that no claim needs and that are not undone.

        Raises:
            StoreError: the state cannot be read.
        """
        claims = {*(record.reference for record in self._store.claims()), *self._store.lost(), *self._store.needing()}
        effects = [self._title(effect) for effect in self._store.effects() if not effect.claims]
        return sorted(map(str, claims)), effects

    def _tell(self, claims: list[str], effects: list[str]) -> None:
        if self._told == (claims, effects):
            return
        self._told = claims, effects
        if claims or effects:
            logger.info("left", extra={"claims": claims, "effects": effects})
        else:
            logger.info("nothing is left")


def remove_state(directory: Path) -> bool:
    """Remove the state of a driver that has ended: what the framework keeps there, and nothing else.

    Args:
        directory: of the durable state. Files of the author's own, and databases that were set aside, stay.

    Returns:
        Whether the directory is gone.

    Raises:
        OSError: something cannot be removed.
    """
    for name in _OURS:
        (directory / name).unlink(missing_ok=True)
    for name in _OUR_FOLDERS:
        if (directory / name).is_dir():
            shutil.rmtree(directory / name)
    for folder in (directory / _AUTHORS, directory):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return not directory.exists()
