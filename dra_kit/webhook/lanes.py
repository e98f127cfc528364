"""Threads in which reviews are read and checked, so that the loop goes on answering.

Large reviews have a lane of their own, one at a time: they are what takes time and memory, and few are large. What is
handed on from one place to the next of a review stays in its lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

T = TypeVar("T")

ORDINARY_BYTES: Final = 64 * 1024
"""A review of at most this size is an ordinary one; the objects that people write have a tenth of it."""

_large: ContextVar[bool] = ContextVar("large_review", default=False)


class Lanes:
    """The two lanes of a process."""

    def __init__(self) -> None:
        # more threads would only wait for each other: Python runs one at a time
        self._ordinary = ThreadPoolExecutor(2, "review")
        self._large = ThreadPoolExecutor(1, "large review")

    @contextmanager
    def entered(self, size: int) -> Iterator[None]:
        """Count everything that is run inside the block as of a review of so many bytes."""
        token = _large.set(size > ORDINARY_BYTES)
        try:
            yield
        finally:
            _large.reset(token)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Call a function in the lane of the review at hand, once it is its turn."""
        lane = self._large if _large.get() else self._ordinary
        return await asyncio.get_running_loop().run_in_executor(lane, function, *args)

    def close(self) -> None:
        """Take no more work; what has begun goes on to its end."""
        for lane in (self._ordinary, self._large):
            lane.shutdown(wait=False, cancel_futures=True)
