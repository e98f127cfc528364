"""What a config model accepts, as far as CEL can express it: between pydantic's schemas and the text of expressions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeAlias

from msgspec import Struct


class AnyShape(Struct, frozen=True):
    """Whatever there is in JSON."""


class NullShape(Struct, frozen=True):
    """``null``."""


class BooleanShape(Struct, frozen=True):
    """``true`` or ``false``."""


class NumberBounds(Struct, frozen=True):
    """The limits of a number, and the integer of which it is a multiple."""

    ge: float | int | None = None
    gt: float | int | None = None
    le: float | int | None = None
    lt: float | int | None = None
    multiple_of: int | None = None


class IntegerShape(Struct, frozen=True):
    """A number without a fraction, of 64 bits."""

    bounds: NumberBounds = NumberBounds()


class FloatShape(Struct, frozen=True):
    """A number."""

    bounds: NumberBounds = NumberBounds()


class DecimalShape(Struct, frozen=True):
    """A number, or a text, of which nothing more is known."""


class QuantityBounds(Struct, frozen=True):
    """The limits of a quantity, as canonical texts."""

    ge: str | None = None
    gt: str | None = None
    le: str | None = None
    lt: str | None = None


class QuantityShape(Struct, frozen=True):
    """A Kubernetes quantity: a text, with white space around it or without, or a number."""

    bounds: QuantityBounds = QuantityBounds()


class StringPattern(Struct, frozen=True):
    """A regular expression, as written and for CEL; ``ascii_only`` if the two agree only on ASCII text."""

    written: str
    re2: str
    ascii_only: bool


class StringShape(Struct, frozen=True):
    """A string; ``what`` names its format, which the node checks; ``stripped`` ignores white space around it."""

    what: str = "a string"
    min_length: int | None = None
    max_length: int | None = None
    pattern: StringPattern | None = None
    stripped: bool = False
    ascii_only: bool = False


class EnumShape(Struct, frozen=True):
    """One of some scalars; numbers and booleans are equal as in Python: ``1``, ``1.0`` and ``true`` are one."""

    values: tuple[str | int | float | bool | None, ...]


class ArrayShape(Struct, frozen=True):
    """A list; ``positions`` has the shape of each item of a list of exactly this length."""

    items: Shape = AnyShape()
    min_length: int | None = None
    max_length: int | None = None
    positions: tuple[Shape, ...] = ()


class MapShape(Struct, frozen=True):
    """An object with user-defined keys, which are strings, of an enum, or anything."""

    keys: Shape
    values: Shape
    min_length: int | None = None
    max_length: int | None = None


class ObjectField(Struct, frozen=True):
    """A field of an object, by one of its keys."""

    key: str
    shape: Shape
    required: bool


class KeyChoice(Struct, frozen=True):
    """The keys that a field may be given by: one of them, or none where it is not required."""

    keys: tuple[str, ...]
    required: bool


class ObjectShape(Struct, frozen=True):
    """An object with known ``keys``, of which only ``fields`` are checked.

    Of the keys in one of the ``choices`` only one may be given.
    """

    name: str
    fields: tuple[ObjectField, ...]
    keys: tuple[str, ...]
    choices: tuple[KeyChoice, ...] = ()


class TaggedShape(Struct, frozen=True):
    """One of several objects, distinguished by the value of a required key."""

    key: str
    choices: tuple[tuple[EnumShape, Shape], ...]

    @property
    def tags(self) -> EnumShape:
        """All values of the key."""
        return EnumShape(tuple(value for tags, _ in self.choices for value in tags.values))


class UnionShape(Struct, frozen=True):
    """One of several shapes, none of which is a union or Anything."""

    members: tuple[Shape, ...]


ScalarShape: TypeAlias = (
    AnyShape | NullShape | BooleanShape | IntegerShape | FloatShape | DecimalShape | QuantityShape | StringShape
    | EnumShape
)  # fmt: skip
Shape: TypeAlias = ScalarShape | ArrayShape | MapShape | ObjectShape | TaggedShape | UnionShape


def union(members: Iterable[Shape]) -> Shape:
    """Return the shape of whatever one of the members accepts."""
    found: dict[Shape, None] = {}
    for member in members:
        if isinstance(member, AnyShape):
            return member
        found |= dict.fromkeys(member.members if isinstance(member, UnionShape) else (member,))
    return next(iter(found)) if len(found) == 1 else UnionShape(tuple(found))


def members(shape: Shape) -> tuple[Shape, ...]:
    """Return the alternatives of a shape; the shape itself if it is not a union."""
    return shape.members if isinstance(shape, UnionShape) else (shape,)


def is_distinguishable(shape: UnionShape) -> bool:
    """Return whether the JSON type of a value says which list or object of a union it may be."""
    nested = ArrayShape | MapShape | ObjectShape | TaggedShape
    kinds = [isinstance(member, ArrayShape) for member in shape.members if isinstance(member, nested)]
    return len(kinds) == len(set(kinds))


def choice(values: Iterable[Any]) -> EnumShape | None:
    """Return a check for one of these values; None if one of them is not a JSON scalar."""
    plain = [value.value if isinstance(value, Enum) else value for value in values]
    expressible = all(isinstance(value, str | int | float | None) and _finite(value) for value in plain)
    return EnumShape(tuple(plain)) if expressible and plain else None


def _finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
