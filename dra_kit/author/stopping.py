"""``Stopping``: whether the process is asked to end, for loops that wait meanwhile."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class Stopping:
    """True once the process is asked to end; from then on generators and loops should return soon.

    ``while not context.stopping:`` looks, ``while not await context.stopping.sleep(5):`` waits in between, and
    ``while not context.stopping.blocking_sleep(5):`` does so in a ``def``. Safe to use in any thread and event loop.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def __bool__(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        """Return when the process is asked to end."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if self._event.is_set():
                return
            self._waiting.append(waiter)
        try:
            await waiter[1].wait()
        finally:
            with self._lock:
                self._waiting.remove(waiter)

    async def sleep(self, seconds: float) -> bool:
        """Wait so many seconds, or until the process is asked to end; whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait()
        return bool(self)

    def blocking_sleep(self, seconds: float) -> bool:
        """Return the same in a thread of its own, where ``def`` methods run."""
        return self._event.wait(seconds)

    def set(self) -> None:
        """Tell everybody who waits; called by the framework, and in tests of a driver's loops."""
        with self._lock:
            self._event.set()
            for loop, event in self._waiting:
                with suppress(RuntimeError):  # that loop has ended, and with it whoever waited
                    loop.call_soon_threadsafe(event.set)
