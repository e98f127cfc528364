"""Locks by name that hold across the processes of a rolling update."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import struct
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dra_kit.errors import StoreError
from dra_kit.node.place import make_again

_FIRST_WAIT: Final = 0.002  # seconds until another process's lock is tried again, doubled up to the last
_LAST_WAIT: Final = 0.05
_LEVELS: Final = 3  # plugins/<driver>/locks in the kubelet's directory
_FLOCK: Final = struct.Struct("hhqqi0q")  # struct flock with 64 bits: type, whence, start, length, process


@dataclass(slots=True)
class _Lock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    ours: bool = False  # the file is locked by this process, in the place of the name


class Locks:
    """One lock for each name: first come first served within a process, one process at a time among several.

    Other processes are kept out by fcntl(2) open file description locks: each name has one byte of the file for its
    own, which need not exist. The kernel gives such a lock up with the process that holds it, however that ends. A
    file for each name would cost a claim more than all its reads of the database: directories are slow to change.

    Args:
        file: on a local file system; made, with its directory, when missing, and left there.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._path = str(file)  # opened for each claim
        self._locks: dict[str, _Lock] = {}

    def hold(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Hold the lock of that name, waiting for it as long as it takes.

        Raises:
            StoreError: when the file cannot be made.
        """
        return self._holding(name, wait=True)

    def try_hold(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Hold the lock of that name if nobody else does, here or in another process; gives whether it is held.

        Raises:
            StoreError: when the file cannot be made.
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
                byte = _byte(name)
                descriptor, pause = self._try_lock(byte), _FIRST_WAIT
                while descriptor is None and wait:
                    await asyncio.sleep(pause)
                    descriptor, pause = self._try_lock(byte), min(pause * 2, _LAST_WAIT)
                entry.ours = descriptor is not None
                try:
                    yield entry.ours
                finally:
                    entry.ours = False
                    if descriptor is not None:
                        self._unlock(descriptor, byte)
        finally:
            entry.users -= 1
            if not entry.users:
                self._locks.pop(name, None)

    def held_elsewhere(self, name: str) -> bool:
        """Whether another process holds that lock now.

        Raises:
            StoreError: when the file cannot be made.
        """
        if name in self._locks and self._locks[name].ours:
            return False
        # only asked for: whoever tries to have it in the same moment finds it free
        descriptor = self._open()
        try:
            found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, _byte(name)))
        except OSError as error:
            raise self._store_error(error) from error
        finally:
            os.close(descriptor)
        kind, *_ = _FLOCK.unpack(found)
        return bool(kind != fcntl.F_UNLCK)

    def _try_lock(self, byte: int) -> int | None:
        """A descriptor that holds the lock, None when another one holds it."""
        descriptor = self._open()
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, byte))
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError | PermissionError):  # EAGAIN or EACCES: POSIX allows both
                return None
            raise self._store_error(error) from error
        return descriptor

    def _unlock(self, descriptor: int, byte: int) -> None:
        # closing is not enough: a process that the author's code forked meanwhile has the same descriptor
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, byte))
        os.close(descriptor)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            try:
                return os.open(self._path, flags, 0o600)
            except FileNotFoundError:
                make_again(self._file.parent, _LEVELS)
                return os.open(self._path, flags, 0o600)
        except OSError as error:
            raise self._store_error(error) from error

    def _store_error(self, error: OSError) -> StoreError:
        return StoreError(
            f"lock {self._file} cannot be taken: {error}; check that the disk is writable and not full (--state-dir)"
        )


def _byte(name: str) -> int:
    """The name's byte; 62 bits keep any two names apart."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


def _flock(kind: int, byte: int) -> bytes:
    """``struct flock``."""
    return _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)
