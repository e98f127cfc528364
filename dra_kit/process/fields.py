"""Values of log fields, made printable: total functions, whatever the value is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

from dra_kit.text import escape_unprintable

Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"

_DEEPEST: Final = 4  # deeper values are cut: a log line is no dump
_WIDEST_INT: Final = 2**64  # beyond, numbers are written in hex: Python refuses to print huge decimals


def plain(value: object, _depth: int = 0) -> Plain:
    """Return what JSON can hold: containers as lists and objects, everything else as its ``repr``.

    Never raises: values that cannot be printed are named by their type, cycles are cut.
    """
    try:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int(value) if abs(value) < _WIDEST_INT else hex(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else repr(float(value))
        if isinstance(value, BaseException):
            return str(value) or type(value).__name__
        if _depth == _DEEPEST:
            return "..."
        if isinstance(value, Mapping):
            return {_key(key): plain(item, _depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, AbstractSet)):
            return [plain(item, _depth + 1) for item in value]
        return repr(value)
    except Exception:  # noqa: BLE001 - a __repr__, __str__ or __iter__ that fails must not lose the line
        return f"<{type(value).__name__} that cannot be printed>"


def quoted(value: object) -> str:
    """Return ``value`` for ``key=value``: bare where that is unambiguous, else as JSON."""
    shown = plain(value)
    if isinstance(shown, str) and shown and shown.isprintable() and not any(mark in shown for mark in ' "=\\'):
        return shown
    return escape_unprintable(json.dumps(shown, ensure_ascii=False))


def _key(key: object) -> str:
    shown = plain(key)
    return shown if isinstance(shown, str) else json.dumps(shown)
