"""What is left of a driver on a node: watched until it is nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct, field, to_builtins

from dra_kit.errors import DraKitError
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import Store
from dra_kit.node.undertaking.confirmation import Confirmation
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
        processes: others of the driver run on this node, and might write state again.
        slices: are to be withdrawn still, and that has not failed. What stays, the kubelet removes 30 s after it has
            lost the driver (``wipingDelay`` of its DRA manager).
    """

    claims: list[str] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    slices: bool = False
    processes: bool = False

    def __str__(self) -> str:
        parts = [
            f"{what} {', '.join(names)}"
            for what, names in (("claims", self.claims), ("effects", self.effects))
            if names
        ]
        parts += ["its slices"] if self.slices else []
        parts += ["another process of the driver"] if self.processes else []
        return f"left: {'; '.join(parts)}" if parts else "nothing is left"


class Remaining:
    """A part of the process: tells what is left, and when nothing is.

    Args:
        driver: whose end it is.
        store: the records.
        checkpoint: the claims that the kubelet knows.
        publisher: withdraws the devices.
        title: what people read of an effect.
        all_known: whether effects without a record were looked for: before that, there may be more than is recorded.
        others: whether other processes of the driver that must be gone first run on this node.
        confirmation: gets what is left; None where nothing waits for it.
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
        others: Callable[[], bool],
        confirmation: Confirmation | None,
        ended: Callable[[], None],
    ) -> None:
        self._driver = driver
        self._store = store
        self._checkpoint = checkpoint
        self._publisher = publisher
        self._title = title
        self._all_known = all_known
        self._others = others
        self._confirmation = confirmation
        self._ended = ended
        self._logged: Left | None = None

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        ready.set()
        writing = None if self._confirmation is None else asyncio.create_task(self._confirmation.run())
        try:
            await self._watch()
        finally:
            if writing is not None:
                writing.cancel()

    async def _watch(self) -> None:
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
        return Left(sorted(set(map(str, claims))), effects, slices=slices, processes=self._others())

    def _log(self, left: Left) -> None:
        if self._logged == left:
            return
        self._logged = left
        logger.info("left", extra=to_builtins(left))
        if self._confirmation is not None:
            self._confirmation.set(False, str(left))


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


def remove_state(directory: Path) -> list[str]:
    """Remove the state of a driver that has ended: what the framework keeps there, and nothing else.

    The database goes last: after a crash it tells the next undertaker that there is something to remove. Without it,
    what it had beside it would tell the driver's next release that its state was lost. The directory goes with it,
    unless it is a mount point: then it is empty.

    Args:
        directory: of the durable state. Files of the author's own, and databases that were set aside, stay.

    Returns:
        The names of what stays.

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
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []
