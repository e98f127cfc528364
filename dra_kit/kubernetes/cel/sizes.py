"""Bounds of costs and sizes, and the sizes of the parts of a device.

The sizes are the limits of resource.k8s.io/v1 (Kubernetes 1.37.1).
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

_STEPS: Final = frozenset({"@items", "@values"})


class SizePath:
    """The path of a value below a variable: names, ``@keys``, ``@values``, ``@items``, ``@indices``.

    cel-go v0.29.2 appends to Go slices that share an array: if two paths extend the same path, the later one may
    overwrite the last step of the earlier one. Estimates and admission depend on this. Therefore ``shared`` has the
    steps and free capacity, and the path uses the first ``length`` entries.
    """

    __slots__ = ("_length", "_shared")

    def __init__(self, shared: list[str], length: int) -> None:
        self._shared = shared
        self._length = length

    @classmethod
    def of(cls, name: str) -> SizePath:
        """Return the path of a variable."""
        return cls([name], 1)

    @property
    def names(self) -> tuple[str, ...]:
        """The current steps."""
        return tuple(self._shared[: self._length])

    def below(self, step: str) -> SizePath:
        """Return the path with one more step."""
        shared = self._shared
        if self._length == len(shared):
            # Go doubles a full slice
            shared = [*shared, *[""] * max(self._length, 1)]
        shared[self._length] = step
        return SizePath(shared, self._length + 1)


NOWHERE: Final = SizePath([], 0)
"""The path of computed values."""


def size_at(path: tuple[str, ...]) -> CostBounds | None:
    """Return the size of the value at a path below ``device``; None if it is unknown."""
    if not path or path[0] != "device":
        return None
    if len(path) == 1:
        return exact_bounds(0)  # objects have no size
    match path[1]:
        case "driver":
            return CostBounds(0, MAX_DRIVER_LENGTH) if len(path) == 2 else None
        case "allowMultipleAllocations":
            return CostBounds(0, 1) if len(path) == 2 else None
        case "attributes" | "capacity":
            return _map_size(path[2:], is_attribute=path[1] == "attributes")
        case _:
            return None


def _map_size(path: tuple[str, ...], *, is_attribute: bool) -> CostBounds | None:
    if not path:
        return CostBounds(0, MAX_ATTRIBUTES)
    if path[0] == "@keys":
        return CostBounds(0, MAX_DOMAIN_LENGTH) if len(path) == 1 else None
    if path[0] not in _STEPS:
        return None
    match path[1:]:
        case ():
            return CostBounds(0, MAX_ATTRIBUTES)
        case ("@keys",):
            return CostBounds(0, MAX_ID_LENGTH)
        case (step,) if is_attribute:
            return None if step.startswith("@") and step not in _STEPS else CostBounds(0, MAX_VALUE_LENGTH)
        case (step,):
            return exact_bounds(0) if step in _STEPS else None  # quantities have no size
        case _:
            return None


MAX: Final = 2**64 - 1


class CostBounds(Struct, frozen=True):
    """A range from ``low`` to ``high``."""

    low: int
    high: int

    def plus(self, other: CostBounds) -> CostBounds:
        """Return the sum."""
        return CostBounds(min(self.low + other.low, MAX), min(self.high + other.high, MAX))

    def times(self, other: CostBounds) -> CostBounds:
        """Return the product."""
        return CostBounds(min(self.low * other.low, MAX), min(self.high * other.high, MAX))

    def scaled(self, factor: float) -> CostBounds:
        """Return the product with a factor, rounded up; computed with doubles, as in Kubernetes."""
        return CostBounds(_scale(self.low, factor), _scale(self.high, factor))

    def union(self, other: CostBounds) -> CostBounds:
        """Return the bounds that contain both."""
        return CostBounds(min(self.low, other.low), max(self.high, other.high))


def exact_bounds(number: int) -> CostBounds:
    """Return bounds of exactly one number."""
    return CostBounds(number, number)


UNKNOWN: Final = CostBounds(0, MAX)
NOTHING: Final = CostBounds(0, 0)
ONE: Final = CostBounds(1, 1)


def _scale(number: int, factor: float) -> int:
    exact = float(number)
    if exact > 0 and factor > 0 and exact > 18446744073709551615.0 / factor:
        return MAX
    result = math.ceil(exact * factor)
    return MAX if result >= 2**64 else result


# limits of ResourceSlices in resource.k8s.io/v1 (Kubernetes 1.37) for worst-case costs
MAX_DOMAIN_LENGTH: Final = 63
MAX_ID_LENGTH: Final = 32
MAX_DRIVER_LENGTH: Final = 63
MAX_VALUE_LENGTH: Final = 64
MAX_ATTRIBUTES: Final = 32
