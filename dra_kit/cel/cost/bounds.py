"""Ranges of costs and sizes, in unsigned integers of 64 bits that stay at the largest instead of wrapping around."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

MAX: Final = 2**64 - 1


class Bounds(Struct, frozen=True):
    """From the least to the most."""

    low: int
    high: int

    def plus(self, other: Bounds) -> Bounds:
        """Return the sum."""
        return Bounds(min(self.low + other.low, MAX), min(self.high + other.high, MAX))

    def times(self, other: Bounds) -> Bounds:
        """Return the product."""
        return Bounds(min(self.low * other.low, MAX), min(self.high * other.high, MAX))

    def scaled(self, factor: float) -> Bounds:
        """Return the product with a factor, rounded up; computed with doubles, which shows in large estimates."""
        return Bounds(_scale(self.low, factor), _scale(self.high, factor))

    def union(self, other: Bounds) -> Bounds:
        """Return the bounds that contain both."""
        return Bounds(min(self.low, other.low), max(self.high, other.high))


def exactly(number: int) -> Bounds:
    """Return bounds of exactly one number."""
    return Bounds(number, number)


UNKNOWN: Final = Bounds(0, MAX)
NOTHING: Final = Bounds(0, 0)
ONE: Final = Bounds(1, 1)


def _scale(number: int, factor: float) -> int:
    exact = float(number)
    if exact > 0 and factor > 0 and exact > 18446744073709551615.0 / factor:
        return MAX
    result = math.ceil(exact * factor)
    return MAX if result >= 2**64 else result
