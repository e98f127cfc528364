"""What happens in a sandbox, in order, for any number of readers in this process."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import TypeAlias

from msgspec.structs import replace

from dra_kit.sandbox.timeline.records import Record

Reader: TypeAlias = Callable[[Record], None]
"""Called with each record, in order; returns at once, raises nothing and appends no record."""


class Timeline:
    """Numbers records, and hands each of them to its readers; keeps none. For one event loop.

    Args:
        wall: gives the time of day, in UTC.
        clock: gives seconds, and is never set back.
        begin: by the clock, from which the seconds of records are counted; None for now.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        clock: Callable[[], float] = time.monotonic,
        begin: float | None = None,
    ) -> None:
        self._wall = wall
        self._clock = clock
        self._begin = clock() if begin is None else begin
        self._number = 0
        self._readers: list[Reader] = []

    def subscribe(self, reader: Reader) -> None:
        """Call a reader with each record from now on, after the readers before it."""
        self._readers.append(reader)

    def append(self, record: Record) -> None:
        """Add a record: it happens now, after all others."""
        self._number += 1
        stamped = replace(record, number=self._number, at=self._wall(), seconds=self._clock() - self._begin)
        for reader in self._readers:
            reader(stamped)
