"""What a shape is, in words for who wrote the manifest."""

from __future__ import annotations

import json
from typing import Final

from dra_kit.policy.rules import KeyRule
from dra_kit.policy.shapes import (
    Anything,
    Array,
    Boolean,
    Bounds,
    Decimal,
    Dictionary,
    Float,
    Integer,
    KeyChoice,
    Null,
    Object,
    OneOf,
    Quantity,
    Shape,
    Tagged,
    Text,
    Union,
    is_distinguishable,
)

_WORDS: Final[dict[type[Shape], str]] = {
    Anything: "anything",
    Null: "null",
    Boolean: "true or false",
    Decimal: "a number, or a decimal number in a string",
    Quantity: "a quantity such as 1Gi",
}
_MOST_KEYS: Final = 40
"""Known keys that a message tells."""


def wanted(shape: Shape) -> str:
    """Return what a value must be: ``an integer from 1 to 5, or null``."""
    match shape:
        case Array():
            return f"a list{_count(shape.min_length, shape.max_length, 'item')}"
        case Dictionary():
            return f"an object{_count(shape.min_length, shape.max_length, 'key')}"
        case Object():
            return f"an object ({shape.name})"
        case Tagged():
            return f"an object whose {shape.key} is {one_of(shape.tags.values)}"
        case Union():
            members = sorted(shape.members, key=lambda member: isinstance(member, Null))
            texts = list(dict.fromkeys(wanted(member) for member in members))
            inside = "" if is_distinguishable(shape) else ", and right inside"
            return f"{', '.join(texts[:-1])}, or {texts[-1]}{inside}" if len(texts) > 1 else texts[0]
        case _:
            return _scalar(shape)


def _scalar(shape: Anything | Null | Boolean | Integer | Float | Decimal | Quantity | Text | OneOf) -> str:
    match shape:
        case Integer(bounds):
            return f"an integer{_bounds(bounds)}"
        case Float(bounds):
            return f"a number{_bounds(bounds)}"
        case Text():
            return text(shape)
        case OneOf(values):
            return one_of(values)
        case _:
            return _WORDS[type(shape)]


def of_keys(rule: KeyRule) -> str:
    """Return what the keys of a value must be, as the end of a sentence that begins with its path."""
    match rule.what:
        case Object(keys=keys) if keys:
            shown = ", ".join(keys[:_MOST_KEYS]) + (", …" if len(keys) > _MOST_KEYS else "")
            return f"has an unknown field; known are {shown}"
        case Object():
            return "has an unknown field; it has none"
        case Text() as key:
            return f"has a key that is not {text(key)}"
        case OneOf(values):
            return f"has a key that is not {one_of(values)}"
        case KeyChoice(keys, required):
            return f"must have {'one' if required else 'at most one'} of {', '.join(keys)}"


def one_of(values: tuple[str | float | bool | None, ...]) -> str:
    """Return what to write, of a few values."""
    shown = [json.dumps(value, ensure_ascii=False) for value in values]
    return shown[0] if len(shown) == 1 else f"one of {', '.join(shown)}"


def text(shape: Text) -> str:
    """Return what a string must be."""
    count = _count(shape.min_length, shape.max_length, "character")
    pattern = f" that matches {shape.pattern.written}" if shape.pattern is not None else ""
    return f"{shape.what}{' of ASCII' if shape.ascii_only else ''}{count}{pattern}"


def _count(least: int | None, most: int | None, what: str) -> str:
    if least is not None and least == most:
        return f" of {least} {what}{'' if least == 1 else 's'}"
    if least is not None and most is not None:
        return f" of {least} to {most} {what}s"
    if most is not None:
        return f" of at most {most} {what}{'' if most == 1 else 's'}"
    return f" of at least {least} {what}{'' if least == 1 else 's'}" if least is not None else ""


def _bounds(bounds: Bounds) -> str:
    if bounds.ge is not None and bounds.le is not None and bounds.gt is None and bounds.lt is None:
        limits = [f"from {bounds.ge} to {bounds.le}"]
    else:
        names = {"of at least": bounds.ge, "above": bounds.gt, "of at most": bounds.le, "below": bounds.lt}
        limits = [f"{name} {limit}" for name, limit in names.items() if limit is not None]
    if bounds.multiple_of is not None:
        limits.append(f"that is a multiple of {bounds.multiple_of}")
    return f" {' and '.join(limits)}" if limits else ""
