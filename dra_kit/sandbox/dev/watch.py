"""Files of a driver, watched for changes.

It polls. inotify would need a separate watch for every folder outside the virtual environment, and it does not report
changes on network file systems or in folders mounted into WSL or containers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

_INTERVAL: Final = 0.2
"""Seconds between two looks."""
_SHARE: Final = 20  # a look that takes long is rare: one part in so many of the time
_SETTLE: Final = 0.05
"""Seconds without a change after which several changes are complete: editors save several files."""
_SETTLE_MAX: Final = 1.0
_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "build", "dist", "tests", "stories", "docs"})
_VIRTUAL_ENVIRONMENT: Final = "pyvenv.cfg"
_SUFFIXES: Final = (".pyc", ".pyo", ".md", ".rst", ".log", ".lock", ".tmp", ".swp", ".swx", ".bak", ".orig", "~")
"""Suffixes of files that do not belong to a driver."""
Identity: TypeAlias = tuple[int, int, int]
"""Time of the last change, size and inode: an editor writes a new file and renames it."""
Snapshot: TypeAlias = Mapping[Path, Identity]


class FileWatcher:
    """Polls files for changes.

    Args:
        folders: folders to watch recursively.
        files: files to watch, with any name; folders among them are not watched recursively.
    """

    def __init__(
        self,
        folders: Iterable[Path],
        files: Iterable[Path] = (),
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = tuple(folders)
        self._files = tuple(files)
        self._sleep = sleep
        self._clock = clock
        self._known = self.look()

    def look(self) -> Snapshot:
        """Return all files as they are."""
        found: dict[Path, Identity] = {}
        for folder in self._folders:
            found.update(_below(folder))
        for path in self._files:
            found.update(_plain(path) if path.is_dir() else _one(path))
        return found

    async def changes(self) -> AsyncIterator[Sequence[Path]]:
        """Yield the files that were created, changed or removed since the last call, however long ago that was."""
        while True:
            begin = self._clock()
            present = self.look()
            if present != self._known:
                present = await self._settled(present)
                changed = [path for path in {**self._known, **present} if self._known.get(path) != present.get(path)]
                self._known = present
                if changed:
                    yield sorted(changed)
                begin = self._clock()
            await self._sleep(max(_INTERVAL, (self._clock() - begin) * _SHARE))

    async def _settled(self, present: Snapshot) -> Snapshot:
        end = self._clock() + _SETTLE_MAX
        while self._clock() < end:
            await self._sleep(_SETTLE)
            before, present = present, self.look()
            if before == present:
                break
        return present


def _below(folder: Path) -> Iterator[tuple[Path, Identity]]:
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if _is_own(Path(top, name))]
        for name in names:
            if not name.startswith((".", "#")) and not name.endswith(_SUFFIXES) and name != "4913":  # vim's probe
                yield from _one(Path(top, name))


def _is_own(folder: Path) -> bool:
    """Return whether a folder is the author's."""
    name = folder.name
    if name.startswith(".") or name in _FOLDERS or name.endswith(".egg-info"):
        return False
    return not (folder / _VIRTUAL_ENVIRONMENT).exists()


def _plain(folder: Path) -> Iterator[tuple[Path, Identity]]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
    except OSError:
        return
    for name in names:
        if not name.startswith(".") and not name.endswith(_SUFFIXES):
            yield from _one(folder / name)


def _one(path: Path) -> Iterator[tuple[Path, Identity]]:
    try:
        status = path.stat()
    except OSError:  # gone at this moment, or a link to nothing
        return
    yield path, (status.st_mtime_ns, status.st_size, status.st_ino)
