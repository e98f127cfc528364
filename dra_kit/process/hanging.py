"""Tells which calls of the author's code hang: they have not returned long after anybody waited for them."""

from __future__ import annotations

import asyncio
import time

from dra_kit.author.calling import UnderWay, under_way
from dra_kit.process.logging import context_of


class HangingCalls:
    """Asked by the liveness probe, from any thread; a call that returns hangs no longer.

    Args:
        loop: whose calls are looked at.
        patience: seconds after which a call hangs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        self._loop = loop
        self._patience = patience

    def __call__(self) -> list[str]:
        """Return a line for each call that hangs, oldest first: the claim, if there is one, the method, and its age."""
        now = time.monotonic()
        return [_line(item, now - item.since) for item in under_way(self._loop) if now - item.since > self._patience]


def _line(item: UnderWay, age: float) -> str:
    claim = context_of(item.context).get("claim")
    return f"{f'claim {claim}: ' if claim else ''}{item.method} has not returned for {age:.0f} s"
