"""What a config model accepts, as far as CEL can tell it: between pydantic's schemas and the text of expressions.

A shape never accepts less than its model: where a rule cannot be expressed it is left out, and noted by the reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct


class Anything(Struct, frozen=True):
    """Whatever there is in JSON."""


class Null(Struct, frozen=True):
    """``null``."""


class Boolean(Struct, frozen=True):
    """``true`` or ``false``."""


class Bounds(Struct, frozen=True):
    """What a number may be.

    Attributes:
        ge, gt, le, lt: the limits; None for none.
        multiple_of: of which integer; None for any.
    """

    ge: float | int | None = None
    gt: float | int | None = None
    le: float | int | None = None
    lt: float | int | None = None
    multiple_of: int | None = None


class Integer(Struct, frozen=True):
    """A number without a fraction, of 64 bits."""

    bounds: Bounds = Bounds()


class Float(Struct, frozen=True):
    """A number."""

    bounds: Bounds = Bounds()


class Decimal(Struct, frozen=True):
    """A number, or a text, of which nothing more is known."""


class Quantity(Struct, frozen=True):
    """A Kubernetes quantity: a text, with white space around it or without, or a number."""


class Pattern(Struct, frozen=True):
    """A regular expression that is found somewhere in a text.

    Attributes:
        written: by the author.
        re2: the same for CEL.
        ascii_only: the two agree on ASCII text only.
    """

    written: str
    re2: str
    ascii_only: bool


class Text(Struct, frozen=True):
    """A string.

    Attributes:
        what: it must be, such as ``a date``; its format is the node's to check.
        min_length, max_length: in characters.
        pattern: it matches.
        stripped: white space around it does not count.
        ascii_only: it has no other characters.
    """

    what: str = "a string"
    min_length: int | None = None
    max_length: int | None = None
    pattern: Pattern | None = None
    stripped: bool = False
    ascii_only: bool = False


class OneOf(Struct, frozen=True):
    """One of some scalars; numbers and booleans are equal as in Python: ``1``, ``1.0`` and ``true`` are one."""

    values: tuple[str | int | float | bool | None, ...]


class Array(Struct, frozen=True):
    """A list.

    Attributes:
        items: what each item is.
        min_length, max_length: how many there may be.
        positions: what the item at each index is, of a list of exactly so many.
    """

    items: Shape = Anything()
    min_length: int | None = None
    max_length: int | None = None
    positions: tuple[Shape, ...] = ()


class Dictionary(Struct, frozen=True):
    """An object with keys of the user's choice.

    Attributes:
        keys: what each key is: a Text, a OneOf or Anything.
        values: what each value is.
        min_length, max_length: how many there may be.
    """

    keys: Shape
    values: Shape
    min_length: int | None = None
    max_length: int | None = None


class Field(Struct, frozen=True):
    """A field of an object, by one of its keys."""

    key: str
    shape: Shape
    required: bool


class KeyChoice(Struct, frozen=True):
    """The keys that a field may be given by: one of them, or none where it is not required."""

    keys: tuple[str, ...]
    required: bool


class Object(Struct, frozen=True):
    """An object with known fields.

    Attributes:
        name: of the model.
        fields: those that are checked.
        keys: all that are known; more are refused.
        choices: the keys of fields that have several, of which only one may be there.
    """

    name: str
    fields: tuple[Field, ...]
    keys: tuple[str, ...]
    choices: tuple[KeyChoice, ...] = ()


class Tagged(Struct, frozen=True):
    """One of several objects, distinguished by the value of a key.

    Attributes:
        key: that must be there.
        choices: the values that choose it, and the object.
    """

    key: str
    choices: tuple[tuple[OneOf, Shape], ...]

    @property
    def tags(self) -> OneOf:
        """All values of the key."""
        return OneOf(tuple(value for tags, _ in self.choices for value in tags.values))


class Union(Struct, frozen=True):
    """One of several shapes, none of which is a union or Anything."""

    members: tuple[Shape, ...]


Shape: TypeAlias = (
    Anything | Null | Boolean | Integer | Float | Decimal | Quantity | Text | OneOf | Array | Dictionary | Object
    | Tagged | Union
)  # fmt: skip


def union(members: Iterable[Shape]) -> Shape:
    """Return the shape of whatever one of the members accepts."""
    found: dict[Shape, None] = {}
    for member in members:
        if isinstance(member, Anything):
            return member
        found |= dict.fromkeys(member.members if isinstance(member, Union) else (member,))
    return next(iter(found)) if len(found) == 1 else Union(tuple(found))


def members(shape: Shape) -> tuple[Shape, ...]:
    """Return the alternatives of a shape; itself if it is no union."""
    return shape.members if isinstance(shape, Union) else (shape,)


def is_distinguishable(shape: Union) -> bool:
    """Return whether the JSON type of a value says which list or object of a union it may be."""
    kinds = [isinstance(member, Array) for member in shape.members if isinstance(member, NESTED)]
    return len(kinds) == len(set(kinds))


NESTED = (Array, Dictionary, Object, Tagged)
"""The shapes that have others inside."""
