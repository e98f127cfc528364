"""Locks by name that exist while somebody holds or awaits them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Lock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Locks:
    """One lock for each name, first come first served."""

    def __init__(self) -> None:
        self._locks: dict[str, _Lock] = {}

    def held(self, name: str) -> bool:
        """Whether somebody holds that lock now."""
        return name in self._locks and self._locks[name].lock.locked()

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of that name."""
        entry = self._locks.setdefault(name, _Lock())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                self._locks.pop(name, None)
