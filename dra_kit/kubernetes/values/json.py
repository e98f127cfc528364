"""JSON as the API server sends it, duplicate keys included."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

JSONValue: TypeAlias = "dict[str, JSONValue] | list[JSONValue] | str | int | float | bool | None"
"""What ``loads`` returns, for type checkers."""

Object: TypeAlias = dict[str, Any]
"""An object of JSON whose fields are known to be of the types that the API gives them."""

ObjectView: TypeAlias = Mapping[str, Any]
"""Likewise, and whoever has it does not change it."""

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\.",
    re.DOTALL,
)

_MAX_DIGITS: Final = 400
"""More digits than a double can hold."""


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
    """Decode like ``json.loads``, but an object with duplicate keys becomes a DuplicateKeysObject.

    The API server stores opaque parameters (RawExtension) byte for byte, so that duplicate keys reach the driver;
    strict decoding must be able to refuse them. ``NaN`` and ``Infinity``, which are no JSON, are refused here. Halves
    of characters become U+FFFD, as in Go. A number beyond a double is infinite, an integer of more digits than Python
    converts included: one number of one object must not make a list of objects unreadable.

    Args:
        text: one JSON document; bytes are UTF-8.

    Raises:
        ValueError: the text is no JSON.
    """
    return decoded(text, _decode)


def decoder(
    parse_int: Callable[[str], Any] | None = None, parse_float: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """Return a decoder that works as ``loads``, but reads numbers in its own way.

    Args:
        parse_int: as for ``json.JSONDecoder``.
        parse_float: likewise.
    """
    return json.JSONDecoder(
        object_pairs_hook=_object, parse_constant=_refuse_constant, parse_int=parse_int, parse_float=parse_float
    ).decode


def decoded(text: str | bytes, decode: Callable[[str], Any]) -> Any:
    """Return the value of a text by a decoder of ``decoder``; arguments and errors are those of ``loads``."""
    if not isinstance(text, str):
        text = text.decode()
    if _SURROGATE.search(text):
        text = _ESCAPE.sub(_whole, text)
    try:
        return decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python refuses to convert integers of more than 4,300 digits
        if decode is not _decode:
            raise
        return decoded(text, _decode_long)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply to be read") from None


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _whole(match: re.Match[str]) -> str:
    escape = match[0]
    return r"\ufffd" if match["pair"] is None and _SURROGATE.match(escape) else escape


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    return result if len(result) == len(pairs) else DuplicateKeysObject(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


_decode = decoder()
_decode_long = decoder(parse_int=_integer)
