"""A work queue: one key at a time, with retries that take longer and longer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from dra_kit.errors import Conflict, KubeError

logger: logging.Logger = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
_FIRST_DELAY: Final = 0.005  # client-go's exponential failure rate limiter: 5 ms, doubled, at most 1000 s
_LAST_DELAY: Final = 30.0


class WorkQueue(Generic[K]):
    """A level-triggered queue: a key that is added ten times while it waits is reconciled once."""

    def __init__(self, name: str, reconcile: Callable[[K], Awaitable[None]]) -> None:
        self._name = name
        self._reconcile = reconcile
        self._waiting: dict[K, None] = {}
        self._wake = asyncio.Event()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def add(self, key: K) -> None:
        """Have a key reconciled soon."""
        self._waiting.setdefault(key)
        self._wake.set()

    async def run(self) -> None:
        """Reconcile until cancelled."""
        try:
            while True:
                await self._wake.wait()
                if not self._waiting:
                    self._wake.clear()
                    continue
                key = next(iter(self._waiting))
                del self._waiting[key]
                await self._work(key)
        finally:
            for timer in self._timers.values():
                timer.cancel()

    async def _work(self, key: K) -> None:
        try:
            await self._reconcile(key)
        except KubeError as error:
            # a conflict only says that the informer lags behind: its next change will do
            level = logging.DEBUG if isinstance(error, Conflict) or key in self._failures else logging.INFO
            logger.log(level, "%s tries again", self._name, extra={"object": str(key), "error": str(error)})
            self._try_again(key)
        except Exception:  # a bug, and no reason to end what all other keys need
            level = logging.DEBUG if key in self._failures else logging.ERROR
            logger.log(level, "%s has failed and tries again", self._name, extra={"object": str(key)}, exc_info=True)
            self._try_again(key)
        else:
            self._failures.pop(key, None)
            self._timers.pop(key, None)

    def _try_again(self, key: K) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        if timer := self._timers.pop(key, None):
            timer.cancel()
        delay = min(_FIRST_DELAY * 2**failures, _LAST_DELAY)
        self._timers[key] = asyncio.get_running_loop().call_later(delay, self.add, key)
