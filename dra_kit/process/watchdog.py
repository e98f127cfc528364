"""Tells when something blocks the event loop: then nothing is answered, and not even a signal stops the process."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Final

logger = logging.getLogger(__name__)

BEAT: Final = 1.0  # seconds between two signs of life of the loop


class Watchdog:
    """A part of a process: a thread of its own that watches the event loop.

    Args:
        patience: seconds without a sign of life after which it is told, once for each time the loop is blocked.
    """

    name = "watchdog"

    def __init__(self, *, patience: float = 10.0) -> None:
        self._patience = patience
        self._beat = time.monotonic()
        self._stopped = threading.Event()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        watched = threading.get_ident()
        threading.Thread(target=self._watch, args=(watched,), name=self.name, daemon=True).start()
        ready.set()
        try:
            while True:
                self._beat = time.monotonic()
                await asyncio.sleep(min(BEAT, self._patience / 2))
        finally:
            self._stopped.set()

    def _watch(self, watched: int) -> None:
        told = 0.0
        while not self._stopped.wait(min(BEAT, self._patience / 2)):
            beat = self._beat
            if time.monotonic() - beat > self._patience and beat != told:
                told = beat
                logger.error(
                    "the event loop is blocked: nothing is answered; what blocks belongs into a plain 'def', which "
                    "runs in a thread",
                    extra={"seconds": round(time.monotonic() - beat), "at": _place(sys._current_frames().get(watched))},  # noqa: SLF001 - the only way to see another thread
                )


def _place(frame: FrameType | None) -> str:
    """Where a thread is, innermost first: ``file.py:28 in prepare``, three frames."""
    frames = traceback.extract_stack(frame)[-3:] if frame is not None else []
    return " < ".join(f"{item.filename}:{item.lineno} in {item.name}" for item in reversed(frames))
