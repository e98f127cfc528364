"""The processes of one driver on one node: which of them are there, and whether one has ended without a word."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from dra_kit.errors import StoreError

_SUFFIX: Final = ".lock"


class Processes:
    """Each process has a file for its own and holds flock(2) on it for as long as it lives.

    The kernel gives that lock up however a process ends. One that ends in order removes its file too, so that a file
    that nobody holds tells of a process that was killed.

    Args:
        directory: of the files, on a local file system; made when missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own: tuple[Path, int] | None = None  # with the descriptor that holds the lock

    @contextmanager
    def present(self) -> Iterator[None]:
        """This process is there, so that no other one takes its work for a leftover.

        Raises:
            StoreError: when its file cannot be made.
        """
        path = self._directory / f"{secrets.token_hex(8)}{_SUFFIX}"
        self._own = path, _made(path)
        try:
            yield
        finally:
            _remove(*self._own)
            self._own = None

    def sweep(self) -> tuple[int, int]:
        """Remove the files of processes that were killed; the one of this process is made again if somebody removed it.

        Returns:
            How many files were removed, and how many other processes are there.

        Raises:
            StoreError: when a file cannot be opened, or that of this process not be made.
        """
        own = None
        if self._own is not None:
            own, held = self._own
            if not os.path.lexists(own):  # the directory was removed
                self._own = own, _made(own)
                os.close(held)
        dead: list[tuple[Path, int]] = []
        others = 0
        for path in set(self._directory.glob(f"*{_SUFFIX}")) - {own}:
            try:
                file = _locked(path, 0)
            except FileNotFoundError:
                continue  # it has ended in order
            except OSError as error:
                for _, other in dead:
                    os.close(other)  # they are counted when all can be
                raise _store_error(path, error) from error
            if file is None:
                others += 1
            else:
                dead.append((path, file))
        for path, file in dead:
            _remove(path, file)
        return len(dead), others


def _made(path: Path) -> int:
    """The descriptor of a new file that is locked."""
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        while (file := _locked(path, os.O_CREAT)) is None:
            pass  # another process has taken it for a leftover before it was locked, and is about to remove it
    except OSError as error:
        raise _store_error(path, error) from error
    return file


def _locked(path: Path, flags: int) -> int | None:
    """The descriptor of the locked file, None when another process has it, or has just removed it."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), path.stat()):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def _remove(path: Path, file: int) -> None:
    with suppress(OSError):  # the file stays; it tells of a killed process once it is closed, and is removed then
        path.unlink(missing_ok=True)
    os.close(file)


def _store_error(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"lock {path} cannot be taken: {error}; check that the disk is writable and not full (--state-dir)"
    )
