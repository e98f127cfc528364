"""What is left of a driver on a node: watched until it is nothing."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from dra_kit.errors import DraKitError
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import Store
from dra_kit.plugin.kubelet_checkpoint import KubeletCheckpoint
from dra_kit.publishing.publisher import Publisher

logger: logging.Logger = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at the state, which is a file."""
_DATABASE: Final = "state.sqlite"
_BESIDE_IT: Final = (*(f"{_DATABASE}-{of}" for of in ("lock", "transactions")), "health.json")
_LOGS: Final = tuple(f"{_DATABASE}-{of}" for of in ("wal", "shm"))
_UNFINISHED: Final = tuple(f"{_DATABASE}.{of}-*" for of in ("new", "rebuilt"))
_OUR_FOLDERS: Final = ("locks", "children", "device-metadata")
_AUTHORS: Final = "author"


class Left(Struct, frozen=True):
    """What is left of a driver; nothing by default.

    Attributes:
        claims: that are not released, and those that the kubelet will ask for still: it may not have had an answer.
        effects: that no claim needs, and that are not undone.
        slices: are to be withdrawn still, and that has not failed. What stays, the kubelet removes 30 s after it has
            lost the driver (``wipingDelay`` of its DRA manager).
    """

    claims: list[str] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    slices: bool = False


class Remaining:
    """A part of the process: tells what is left, and when nothing is.

    Args:
        driver: whose end it is.
        store: the records.
        checkpoint: the claims that the kubelet knows.
        publisher: withdraws the devices.
        title: what people read of an effect.
        all_known: whether effects without a record were looked for: before that, there may be more than is recorded.
        ended: called once when nothing is left.
    """

    name = "remaining"

    def __init__(
        self,
        driver: str,
        store: Store,
        checkpoint: KubeletCheckpoint,
        publisher: Publisher,
        *,
        title: Callable[[EffectRecord], str],
        all_known: Callable[[], bool],
        ended: Callable[[], None],
    ) -> None:
        self._driver = driver
        self._store = store
        self._checkpoint = checkpoint
        self._publisher = publisher
        self._title = title
        self._all_known = all_known
        self._ended = ended
        self._logged: Left | None = None

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        ready.set()
        while True:
            try:
                left = self.left()
            except DraKitError as error:  # a disk that does not work now is no reason to end
                logger.error("what is left is not known", extra={"error": str(error), "code": error.code})
            else:
                if left != Left():
                    self._log(left)
                elif self._all_known():
                    logger.info("nothing is left")
                    self._ended()
                    await asyncio.Event().wait()
            await asyncio.sleep(LOOK_EVERY)

    def left(self) -> Left:
        """Return what is left now.

        Raises:
            StoreError: the state cannot be read.
        """
        store = self._store
        claims = {*(record.reference for record in store.claims()), *store.lost(), *store.needing()}
        claims |= self._checkpoint.claims(self._driver)
        effects = [self._title(effect) for effect in store.effects() if not effect.claims]
        slices = not (self._publisher.is_up_to_date or self._publisher.last_error)
        return Left(sorted(set(map(str, claims))), effects, slices=slices)

    def _log(self, left: Left) -> None:
        if self._logged == left:
            return
        self._logged = left
        logger.info("left", extra={"claims": left.claims, "effects": left.effects, "slices": left.slices})


def has_ended(directory: Path) -> bool:
    """Whether a driver's state is removed already: its directory is gone, or has only what :func:`remove_state` leaves.

    A directory in a place that does not exist, or with other things in it, was never that of a driver.

    Args:
        directory: of the durable state.
    """
    if not directory.exists():
        return directory.parent.is_dir()
    return directory.is_dir() and all(
        path.name == _AUTHORS or path.name.startswith(f"{_DATABASE}.damaged-") for path in directory.iterdir()
    )


def is_emptied(directory: Path) -> bool:
    """Whether nothing is in the directory of a driver's state any more: who removed it was killed just before the end.

    Args:
        directory: of the durable state.
    """
    return directory.is_dir() and not [path for path in directory.rglob("*") if path != directory / _AUTHORS]


def remove_state(directory: Path) -> bool:
    """Remove the state of a driver that has ended: what the framework keeps there, and nothing else.

    The database goes last: after a crash it tells the next undertaker that there is something to remove. Without it,
    what it had beside it would tell the driver's next release that its state was lost.

    Args:
        directory: of the durable state. Files of the author's own, and databases that were set aside, stay.

    Returns:
        Whether the directory is gone.

    Raises:
        OSError: something cannot be removed.
    """
    for name in _OUR_FOLDERS:
        if (directory / name).is_dir():
            shutil.rmtree(directory / name)
    unfinished = (path.name for pattern in _UNFINISHED for path in directory.glob(pattern))
    for name in (*unfinished, *_BESIDE_IT, _DATABASE, *_LOGS):
        (directory / name).unlink(missing_ok=True)
    for folder in (directory / _AUTHORS, directory):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return not directory.exists()
