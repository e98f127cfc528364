"""Effects that do not hold any more: a daemon that was killed, a setting that was reset; they are applied again."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from dra_kit.errors import DraKitError
from dra_kit.node.effects.holding import Holding

logger: logging.Logger = logging.getLogger(__name__)

_GRACE: Final = 1.0  # seconds that what is under way gets to end


class Reapplying:
    """A part of the node process; runs when the author's code may be called.

    Args:
        holding: asks, and applies.
        every: seconds between two looks; the first one is at the start.
    """

    name = "effects"

    def __init__(self, holding: Holding, *, every: float) -> None:
        self._holding = holding
        self._every = every
        self._wake = asyncio.Event()

    def look_again(self) -> None:
        """Look now: something that effects made has ended."""
        self._wake.set()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once."""
        ready.set()
        try:
            while True:
                self._wake.clear()
                try:
                    self._holding.look()
                except DraKitError as error:  # the state cannot be read now
                    logger.error("effects not looked at", extra={"error": str(error), "code": error.code})
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._every):
                        await self._wake.wait()
        finally:
            await self._holding.stop(_GRACE)
