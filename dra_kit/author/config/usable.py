"""JSON that every driver can work with: what else is valid JSON is refused before a model sees it.

The API server keeps opaque parameters byte for byte, whatever they hold. Some values pass every model and fail later,
in a driver's ``prepare`` or in the container runtime, each time that the kubelet tries again. Webhook, node and
``dra-kit lint`` decode with the same function, so that such a config is refused when it is created.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from dra_kit.author.config.problems import KeyProblem, Problem, path_text
from dra_kit.kubernetes.values.amount import INT64_MAX, INT64_MIN, MAX_DIGITS
from dra_kit.text import shorten

_MAX_PROBLEMS: Final = 1000
_MAX_DEPTH: Final = 100
"""Levels of lists and objects: far fewer than Python and pydantic can follow, wherever they are called from."""

_PATH_BYTES: Final = 300
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_DIGITS: Final = re.compile(r"[\d_]++")


def usable_json(value: Any) -> tuple[Any, list[Problem]]:
    """Return a value with its numbers as Kubernetes reads them, and the problems that no model may see.

    An integer beyond 64 bits becomes a double, as in the API server. These are problems:

    - a number beyond a double;
    - text with a NUL character, which no environment variable, path or argument can hold;
    - text with half of a surrogate pair, which cannot be written as UTF-8;
    - text with more than 4,000 digits in a row, which Python refuses to convert to a number and back;
    - more than 100 levels of lists and objects.

    Args:
        value: as :func:`dra_kit.kubernetes.values.json.loads` gives it.

    Returns:
        The value, changed where it has to be, and the first thousand problems in the order of the fields.
    """
    problems: list[Problem] = []
    return _usable(value, (), problems), problems


def _usable(value: Any, loc: tuple[str | int, ...], problems: list[Problem]) -> Any:
    if isinstance(value, str):
        _check_text(value, loc, problems)
    elif isinstance(value, Mapping | list):
        if len(loc) >= _MAX_DEPTH:
            _add(problems, _path(loc), f"is nested in more than {_MAX_DEPTH} levels of lists and objects")
            return None
        if isinstance(value, list):
            return [_usable(item, (*loc, index), problems) for index, item in enumerate(value)]
        for key in value:
            _check_text(key, (*loc, key), problems, is_key=True)
        return {key: _usable(item, (*loc, key), problems) for key, item in value.items()}
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, loc, problems)
    return value


def _number(value: float, loc: tuple[str | int, ...], problems: list[Problem]) -> float:
    if isinstance(value, int):
        if INT64_MIN <= value <= INT64_MAX:
            return value
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    if not math.isfinite(value):
        _add(problems, _path(loc), "is too large for a number of 64 bits")
    return value


def _check_text(text: str, loc: tuple[str | int, ...], problems: list[Problem], *, is_key: bool = False) -> None:
    if "\0" in text:
        wrong = "has a NUL character, which no environment variable or path can hold; remove it"
    elif not text.isascii() and _SURROGATE.search(text):
        wrong = "has half of a surrogate pair, which is not a character; remove it"
    elif len(text) > MAX_DIGITS and max(map(len, _DIGITS.findall(text)), default=0) > MAX_DIGITS:
        wrong = f"has more than {MAX_DIGITS} digits in a row; write fewer"
    else:
        return
    path = _path(tuple(_SURROGATE.sub("\ufffd", part) if isinstance(part, str) else part for part in loc))
    _add(problems, path, f"key {wrong}" if is_key else wrong, is_key=is_key)


def _add(problems: list[Problem], path: str, text: str, *, is_key: bool = False) -> None:
    if len(problems) < _MAX_PROBLEMS:
        problems.append(KeyProblem(path, text) if is_key else (path, text))


def _path(loc: tuple[str | int, ...]) -> str:
    return shorten(path_text(loc), _PATH_BYTES)
