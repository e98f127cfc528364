"""What happened to claims since the active replica last renewed its lease: told by whoever becomes active next."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from dra_kit.controller.claims.lifecycle import Transition

logger: logging.Logger = logging.getLogger(__name__)

MARGIN: Final = 30.0
"""Seconds before the last renewal that are kept too: what the active replica had seen, and perhaps not yet written."""
CAPACITY: Final = 50_000


class Backlog:
    """Transitions of the last moments.

    Some of them may have been told: Events have names that make a second telling none, and hooks may come twice.

    Args:
        clock: seconds that only rise.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._steps: deque[tuple[float, Transition]] = deque(maxlen=CAPACITY)

    def add(self, step: Transition) -> None:
        """It was seen now."""
        self._steps.append((self._clock(), step))

    def renewed(self) -> None:
        """The active replica has renewed its lease: what is old was told."""
        before = self._clock() - MARGIN
        while self._steps and self._steps[0][0] < before:
            self._steps.popleft()

    def steps(self) -> tuple[Transition, ...]:
        """What may not have been told, in order."""
        return tuple(step for _, step in self._steps)
