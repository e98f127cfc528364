"""Waits for other tasks, threads and processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds."""
    async with asyncio.timeout(120):  # a process that starts on a busy machine may take a minute
        while not condition():  # noqa: ASYNC110 (connections, threads and processes set no asyncio.Event)
            await asyncio.sleep(0.01)
