"""The files of a database: whether the open files are still the ones that the next process would open."""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

from dra_kit.errors import StoreError

_LOG: Final = "-wal"
_NEW: Final = ".new-"
_PATIENCE: Final = 30.0  # seconds; the same as sqlite's for its own locks
_PAUSE: Final = 0.005
_LEVELS: Final = 2  # plugins/<driver> in the kubelet's directory
_FileId = tuple[int, int]


class DatabaseFiles(Struct, frozen=True):
    """Device and inode of a database and of its write-ahead log; None for a file that does not exist."""

    database: _FileId | None
    log: _FileId | None

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the files that exist now; an OSError means that this is unknown."""
        name = str(path)
        return cls(_file_id(name), _file_id(name + _LOG))

    def is_at(self, path: Path) -> bool:
        """Return whether exactly these files exist now; optimized, since every read calls it. Raises as :meth:`of`."""
        name = str(path)
        try:
            database, log = os.stat(name), os.stat(name + _LOG)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return self == DatabaseFiles.of(path)
        return (database.st_dev, database.st_ino) == self.database and (log.st_dev, log.st_ino) == self.log

    def has_log(self, file: int) -> bool:
        """Return whether an open file is the log."""
        return _identity(os.fstat(file)) == self.log


def _file_id(path: str) -> _FileId | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - called many times a second
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _identity(status)


def _identity(status: os.stat_result) -> _FileId:
    return status.st_dev, status.st_ino


class RenameGuard:
    """Controls when the database at ``path`` may be renamed: not while a process opens it or is in a transaction.

    It uses a flock(2) lock on a file next to the database. Taking it raises a StoreError if that takes too long, and an
    OSError if the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}-lock")
        self._name = str(self._path)
        self._file: int | None = None

    def close(self) -> None:
        """Close the lock file; the guard must not be used afterwards."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def shared(self) -> _HeldGuard:
        """Hold a shared lock (``with``): meanwhile no process gives the name to another file."""
        return _HeldGuard(self, fcntl.LOCK_SH)

    def exclusive(self) -> _HeldGuard:
        """Hold an exclusive lock (``with``): meanwhile this process alone may give the name to another file."""
        return _HeldGuard(self, fcntl.LOCK_EX)

    def lock(self, kind: int) -> int:
        """Take the lock of this kind; return the file to unlock."""
        until = time.monotonic() + _PATIENCE
        while (file := self._try(kind)) is None:
            if time.monotonic() > until:
                raise StoreError(
                    f"lock {self._path} cannot be taken: another process has held it for {_PATIENCE:g} s; look for a "
                    "process of the driver that hangs on this node"
                )
            time.sleep(_PAUSE)
        return file

    def _try(self, kind: int) -> int | None:
        file = self._file = open_lock_file(self._name, _LEVELS) if self._file is None else self._file
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(self._name), os.fstat(file)):  # noqa: PTH116 - with each transaction
                return file
        except (FileNotFoundError, NotADirectoryError):
            pass
        except BlockingIOError:
            return None
        except BaseException:
            self.close()
            raise
        self.close()  # it was removed, and other processes lock a new one
        return None


class _HeldGuard:
    """One use of a :class:`RenameGuard`; a class, not a generator, for speed."""

    __slots__ = ("_file", "_guard", "_kind")

    def __init__(self, guard: RenameGuard, kind: int) -> None:
        self._guard = guard
        self._kind = kind

    def __enter__(self) -> None:
        self._file = self._guard.lock(self._kind)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)


def open_lock_file(path: str, levels: int) -> int:
    """Open a lock file, and create it first if needed, with its directory as :func:`recreate_directory` does."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:  # the directory was removed
        recreate_directory(Path(path).parent, levels)
        return os.open(path, flags, 0o600)


def recreate_directory(directory: Path, levels: int) -> None:
    """Create a missing directory and its missing parents, at most ``levels`` directories.

    Higher directories do not belong to the driver. If the kubelet's own directory is gone, the node is gone too.

    Raises:
        FileNotFoundError: more directories than that are missing.
    """
    try:
        directory.mkdir(mode=0o750, exist_ok=True)
    except FileNotFoundError:
        if levels == 1:
            raise
        recreate_directory(directory.parent, levels - 1)
        directory.mkdir(mode=0o750, exist_ok=True)


def logs(path: Path) -> list[Path]:
    """Return the files that sqlite creates beside a database while it is open."""
    return [path.with_name(f"{path.name}{suffix}") for suffix in (_LOG, "-shm")]


def copy_database(database: sqlite3.Connection, path: Path) -> Path:
    """Write the content of an open database durably to a new file beside ``path``; return the new file.

    Raises:
        OSError, sqlite3.Error: it cannot be written; nothing of it is left.
    """
    recreate_directory(path.parent, _LEVELS)
    new = path.with_name(f"{path.name}{_NEW}{secrets.token_hex(4)}")
    new.touch(mode=0o600, exist_ok=False)
    try:
        with closing(sqlite3.connect(new)) as target:
            database.backup(target)
        sync(new)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return new


def remove_unfinished(path: Path) -> None:
    """Remove unfinished copies of killed processes; no copy may be in progress."""
    for new in path.parent.glob(f"{path.name}{_NEW}*"):
        new.unlink(missing_ok=True)


def publish_file(new: Path, path: Path) -> None:
    """Give a new file its name, durably, unless the name is taken by now; ``new`` is gone in any case.

    Raises:
        FileExistsError: another process was faster.
        OSError: the directory cannot be written.
    """
    try:
        path.hardlink_to(new)
    finally:
        new.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
