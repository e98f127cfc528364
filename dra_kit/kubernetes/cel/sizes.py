"""How large what an expression reads of a device can be, as resource.k8s.io/v1 limits it (Kubernetes 1.37.1)."""

from __future__ import annotations

from typing import Final

from dra_kit.cel.cost.bounds import Bounds, exactly
from dra_kit.cel.environment import (
    MAX_ATTRIBUTES,
    MAX_DOMAIN_LENGTH,
    MAX_DRIVER_LENGTH,
    MAX_ID_LENGTH,
    MAX_VALUE_LENGTH,
)

_STEPS: Final = frozenset({"@items", "@values"})


class Path:
    """How a value is reached from a variable: names, ``@keys``, ``@values``, ``@items``, ``@indices``.

    cel-go v0.29.2 appends to slices that share an array: of two paths that go on from the same one, the later one may
    change the last step of the earlier one. Admission depends on the estimates, and they on that.

    Args:
        shared: the steps, and room for more of them.
        length: how many of the steps belong to the path.
    """

    __slots__ = ("_length", "_shared")

    def __init__(self, shared: list[str], length: int) -> None:
        self._shared = shared
        self._length = length

    @classmethod
    def of(cls, name: str) -> Path:
        """Return the path of a variable."""
        return cls([name], 1)

    @property
    def names(self) -> tuple[str, ...]:
        """The steps as they are now."""
        return tuple(self._shared[: self._length])

    def below(self, step: str) -> Path:
        """Return the path that goes one step on."""
        shared = self._shared
        if self._length == len(shared):
            # Go doubles a slice that is full
            shared = [*shared, *[""] * max(self._length, 1)]
        shared[self._length] = step
        return Path(shared, self._length + 1)


NOWHERE: Final = Path([], 0)
"""The path of a value that is computed."""


def size_at(path: tuple[str, ...]) -> Bounds | None:
    """Return the size of what is at a path below ``device``; None where it is not known."""
    if not path or path[0] != "device":
        return None
    if len(path) == 1:
        return exactly(0)  # an object: Kubernetes knows no number of elements for it
    match path[1]:
        case "driver":
            return Bounds(0, MAX_DRIVER_LENGTH) if len(path) == 2 else None
        case "allowMultipleAllocations":
            return Bounds(0, 1) if len(path) == 2 else None
        case "attributes" | "capacity":
            return _map_size(path[2:], is_attribute=path[1] == "attributes")
        case _:
            return None


def _map_size(path: tuple[str, ...], *, is_attribute: bool) -> Bounds | None:
    if not path:
        return Bounds(0, MAX_ATTRIBUTES)
    if path[0] == "@keys":
        return Bounds(0, MAX_DOMAIN_LENGTH) if len(path) == 1 else None
    if path[0] not in _STEPS:
        return None
    match path[1:]:
        case ():
            return Bounds(0, MAX_ATTRIBUTES)
        case ("@keys",):
            return Bounds(0, MAX_ID_LENGTH)
        case (step,) if is_attribute:
            return None if step.startswith("@") and step not in _STEPS else Bounds(0, MAX_VALUE_LENGTH)
        case (step,):
            return exactly(0) if step in _STEPS else None  # a quantity has no number of elements either
        case _:
            return None
