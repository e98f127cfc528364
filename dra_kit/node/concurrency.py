"""Which calls of the author's code may overlap: ``Driver(concurrency=…)``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

from dra_kit.node.locks import Locks


class Turns:
    """Taken for each call; the one call at a time of a claim is its own lock's affair.

    Args:
        concurrency: what may overlap with nothing else of its kind.
        locks: hold across the driver's processes.
    """

    def __init__(self, concurrency: Literal["claim", "device", "driver"], locks: Locks) -> None:
        self._concurrency = concurrency
        self._locks = locks

    @asynccontextmanager
    async def taken(self, devices: Iterable[tuple[str, str]]) -> AsyncIterator[None]:
        """Waits for its turn.

        Args:
            devices: pool and name of those that the call is about.
        """
        names: list[str] = []
        if self._concurrency == "driver":
            names = ["driver"]
        elif self._concurrency == "device":
            names = sorted({"/".join(device) for device in devices})  # one order for everybody: no circle of waiters
        if not names:  # the default: nothing to wait for
            yield
            return
        async with AsyncExitStack() as stack:
            for name in names:
                await stack.enter_async_context(self._locks.hold(name))
            yield
