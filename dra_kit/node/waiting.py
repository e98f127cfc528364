"""Waiting for what cannot be taken back."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(future: asyncio.Future[T]) -> T:
    """The outcome of work in a thread that goes on whether somebody waits for it or not.

    When the caller is cancelled, the work is waited for all the same, so that nothing is done behind the back of
    whoever undoes it next. Its error then comes before the cancellation. Being cancelled a second time, at the end of
    the process, gives up on it.
    """
    try:
        await asyncio.wait({future})
    except asyncio.CancelledError:
        await asyncio.wait({future})
        future.result()
        raise
    return future.result()
