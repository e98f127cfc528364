"""What happened to claims and may not be announced yet: the next active replica announces it."""

from __future__ import annotations

from collections import deque
from typing import Final

from dra_kit.controller.claims.lifecycle import Transition
from dra_kit.controller.claims.progress import UNKNOWN

CAPACITY: Final = 50_000
"""Transitions that are kept; beyond that the oldest are lost."""


class Backlog:
    """Transitions that the active replica may not have announced when it last renewed its lease.

    Some of them may be announced: Events have names that make a second creation a conflict, and hooks may come twice.

    Attributes:
        announced: the resource version of claims up to which all that happened is announced.
    """

    def __init__(self) -> None:
        self.announced: int = UNKNOWN
        self._steps: deque[Transition] = deque(maxlen=CAPACITY)

    def add(self, step: Transition) -> None:
        """Keep a transition, which was seen now."""
        self._steps.append(step)

    def renewed(self, announced: int) -> None:
        """Drop what is announced: the active replica has renewed its lease.

        Args:
            announced: the resource version of claims up to which all that happened is announced, as it says.
        """
        self.announced = max(self.announced, announced)
        while self._steps and self._steps[0].version <= self.announced:
            self._steps.popleft()

    def steps(self) -> tuple[Transition, ...]:
        """Return what may not be announced, in order."""
        return tuple(self._steps)
