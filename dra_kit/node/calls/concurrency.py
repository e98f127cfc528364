"""Which calls of the author's code may overlap: ``Driver(concurrency=…)``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Literal

from dra_kit.node.locks.named import Locks


class Turns:
    """Taken for each call; the one call at a time of a claim is its own lock's affair.

    Args:
        concurrency: what may overlap with nothing else of its kind.
        locks: hold across the driver's processes.
    """

    def __init__(self, concurrency: Literal["claim", "device", "driver"], locks: Locks) -> None:
        self._concurrency = concurrency
        self._locks = locks

    def taken(self, devices: Iterable[tuple[str, str]]) -> AbstractAsyncContextManager[None]:
        """Return a context that waits for its turn.

        Args:
            devices: pool and name of those that the call is about.
        """
        if self._concurrency == "driver":
            return self._locks.hold_all(["driver"])
        if self._concurrency == "device":
            return self._locks.hold_all("/".join(device) for device in devices)
        return nullcontext()
