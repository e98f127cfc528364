"""Reads what containers write: all of them in turn, within a share of the event loop's time.

A pipe that is not read fills, and its writer has to wait, as that of a real container has: so a container that writes
without end costs the others nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from dra_kit.sandbox.cluster.workload.container_log import ContainerLog

_TURN_SECONDS: Final = 0.001  # of reading, at once
_REST_SECONDS: Final = 0.005  # between turns, at least; what comes meanwhile is one arrival
_SHARE: Final = 0.2  # of the event loop's time, at most
_AT_ONCE: Final = 1 << 16  # bytes; as many as a pipe holds, unless its owner changed that
_AT_THE_END: Final = 1 << 20  # bytes; no pipe of an ordinary process holds more


class Intake:
    """Fills the logs of containers; for one event loop."""

    def __init__(self) -> None:
        self._ready: deque[OutputPipe] = deque()
        self._turn: asyncio.TimerHandle | None = None
        self._rested = 0.0  # when the next turn may be

    def open(self, log: ContainerLog) -> tuple[OutputPipe, int]:
        """Make a pipe whose output goes into a log.

        Returns:
            The pipe, and its writing end: the caller closes that once the process has it.
        """
        source, target = os.pipe()
        os.set_blocking(source, False)
        return OutputPipe(source, log, self._come), target

    def _come(self, pipe: OutputPipe) -> None:
        """Queue a pipe that can be read."""
        self._ready.append(pipe)
        if self._turn is None:
            loop = asyncio.get_running_loop()
            self._turn = loop.call_at(max(self._rested, loop.time()), self._read)

    def _read(self) -> None:
        self._turn = None
        begin = time.perf_counter()
        spent = 0.0
        while self._ready and spent < _TURN_SECONDS:
            pipe = self._ready.popleft()
            if pipe.read():
                self._ready.append(pipe)
            spent = time.perf_counter() - begin
        loop = asyncio.get_running_loop()
        self._rested = loop.time() + max(_REST_SECONDS, spent * (1 / _SHARE - 1))
        if self._ready:
            self._turn = loop.call_at(self._rested, self._read)


class OutputPipe:
    """The reading end of the pipe that a container writes to.

    Args:
        source: its file descriptor.
        log: where to put what is read.
        come: called once when there is something to read; :meth:`read` is called then.
    """

    def __init__(self, source: int, log: ContainerLog, come: Callable[[OutputPipe], None]) -> None:
        self._source: int | None = source
        self._log = log
        self._come = come
        self._wait()

    def read(self) -> bool:
        """Read once; whether there may be more at once. If not, a callback comes when there is."""
        taken = self._take()
        if taken == _AT_ONCE:
            return True
        if taken is not None:
            self._wait()
        return False

    def finish(self) -> None:
        """Read what was written until now, and no more: the container has ended."""
        left = _AT_THE_END
        while left > 0 and (taken := self._take()):
            left -= taken
        self._close()

    def _take(self) -> int | None:
        """Return bytes read; None at the end."""
        if self._source is None:
            return None
        try:
            data = os.read(self._source, _AT_ONCE)
        except BlockingIOError:
            return 0
        if not data:
            self._close()
            return None
        self._log.append(data, time.time_ns())
        return len(data)

    def _wait(self) -> None:
        if self._source is not None:
            asyncio.get_running_loop().add_reader(self._source, self._readable)

    def _readable(self) -> None:
        if self._source is not None:
            asyncio.get_running_loop().remove_reader(self._source)
            self._come(self)

    def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            asyncio.get_running_loop().remove_reader(source)
            os.close(source)
