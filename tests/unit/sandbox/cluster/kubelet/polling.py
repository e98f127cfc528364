"""Waiting for what other tasks and threads bring about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (connections and threads set no asyncio.Event)
            await asyncio.sleep(0.01)
