"""Locks by name that hold across the processes of a rolling update, and exist only while they are needed."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from dra_kit.errors import StoreError

_FIRST_WAIT: Final = 0.002  # seconds until another process's lock is tried again, doubled up to the last
_LAST_WAIT: Final = 0.05
_SUFFIX: Final = ".lock"
_NAME_LIMIT: Final = 200  # of a file name's 255 bytes


@dataclass(slots=True)
class _Lock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    ours: bool = False  # the file is locked by this process


class Locks:
    """One lock for each name: first come first served within a process, one process at a time among several.

    Other processes are kept out by flock(2) on a file for each name. The kernel gives such a lock up with the process
    that holds it, however that ends; the file is removed by its holder, and a leftover one harms nobody.

    Args:
        directory: of the lock files, on a local file system; made when missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._locks: dict[str, _Lock] = {}

    def hold(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Hold the lock of that name, waiting for it as long as it takes.

        Raises:
            StoreError: when the lock file cannot be made.
        """
        return self._holding(name, wait=True)

    def try_hold(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Hold the lock of that name if nobody else does, here or in another process; gives whether it is held.

        Raises:
            StoreError: when the lock file cannot be made.
        """
        return self._holding(name, wait=False)

    @asynccontextmanager
    async def _holding(self, name: str, *, wait: bool) -> AsyncIterator[bool]:
        if not wait and name in self._locks:
            yield False
            return
        entry = self._locks.setdefault(name, _Lock())
        entry.users += 1
        try:
            async with entry.lock:
                path = self._path(name)
                file, pause = self._try_file(path), _FIRST_WAIT
                while file is None and wait:
                    await asyncio.sleep(pause)
                    file, pause = self._try_file(path), min(pause * 2, _LAST_WAIT)
                entry.ours = file is not None
                try:
                    yield entry.ours
                finally:
                    entry.ours = False
                    if file is not None:
                        _free(path, file)
        finally:
            entry.users -= 1
            if not entry.users:
                self._locks.pop(name, None)

    def held_elsewhere(self, name: str) -> bool:
        """Whether another process holds that lock now."""
        if name in self._locks and self._locks[name].ours:
            return False
        path = self._path(name)
        file = self._try_file(path)
        if file is not None:
            _free(path, file)
        return file is None

    def sweep(self) -> tuple[int, int]:
        """Remove the files of processes that were killed.

        Returns:
            How many files were removed, and how many locks other processes hold now.

        Raises:
            StoreError: when a lock file cannot be opened.
        """
        ours = {self._path(name) for name in self._locks}
        removed = held = 0
        for path in set(self._directory.glob(f"*{_SUFFIX}")) - ours:
            file = self._try_file(path)
            if file is None:
                held += 1
            else:
                _free(path, file)
                removed += 1
        return removed, held

    def _path(self, name: str) -> Path:
        text = quote(name, safe="")
        short = text if len(text) <= _NAME_LIMIT else hashlib.sha256(name.encode()).hexdigest()
        return self._directory / f"{short}{_SUFFIX}"  # also what is "." or ".." has a file

    def _try_file(self, path: Path) -> int | None:
        """The locked file's descriptor, None when another process has it."""
        try:
            while True:
                file = self._open(path)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(file)
                    return None
                if _is(file, path):
                    return file
                os.close(file)  # its holder removed it between our open and our lock
        except OSError as error:
            raise StoreError(
                f"lock {path} cannot be taken: {error}; check that the disk is writable and not full (--state-dir)"
            ) from error

    def _open(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            return os.open(path, flags, 0o600)


def _free(path: Path, file: int) -> None:
    try:
        if _is(file, path):  # else the directory was removed under us, and made again by others
            path.unlink(missing_ok=True)
    except OSError:
        pass  # the file stays; it locks nothing once it is closed
    finally:
        os.close(file)


def _is(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
