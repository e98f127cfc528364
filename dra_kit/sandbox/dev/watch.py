"""Files of a driver, watched for changes.

It polls. inotify would need a separate watch for every folder outside the virtual environment, and it does not report
changes on network file systems or in folders mounted into WSL or containers.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
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
        without: a file that is never watched, because this process writes it.
    """

    def __init__(
        self,
        folders: Iterable[Path],
        files: Iterable[Path] = (),
        *,
        without: Path | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = tuple(folders)
        self._files = tuple(files)
        self._without = without and without.absolute()
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
        return {path: seen for path, seen in found.items() if path.absolute() != self._without}

    async def changes(self) -> AsyncIterator[Sequence[Path]]:
        """Yield the files that were created, changed or removed since the last call, however long ago that was."""
        while True:
            begin = self._clock()
            present = self.look()
            if present != self._known:
                present = await self._settled(present)
                changed = [path for path in {**self._known, **present} if self._known.get(path) != present.get(path)]
                self._known = present
                changed = await asyncio.to_thread(self._without_ignored, changed)
                if changed:
                    yield sorted(changed)
                begin = self._clock()
            await self._sleep(max(_INTERVAL, (self._clock() - begin) * _SHARE))

    def _without_ignored(self, changed: Sequence[Path]) -> list[Path]:
        """Return the files that git does not ignore; those that are named are never ignored."""
        named = {path for path in changed if path in self._files or path.parent in self._files}
        ignored: set[Path] = set()
        for folder in self._folders:
            ignored |= ignored_by_git(folder, [path for path in changed if folder in path.parents])
        return [path for path in changed if path in named or path not in ignored]

    async def _settled(self, present: Snapshot) -> Snapshot:
        end = self._clock() + _SETTLE_MAX
        while self._clock() < end:
            await self._sleep(_SETTLE)
            before, present = present, self.look()
            if before == present:
                break
        return present


def ignored_by_git(folder: Path, files: Sequence[Path]) -> set[Path]:
    """Return which files in a folder git ignores; in a folder of no repository, the files in ``.gitignore``.

    Without git, none are ignored.
    """
    git = shutil.which("git")
    if not files or git is None:
        return set()
    repository = _check_ignore(git, folder, files)
    if repository is not None:
        return repository
    with tempfile.TemporaryDirectory() as empty:
        subprocess.run([git, "init", "--quiet", "--bare", empty], capture_output=True, check=False)
        return _check_ignore(git, folder, files, f"--git-dir={empty}", "--work-tree=.") or set()


def _check_ignore(git: str, folder: Path, files: Sequence[Path], *options: str) -> set[Path] | None:
    """Return what git answers; None if it cannot answer."""
    names = {os.path.relpath(path, folder): path for path in files}
    run = subprocess.run(
        [git, "-c", "core.fsmonitor=false", *options, "check-ignore", "-z", "--stdin"],
        cwd=folder,
        input="\0".join(names).encode(errors="surrogateescape"),
        capture_output=True,
        check=False,
    )
    answers = run.stdout.decode(errors="surrogateescape").split("\0")
    return {names[name] for name in answers if name in names} if run.returncode in {0, 1} else None


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
