"""What the liveness probe checks: whether the event loop is blocked, and whether calls of the author's code hang."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Final

from prometheus_client import Histogram

from dra_kit.author.calls import RunningCall, running_calls
from dra_kit.process.logging import context_of
from dra_kit.process.metrics import LOOP_LAG_SECONDS

logger: logging.Logger = logging.getLogger(__name__)
BEAT: Final = 1.0  # seconds between two heartbeats of the loop


class LoopWatchdog:
    """The part of a process that watches the event loop from its own thread.

    Args:
        patience: seconds without a heartbeat after which it is reported, once for each time the loop is blocked.

    Attributes:
        lag: how late the loop was at each check.
    """

    name = "watchdog"

    def __init__(self, *, patience: float = 10.0) -> None:
        self._patience = patience
        self.lag: Histogram = LOOP_LAG_SECONDS.histogram()
        self._beat = time.monotonic()
        self._watched: int | None = None
        self._stopped = threading.Event()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        self._beat = time.monotonic()
        self._watched = threading.get_ident()
        threading.Thread(target=self._watch, args=(self._watched,), name=self.name, daemon=True).start()
        ready.set()
        try:
            while True:
                pause = min(BEAT, self._patience / 2)
                self._beat = time.monotonic()
                await asyncio.sleep(pause)
                self.lag.observe(max(0.0, time.monotonic() - self._beat - pause))
        finally:
            self._watched = None
            self._stopped.set()

    def blocked(self) -> list[str]:
        """Return a line while the loop is blocked for longer than the patience; may be called from any thread."""
        watched, seconds = self._watched, time.monotonic() - self._beat
        if watched is None or seconds <= self._patience:
            return []
        return [f"the event loop is blocked for {seconds:.0f} s at {_place_of(watched)}"]

    def _watch(self, watched: int) -> None:
        reported = 0.0
        while not self._stopped.wait(self._until_overdue()):
            beat = self._beat
            if time.monotonic() - beat > self._patience and beat != reported:
                reported = beat
                logger.error(
                    "the event loop is blocked: nothing is answered; what blocks belongs into a plain 'def', which "
                    "runs in a thread",
                    extra={"seconds": round(time.monotonic() - beat), "at": _place_of(watched)},
                )

    def _until_overdue(self) -> float:
        """Return the seconds until a loop without further heartbeats is late; one beat if it is late already."""
        return max(min(BEAT, self._patience / 2), self._beat + self._patience - time.monotonic())


def _place_of(thread: int) -> str:
    """Return the position of a thread, innermost first: ``file.py:28 in prepare``, three frames."""
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001 - the only way to see another thread
    frames = traceback.extract_stack(frame)[-3:] if frame is not None else []
    return " < ".join(f"{item.filename}:{item.lineno} in {item.name}" for item in reversed(frames))


def hanging_calls(loop: asyncio.AbstractEventLoop, patience: float) -> list[str]:
    """Return a line for each call of a loop that has not returned for ``patience`` seconds, oldest first.

    A line has the claim, if there is one, the method, and the age. May be called from any thread.
    """
    now = time.monotonic()
    return [_line(item, now - item.since) for item in running_calls(loop) if now - item.since > patience]


def _line(item: RunningCall, age: float) -> str:
    claim = context_of(item.context).get("claim")
    return f"{f'claim {claim}: ' if claim else ''}{item.method} has not returned for {age:.0f} s"
