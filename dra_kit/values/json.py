"""JSON as the API server sends it, duplicate keys included."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias

JSONValue: TypeAlias = "dict[str, JSONValue] | list[JSONValue] | str | int | float | bool | None"
"""What ``loads`` returns, for type checkers."""


class DuplicateKeysObject(dict[str, Any]):
    """A JSON object that has some key more than once; the last value of each key wins.

    Args:
        pairs: the keys and values as they are written.

    Attributes:
        duplicates: the keys that come more than once, each one time, in the order in which they first repeat.
    """

    __slots__ = ("duplicates",)

    duplicates: tuple[str, ...]

    def __init__(self, pairs: Iterable[tuple[str, Any]]) -> None:
        super().__init__()
        repeated: dict[str, None] = {}
        for key, value in pairs:
            if key in self:
                repeated[key] = None
            self[key] = value
        self.duplicates = tuple(repeated)


def loads(text: str | bytes) -> Any:
    """Like ``json.loads``, but an object with duplicate keys comes back as a DuplicateKeysObject.

    The API server stores opaque parameters (RawExtension) byte for byte, so that duplicate keys reach the driver;
    strict decoding must be able to refuse them. ``NaN`` and ``Infinity``, which are no JSON, are refused here.

    Args:
        text: one JSON document; bytes are UTF-8.

    Raises:
        ValueError: the text is no JSON.
    """
    try:
        return _decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("the JSON is nested too deeply to be read") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    return result if len(result) == len(pairs) else DuplicateKeysObject(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


_decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant).decode
