"""How far the active replica has come with Events and hooks: its Lease says so, and a successor goes on from there.

Replicas have no clock in common, but resource versions: those of claims compare as integers (KEP-5504).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

ANNOUNCED: Final = "dra-kit/announced-up-to"
"""Annotation of the Lease: the resource version of claims up to which all that happened to them is announced."""
UNKNOWN: Final = -1
"""In place of a resource version: before all of them."""
MARGIN: Final = 30.0
"""Seconds in which whatever a watch has brought is followed: objects are followed side by side, so that a later change
of one may come before an earlier one of another, and several changes of one come as one.
"""


def announced_of(annotations: Mapping[str, str]) -> int:
    """Return up to where a Lease says that all is announced; ``UNKNOWN`` where it says nothing, or nonsense."""
    text = annotations.get(ANNOUNCED, "")
    return int(text) if text.isdecimal() else UNKNOWN


class FollowedVersions:
    """The resource versions that a replica has seen, as far back as it takes to know what it has certainly followed.

    Args:
        clock: seconds that only rise.
        seen: the latest resource version that the replica has seen.
    """

    def __init__(self, clock: Callable[[], float], seen: Callable[[], int]) -> None:
        self._clock = clock
        self._seen = seen
        self._samples: deque[tuple[float, int]] = deque()

    def now(self) -> float:
        """Return the time of its clock."""
        return self._clock()

    def sample(self) -> None:
        """Remember what is seen now; called every few seconds."""
        self._samples.append((self._clock(), self._seen()))
        before = self._clock() - MARGIN
        while len(self._samples) > 1 and self._samples[1][0] <= before:
            self._samples.popleft()

    def complete(self) -> int:
        """Return a version up to which everything is followed; ``UNKNOWN`` for nothing."""
        before = self._clock() - MARGIN
        return next((version for at, version in reversed(self._samples) if at <= before), UNKNOWN)


class Progress:
    """Which transitions the active replica has not announced yet, by Events and hooks; belongs to one event loop.

    Args:
        followed: what this replica has seen.
        inherited: up to where everything was announced by former active replicas.
    """

    def __init__(self, followed: FollowedVersions, inherited: Callable[[], int]) -> None:
        self._followed = followed
        self._inherited = inherited
        self._announcing = False
        self._numbers = itertools.count()
        # versions before which they cannot have happened, and until when that counts
        self._pending: dict[int, tuple[int, float]] = {}

    @contextmanager
    def announcing(self) -> Iterator[None]:
        """While this replica announces; before and after it nothing is known but what others have announced."""
        self._announcing = True
        try:
            yield
        finally:
            self._announcing = False
            self._pending.clear()

    def begin(self, *, inherited: bool = False, seconds: float = math.inf) -> Callable[[], None]:
        """Keep a transition as not announced, until the returned function is called.

        Args:
            inherited: it was seen before this replica became the active one; else just now.
            seconds: after which it counts as announced all the same.
        """
        number = next(self._numbers)
        version = self._inherited() if inherited else self._followed.complete()
        self._pending[number] = version, self._followed.now() + seconds

        def announced() -> None:
            self._pending.pop(number, None)

        return announced

    def announced(self) -> int:
        """Return the resource version up to which all that happened is announced; ``UNKNOWN`` for nothing."""
        if not self._announcing:
            return self._inherited()
        now = self._followed.now()
        return min([self._followed.complete(), *(version for version, until in self._pending.values() if now < until)])

    def annotations(self) -> dict[str, str]:
        """Return what the Lease is to say."""
        announced = self.announced()
        return {} if announced == UNKNOWN else {ANNOUNCED: str(announced)}
