"""Asks the author's ``recovered`` about what a sticky rule keeps; a question that hangs delays no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Final, TypeAlias

from dra_kit.author.calling import call
from dra_kit.author.devices.device import Device
from dra_kit.author.devices.health import HealthSource
from dra_kit.errors import DraKitError
from dra_kit.node.health.conditions import Moment
from dra_kit.node.health.identity import Key
from dra_kit.node.health.ledger import Ledger
from dra_kit.process.tracebacks import from_author, named

logger: logging.Logger = logging.getLogger(__name__)

ASK_EVERY: Final = 10.0
"""Seconds between two questions whether a device has recovered."""
ASK_AT_MOST: Final = 1.0
"""Seconds until it is asked when the source says that the device is healthy."""

_Question: TypeAlias = tuple[Key, str]


class Recovery:
    """The questions; belongs to the main loop.

    Args:
        source: the author's.
        ledger: knows what sticks, and takes the answers.
        now: the present.
        answered: called after each answer.
    """

    def __init__(
        self,
        source: HealthSource[Any, Any, Any],
        ledger: Ledger,
        now: Callable[[], Moment],
        answered: Callable[[], None],
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._now = now
        self._answered = answered
        self._under_way: dict[_Question, asyncio.Task[None]] = {}
        self._due: dict[_Question, float] = {}  # none: at once, as of what holds since before this process
        self._failure = ""

    def begun(self, key: Key, reason: str, now: Moment) -> None:
        """Note that something begins to hold: it is not over at once."""
        self._due[key, reason] = now.seconds + ASK_EVERY

    def soon(self, healthy: Collection[tuple[str, str]], now: Moment) -> None:
        """Ask soon: devices are reported healthy.

        Args:
            healthy: names of devices, each with the reason for which it is healthy, empty for all.
            now: the present.
        """
        for key, _, one in self._open():
            if (key[1], "") in healthy or (key[1], one) in healthy:
                self._due[key, one] = min(self._due.get((key, one), 0.0), now.seconds + ASK_AT_MOST)

    def ask(self, now: Moment) -> None:
        """Ask what is due."""
        for key, device, reason in self._open():
            if now.seconds >= self._due.get((key, reason), 0.0):
                self._under_way[key, reason] = asyncio.ensure_future(self._question(key, reason, device))

    def due(self) -> float | None:
        """Return when :meth:`ask` has something to do."""
        return min((self._due.get((key, reason), 0.0) for key, _, reason in self._open()), default=None)

    def stop(self) -> None:
        """Stop waiting for answers."""
        for question in self._under_way.values():
            question.cancel()

    def _open(self) -> list[tuple[Key, Device, str]]:
        return [item for item in self._ledger.to_ask() if (item[0], item[2]) not in self._under_way]

    async def _question(self, key: Key, reason: str, device: Device) -> None:
        recovered = False
        try:
            recovered = bool(await call(self._source.recovered, device, reason))
        except Exception as error:
            text = str(error) if isinstance(error, DraKitError) else named(error)
            if text != self._failure:
                logger.error(
                    "not known whether a device has recovered",
                    extra={"device": device.name, "reason": reason, "error": text},
                    exc_info=from_author(error, type(self._source).__module__),
                )
            self._failure = text
        now = self._now()
        self._due[key, reason] = now.seconds + ASK_EVERY
        del self._under_way[key, reason]
        self._ledger.asked(key, reason, now, recovered=recovered)
        self._answered()
