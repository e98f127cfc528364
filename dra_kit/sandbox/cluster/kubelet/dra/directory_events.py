"""Tells that something came to directories or went, without looking at them again and again: inotify(7)."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

_COMES_OR_GOES: Final = 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
"""IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_DELETE_SELF and IN_MOVE_SELF of ``linux/inotify.h``."""
_BLOCK: Final = 1 << 16


class DirectoryEvents:
    """Watches directories in the running event loop, until it is closed.

    Where the kernel cannot watch one, because it is not there or there are too many watches, :meth:`wait` returns
    after a while instead, so that its caller looks again.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._add = libc.inotify_add_watch
        self._descriptor: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._event = asyncio.Event()
        self._unwatched = False
        if self._descriptor >= 0:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def watch(self, directory: Path) -> None:
        """Watch a directory from now on, but none below it; again and again does no harm."""
        if self._descriptor < 0 or self._add(self._descriptor, os.fsencode(directory), _COMES_OR_GOES) < 0:
            self._unwatched = True

    async def wait(self, longest: float) -> None:
        """Wait until something came or went since the last time, for any time if all directories are watched.

        Args:
            longest: seconds, where one of them is not.
        """
        unwatched, self._unwatched = self._unwatched, False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest if unwatched else None):
                await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        """End it."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._descriptor, _BLOCK):
                pass  # what it was, a look at the directories tells
        self._event.set()
