"""Plain counters and histograms, so that a process that is not scraped has almost no overhead."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

OTHER: Final = "other"
"""Replaces a label's value when there are too many of them."""
CALL_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
"""Upper bounds for calls of the kubelet, which are answered within 40 seconds."""
COMMIT_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds for writes to a disk."""
LAG_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0)
"""Upper bounds for how late the event loop is."""
REVIEW_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds for admission reviews; the API server waits for ten seconds."""


class Durations:
    """A histogram; one thread writes, any thread reads.

    Args:
        bounds: upper bounds of the buckets in seconds, ascending; values above all of them count too.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Add one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    @property
    def sum(self) -> float:
        """The sum of all durations."""
        return self._sum

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self._counts)

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each upper bound, as Prometheus writes it, and how many durations were not above it."""
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), list(self._counts), strict=True):
            total += count
            yield ("+Inf" if bound == float("inf") else str(float(bound))), total


class BoundedLabel:
    """Limits the values of a label that other code defines, such as error codes; further values are combined into one.

    Args:
        most: maximum number of values.
    """

    def __init__(self, most: int = 50) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, word: str) -> str:
        """Return the word, or ``OTHER`` if there are too many already."""
        if word in self._known:
            return word
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(word)
        return word
