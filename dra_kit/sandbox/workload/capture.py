"""What a process writes, kept in memory, the newest part of it."""

from __future__ import annotations

import asyncio
import os

LIMIT = 1 << 20
"""Bytes that are kept of one container's output."""

_AT_ONCE = 1 << 20  # bytes; no pipe of an ordinary process holds more


class Capture:
    """The reading end of a pipe and what came through it; for one event loop.

    Args:
        limit: bytes to keep; when there is more, the oldest go.

    Attributes:
        dropped: bytes that went.
        dropped_lines: ends of lines among them.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.dropped = 0
        self.dropped_lines = 0
        self._limit = limit
        self._kept = bytearray()
        self._source: int | None = None

    def open(self) -> int:
        """Makes the pipe; the caller closes the writing end that is returned once the process has it."""
        self._source, target = os.pipe()
        os.set_blocking(self._source, False)
        asyncio.get_running_loop().add_reader(self._source, self.drain)
        return target

    def drain(self) -> None:
        """Takes what was written until now; of a process that never pauses so much that the event loop goes on."""
        taken = 0
        while self._source is not None and taken < _AT_ONCE:
            try:
                data = os.read(self._source, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            self.write(data)
            taken += len(data)

    def write(self, data: bytes) -> None:
        """Adds to what is kept."""
        self._kept += data
        excess = len(self._kept) - self._limit
        if excess > 0:
            self.dropped += excess
            self.dropped_lines += self._kept.count(b"\n", 0, excess)
            del self._kept[:excess]

    def close(self) -> None:
        """Reads no more; what is kept stays."""
        source, self._source = self._source, None
        if source is not None:
            asyncio.get_running_loop().remove_reader(source)
            os.close(source)

    @property
    def text(self) -> str:
        """What is kept, as UTF-8."""
        return self._kept.decode(errors="replace")
