"""Quantities and semantic versions."""

from __future__ import annotations

import operator
from functools import cache, partial
from typing import Any, Final

from msgspec.structs import replace

from dra_kit.kubernetes.cel import types
from dra_kit.kubernetes.cel.failures import EvaluationFailure, succeeds
from dra_kit.kubernetes.cel.types import Library, Overload
from dra_kit.kubernetes.cel.values import INT_MIN, RUNTIME_TYPES, UINT_MAX, ComputedQuantity
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.values.quantity import InvalidQuantity, Quantity, wrap_int64
from dra_kit.kubernetes.values.semver import PrecedenceKey, Version, precedence_key

LIBRARY: Final = Library()
BY_RELEASE: Final = frozenset({"isQuantity", "quantity"})
"""The functions of :func:`quantity_overloads`."""


LIBRARY.declare("string_to_quantity", "quantity(string) -> quantity", None)
LIBRARY.declare("is_quantity_string", "isQuantity(string) -> bool", None)


def _quantity(text: str, version: KubernetesVersion) -> Quantity:
    try:
        return Quantity(text, version)
    except InvalidQuantity as error:
        raise EvaluationFailure(str(error), "conversion") from None


@cache
def quantity_overloads(function: str, version: KubernetesVersion) -> tuple[Overload, ...]:
    """Return the overloads of ``quantity()`` or ``isQuantity()`` with the limits of a release; none of others."""
    read = partial(_quantity, version=version)
    computes = {"quantity": read, "isQuantity": succeeds(read)}
    found = (overload for overload in LIBRARY.overloads if overload.function == function and function in computes)
    return tuple(replace(overload, compute=computes[function]) for overload in found)


LIBRARY.declare("quantity_sign", "sign(quantity) -> int", lambda value: value.sign)
LIBRARY.methods(
    {
        "quantity_is_greater_than": ("isGreaterThan(quantity, quantity) -> bool", operator.gt),
        "quantity_is_less_than": ("isLessThan(quantity, quantity) -> bool", operator.lt),
        "quantity_compare_to": ("compareTo(quantity, quantity) -> int", lambda value, other: value.compare(other)),
        "quantity_get_float": ("asApproximateFloat(quantity) -> double", lambda value: value.approximate_float),
        "quantity_is_integer": ("isInteger(quantity) -> bool", lambda value: value.as_int64 is not None),
    }
)


@LIBRARY.method("quantity_get_int", "asInteger(quantity) -> int")
def _as_integer(value: Quantity) -> int:
    number = value.as_int64
    if number is None:
        raise EvaluationFailure("cannot convert value to integer", "conversion")
    return number


def _computed(value: Quantity, other: Any, *, negative: bool) -> ComputedQuantity:
    right = other if isinstance(other, Quantity) else Quantity.from_int64(other)
    if negative and other == INT_MIN and value.as_int64 is not None and not value.bounded:
        # before 1.38, Go negates the smallest int64 to itself, if no overflow is detected
        total = value + right
        if total.as_int64 is not None:
            return ComputedQuantity(total)
    return ComputedQuantity(value - right if negative else value + right)


@LIBRARY.method("quantity_add_int", "add(quantity, int) -> quantity")
@LIBRARY.method("quantity_add", "add(quantity, quantity) -> quantity")
def _add(value: Quantity, other: Any) -> ComputedQuantity:
    return _computed(value, other, negative=False)


@LIBRARY.method("quantity_sub_int", "sub(quantity, int) -> quantity")
@LIBRARY.method("quantity_sub", "sub(quantity, quantity) -> quantity")
def _sub(value: Quantity, other: Any) -> ComputedQuantity:
    return _computed(value, other, negative=True)


class Semver:
    """A version with an order and an equality that ignore build metadata.

    Raises:
        EvaluationFailure: a number does not fit 64 bits.
    """

    __slots__ = ("key", "version")

    def __init__(self, version: Version) -> None:
        self.version: Version = version
        self.key: PrecedenceKey = precedence_key(version)
        if max(*self.key[:3], *(number for _, number, _ in self.key[4])) > UINT_MAX:
            raise EvaluationFailure("a number of the version is out of range", "conversion")

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Semver) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)


RUNTIME_TYPES[Semver] = types.SEMVER


def parse_semver(text: str) -> Semver:
    """Read a version strictly.

    Raises:
        EvaluationFailure: the text is not a version.
    """
    try:
        return Semver(Version(text))
    except ValueError as error:
        raise EvaluationFailure(str(error), "conversion") from None


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    for position, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[position] = stripped if stripped[:1] in set("123456789") else f"0{stripped}"
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise EvaluationFailure("short version cannot contain PreRelease/Build meta data", "conversion")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


@LIBRARY.function("string_bool_to_semver", "semver(string, bool) -> semver")
@LIBRARY.function("string_to_semver", "semver(string) -> semver")
def _semver(text: str, normalize: bool = False) -> Semver:
    return parse_semver(_normalized(text) if normalize else text)


LIBRARY.declare("is_semver_string", "isSemver(string) -> bool", succeeds(_semver))
LIBRARY.declare("is_semver_string_bool", "isSemver(string, bool) -> bool", succeeds(_semver))
LIBRARY.methods({
    "semver_is_greater_than": ("isGreaterThan(semver, semver) -> bool", lambda value, other: value.key > other.key),
    "semver_is_less_than": ("isLessThan(semver, semver) -> bool", lambda value, other: value.key < other.key),
    "semver_compare_to": (
        "compareTo(semver, semver) -> int", lambda value, other: (value.key > other.key) - (value.key < other.key)
    ),
    "semver_major": ("major(semver) -> int", lambda value: wrap_int64(value.version.major)),
    "semver_minor": ("minor(semver) -> int", lambda value: wrap_int64(value.version.minor)),
    "semver_patch": ("patch(semver) -> int", lambda value: wrap_int64(value.version.patch)),
})  # fmt: skip
