"""When what no first pod needs may begin: what it is made of takes long to import, and pods would wait for that."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Final

_WITHIN: Final = 30.0
"""Seconds after which it begins even while pods are waited for."""


class Calm:
    """Comes once nobody waits for first pods any more; for the event loops of all roles.

    Args:
        come: it has come already.
    """

    def __init__(self, *, come: bool = False) -> None:
        self._come = come
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def come(self) -> None:
        """Let begin what waits for it."""
        with self._lock:
            self._come = True
        for loop, event in self._waiting:
            with suppress(RuntimeError):  # the role that waited has ended, and its loop with it
                loop.call_soon_threadsafe(event.set)

    async def wait(self) -> None:
        """Wait until it comes, or for long enough."""
        event = asyncio.Event()
        with self._lock:
            if self._come:
                return
            self._waiting.append((asyncio.get_running_loop(), event))
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), _WITHIN)
