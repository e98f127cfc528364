"""How often slices may be written: ever more seldom after errors, and beside somebody who undoes what is published."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from typing import Final

RETRY: Final = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds to wait after the first error in a row, the second, and so on; the last for all that follow."""
LOSSES_FORGOTTEN: Final = 120.0
"""Seconds without a loss after which slices that vanish or are edited are at once published again."""


def pause(attempt: int) -> float:
    """Return the seconds to wait after an attempt that failed; the first is 0."""
    return RETRY[min(attempt, len(RETRY) - 1)]


async def happens(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until something happens, at most so long; whether it has.

    Not :func:`asyncio.wait_for`, which up to Python 3.11 forgets that it is cancelled when the event comes in the same
    moment: the process would wait in vain for a publisher that goes on.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class Brake:
    """Slows down beside somebody who again and again deletes or edits what is published.

    The first two losses in a row are put right at once: one is an accident, two a coincidence. Two publishers that
    want something different both brake, so that neither makes the API server and the scheduler work without end.

    Attributes:
        in_a_row: losses, none of which came long after the one before.
    """

    def __init__(self) -> None:
        self.in_a_row: int = 0
        self._lost_at = -math.inf

    def lost(self) -> bool:
        """Note that somebody else deleted or edited a slice; return whether that happens again and again."""
        now = time.monotonic()
        again = now - self._lost_at < LOSSES_FORGOTTEN
        self.in_a_row, self._lost_at = self.in_a_row + 1 if again else 1, now
        return again

    def seconds(self) -> float:
        """Return how long to wait before the next look."""
        if self.in_a_row < 2 or time.monotonic() - self._lost_at > LOSSES_FORGOTTEN:
            return 0.0
        return pause(self.in_a_row - 2)
