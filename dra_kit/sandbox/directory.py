"""The directory of a sandbox, where everything it writes lies; whatever ends the sandbox, it does not stay for ever."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "dra-"
_LOCK: Final = "lock"
_LONGEST_BASE: Final = 24  # bytes of TMPDIR: names of nodes, drivers and sockets come behind, 107 in all


@contextmanager
def sandbox_directory() -> Iterator[Path]:
    """A new directory with a short path, removed in the end.

    A process that is killed removes nothing. So a directory is locked as long as its process runs, and the
    directories of this user that nobody locks any more are removed before a new one is made.
    """
    base = Path(tempfile.gettempdir())
    if len(str(base)) > _LONGEST_BASE:
        base = Path("/tmp")  # noqa: S108 - mkdtemp makes a directory of our own in it
    _remove_abandoned(base)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    lock = directory / f".{_LOCK}"
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        lock.rename(directory / _LOCK)  # only now others may look whether it is locked
        yield directory
    finally:
        # all of it is gone at once: code of the driver that still runs makes nothing below it while it is removed
        gone = directory.with_suffix(".gone")
        with suppress(FileNotFoundError):
            directory.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        os.close(descriptor)


def _remove_abandoned(base: Path) -> None:
    for lock in base.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # somebody else's, or just removed
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except BlockingIOError:
            pass  # its sandbox runs
        finally:
            os.close(descriptor)
