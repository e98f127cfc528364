"""When two values are equal: cel-go's rules with those of Kubernetes' types, asymmetries included."""

from __future__ import annotations

from typing import Any, Final

from dra_kit.cel.cost.meter import Frame, spend
from dra_kit.cel.failure import Failure, no_such_overload
from dra_kit.cel.values import (
    MAPS,
    Computed,
    Duration,
    Map,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
)
from dra_kit.values.quantity import Quantity

# Comparing two containers is as much work as comparing so many numbers, beside their elements.
_CONTAINER_WORK: Final = 10
_NUMBERS: Final = frozenset({int, Uint, float})
_PLAIN: Final = frozenset({str, bytes, bool, TypeValue})


def equal(frame: Frame, left: Any, right: Any) -> bool:
    """Return ``left == right``.

    Raises:
        Failure: the left value is of a type of Kubernetes (quantity, semver, url, format, ip, cidr) and the right one
            is not of the same.
        Exhausted: the values are too large to be compared.
    """
    one, other = type(left), type(right)
    if left is None or right is None:
        return left is right
    if one in _NUMBERS:
        return other in _NUMBERS and numbers_equal(left, right)
    if one in _PLAIN:
        return one is other and bool(left == right)
    if one is list:
        return other is list and _lists_equal(frame, left, right)
    if one in MAPS:
        return other in MAPS and _maps_equal(frame, left, right)
    if one is Optional:
        return other is Optional and _optionals_equal(frame, left, right)
    if one is Duration or one is Timestamp:
        return one is other and bool(left.nanoseconds == right.nanoseconds)
    if one is Quantity or one is Computed:
        if other is not Quantity:
            raise no_such_overload()
        return bool(left == right)
    return bool(left.equals(right))


def numbers_equal(left: float, right: float) -> bool:
    """Return whether two numbers of any type are equal; beside a double, integers lose their precision."""
    if type(left) is float or type(right) is float:
        return float(left) == float(right)
    return left == right


def holds(frame: Frame, element: Any, values: list[Any]) -> bool:
    """Return whether a list has an element that ``element`` is equal to; what cannot be compared is different."""
    spend(frame, len(values))
    for value in values:
        try:
            if equal(frame, element, value):
                return True
        except Failure:
            continue
    return False


def _lists_equal(frame: Frame, left: list[Any], right: list[Any]) -> bool:
    if len(left) != len(right):
        return False
    spend(frame, _CONTAINER_WORK + len(left))
    return all(_not_different(frame, one, other) for one, other in zip(left, right, strict=True))


def _maps_equal(frame: Frame, left: Map, right: Map) -> bool:
    if len(left) != len(right):
        return False
    spend(frame, _CONTAINER_WORK + len(left))
    for key in left:
        mine, _ = left.find(key)
        theirs, found = right.find(key)
        if not found or not _not_different(frame, mine, theirs):
            return False
    return True


def _optionals_equal(frame: Frame, left: Optional, right: Optional) -> bool:
    if not left.present or not right.present:
        return left.present is right.present
    return equal(frame, left.value, right.value)


def _not_different(frame: Frame, left: Any, right: Any) -> bool:
    """Return whether values inside of containers are equal; what cannot be compared is (Kubernetes 1.37.1)."""
    try:
        return equal(frame, left, right)
    except Failure:
        return True
