"""A role of the driver in a thread and an event loop of its own: an author's blocking code stops nobody else."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from dra_kit.errors import DraKitError

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 25.0
"""A role drains for at most 20 seconds; one that is blocked for longer is left behind."""


class RoleThread:
    """Runs one role until :meth:`stop`.

    Args:
        name: of the role and its node, such as ``node of node-1``.
        run: runs the role until it is cancelled; called in the thread.
    """

    def __init__(self, name: str, run: Callable[[], Awaitable[int]]) -> None:
        self.name = name
        self._run = run
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[int] | None = None
        self._stopping = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.failure: str = ""
        """Why the role ended although nobody asked it to; empty while it did not."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self, seconds: float = STOP_SECONDS) -> bool:
        """Ask the role to end and wait for it; whether it did."""
        with self._lock:
            self._stopping = True
            loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with suppress(RuntimeError):  # it has ended by itself, and its loop with it
                loop.call_soon_threadsafe(task.cancel)
        ended = await asyncio.to_thread(self._ended.wait, seconds if self._thread.is_alive() else 0.0)
        if not ended and self._thread.ident is not None:
            logger.warning("%s does not end: the driver's code is blocked and is left behind", self.name)
        return ended

    def _work(self) -> None:
        try:
            code = asyncio.run(self._main())
            if code:
                self.failure = self.failure or f"it ended with exit code {code}"
        except asyncio.CancelledError:
            pass
        except DraKitError as error:
            self.failure = f"{error} [{error.code}]"
        except Exception as error:
            logger.exception("%s failed", self.name)
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self._ended.set()

    async def _main(self) -> int:
        with self._lock:
            if self._stopping:
                return 0
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.ensure_future(_of(self._run()))
        try:
            return await self._task
        except asyncio.CancelledError:
            return 0


async def _of(awaitable: Awaitable[int]) -> int:
    return await awaitable
