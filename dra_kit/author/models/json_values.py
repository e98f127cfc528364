"""JSON that an author hands over to be stored or published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import JsonValue

from dra_kit.author.models.model import kind_of

if TYPE_CHECKING:
    JsonLike: TypeAlias = "bool | int | float | str | Sequence[JsonLike] | Mapping[str, JsonLike] | None"
    """What an author may hand over as JSON; it is stored in lists and dicts."""
else:
    JsonLike = Any  # pydantic would follow the alias into itself; json_value looks at all of it

_DEEPEST = 100
"""Levels of lists and objects; the API server refuses far fewer bytes than this needs, parsers far fewer levels."""


def json_value(value: object) -> JsonValue:
    """Return a copy of the value in lists and dicts, so that it cannot change after it was handed over.

    Raises:
        ValueError: naming the place inside it that is no JSON: null, bool, int, finite float, str, a sequence, or a
            mapping with str keys.
    """
    return _copy(value, "", 0)


def _copy(value: object, path: str, depth: int) -> JsonValue:
    if depth > _DEEPEST:
        msg = f"it is nested deeper than {_DEEPEST} levels"
        raise ValueError(msg)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                msg = f"{_at(path)}a key is no str but {kind_of(key)}"
                raise ValueError(msg)  # noqa: TRY004 - pydantic collects ValueErrors only
        return {key: _copy(item, f"{path}[{key}]", depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_copy(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    msg = f"{_at(path)}{_named(value)} is no JSON: use None, bool, int, finite float, str, list, or dict"
    raise ValueError(msg)


def _named(value: object) -> str:
    """Return a word for a value that is not JSON: its type, or that it is an infinite number."""
    return str(value) if isinstance(value, float) else kind_of(value)


def _at(path: str) -> str:
    return f"at {path}: " if path else ""
