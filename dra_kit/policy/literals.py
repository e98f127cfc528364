"""Values of Literals and Enums as values of JSON, and values of JSON as CEL writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from dra_kit.policy.shapes import OneOf

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1


def choice(values: Iterable[Any]) -> OneOf | None:
    """Return a check for one of these values; None where one of them is no scalar of JSON."""
    plain = [value.value if isinstance(value, Enum) else value for value in values]
    expressible = all(isinstance(value, str | int | float | None) and _finite(value) for value in plain)
    return OneOf(tuple(plain)) if expressible and plain else None


def _finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def text(value: str) -> str:
    """Return a string as CEL writes it, on one line."""
    escaped = json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'")
    return "'" + "".join(char if char.isprintable() else _escape(char) for char in escaped) + "'"


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def number(value: float) -> str:
    """Return a number as CEL writes it; an integer of more than 64 bits is a double, as the API server shows it."""
    if isinstance(value, int) and INT_MIN <= value <= INT_MAX:
        return str(int(value))
    return repr(float(value))
