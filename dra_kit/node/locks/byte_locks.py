"""Locks by name between processes: a byte of one file for each name."""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_kit.errors import StoreError
from dra_kit.node.state.sqlite.place import make_again

_LEVELS: Final = 3  # plugins/<driver>/locks in the kubelet's directory
_FLOCK: Final = struct.Struct("hhqqi0q")  # struct flock with 64 bits: type, whence, start, length, process


class ByteLocks:
    """fcntl(2) open file description locks: each name has one byte of the file for its own, which need not exist.

    The kernel gives such a lock up with the process that holds it, however that ends. A file for each name would cost a
    claim more than all its reads of the database: directories are slow to change.

    Args:
        file: on a local file system; made, with its directory, when missing, and left there.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._path = str(file)  # opened for each claim

    def take(self, name: str) -> int | None:
        """Take the lock; return what :meth:`give_up` needs, or None when another process, or another use here, has it.

        Raises:
            StoreError: when the file cannot be made.
        """
        descriptor = self._open()
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, name))
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError | PermissionError):  # EAGAIN or EACCES: POSIX allows both
                return None
            raise self._store_error(error) from error
        return descriptor

    def give_up(self, taken: int) -> None:
        """Let others have the lock."""
        # closing is not enough: a process that the author's code forked meanwhile has the same descriptor; and that
        # code may have closed it, as some libraries do that become daemons, and the lock with it
        with suppress(OSError):
            fcntl.fcntl(taken, fcntl.F_OFD_SETLK, _EVERYTHING)
        with suppress(OSError):
            os.close(taken)

    def is_taken(self, name: str) -> bool:
        """Return whether somebody has the lock now.

        Raises:
            StoreError: when the file cannot be made.
        """
        # only asked for: whoever tries to have it in the same moment finds it free
        descriptor = self._open()
        try:
            found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, name))
        except OSError as error:
            raise self._store_error(error) from error
        finally:
            os.close(descriptor)
        kind, *_ = _FLOCK.unpack(found)
        return bool(kind != fcntl.F_UNLCK)

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


def _flock(kind: int, name: str) -> bytes:
    """Return ``struct flock`` of the byte of a name; 62 bits distinguish any two names."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return _FLOCK.pack(kind, os.SEEK_SET, int.from_bytes(digest, "little") >> 2, 1, 0)


_EVERYTHING: Final = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)  # a length of 0: to the end
