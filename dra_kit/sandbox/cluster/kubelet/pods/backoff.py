"""How long a container that ends again and again has to wait: ``CrashLoopBackOff``."""

from __future__ import annotations

import datetime as dt
from typing import Final

FIRST_DELAY: Final = 10.0
LAST_DELAY: Final = 300.0
_FORGOTTEN_AFTER: Final = 600.0  # seconds a container has to run for its earlier ends to be forgotten


class CrashBackoff:
    """The back-off of each container of one pod (Kubernetes 1.37: 10 s, twice as long each time, at most 5 minutes).

    The first restart is immediate.

    Args:
        time_scale: all waits are divided by this.
    """

    def __init__(self, time_scale: float = 1.0) -> None:
        self._time_scale = time_scale
        self._delays: dict[str, float] = {}

    def remaining(self, container: str, started: dt.datetime, ended: dt.datetime, now: dt.datetime) -> float:
        """Return seconds until an ended container may start again, 0 when it may now.

        Args:
            container: its name.
            started: when it started last.
            ended: when it ended.
            now: the present.
        """
        if (ended - started).total_seconds() >= _FORGOTTEN_AFTER / self._time_scale:
            self._delays.pop(container, None)
        return max(0.0, self.delay(container) / self._time_scale - (now - ended).total_seconds())

    def delay(self, container: str) -> float:
        """Return seconds between the container's last end and its next start, as they are without the scale."""
        return self._delays.get(container, 0.0)

    def restarted(self, container: str) -> None:
        """Note that the container starts again: the next wait is longer."""
        before = self._delays.get(container)
        self._delays[container] = FIRST_DELAY if before is None else min(before * 2, LAST_DELAY)
