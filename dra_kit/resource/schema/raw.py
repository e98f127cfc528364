"""RawExtension: JSON that the API server keeps as it was sent, white space and the spelling of numbers included."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from dra_kit.resource.schema.table import LIST, MAP, field_types
from dra_kit.values.json import loads

_WORD: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+)', re.DOTALL)


@cache
def reaches_raw(type_name: str) -> bool:
    """Return whether a type, or one inside it, has fields of type RawExtension."""
    waiting, seen = [type_name], set[str]()
    while waiting:
        name = waiting.pop().removeprefix(LIST).removeprefix(MAP)
        if name == "RawExtension":
            return True
        if name not in seen:
            seen.add(name)
            waiting += field_types(name)
    return False


class _Texts(Mapping[str, str]):
    """Pieces of a text, which are cut out when they are asked for: one may be inside of the other."""

    def __init__(self, document: str, places: Mapping[str, tuple[int, int]]) -> None:
        self._document = document
        self._places = places

    def __getitem__(self, path: str) -> str:
        start, end = self._places[path]
        return self._document[start:end]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def texts(document: str) -> Mapping[str, str]:
    """Return the text of every object inside a JSON document, by its path as in ``spec.devices.config[0].opaque``.

    Args:
        document: well-formed JSON. Of a key that comes twice the last counts.
    """
    found: dict[str, tuple[int, int]] = {}
    words = _words(document)

    def value(path: str, word: str, start: int) -> int:
        if word == "{":
            end = members(path)
            found[path] = start, end
            return end
        return items(path) if word == "[" else start + len(word)

    def members(path: str) -> int:
        while True:
            word, start = next(words)
            if word == "}":
                return start + 1
            if word == ",":
                continue
            key = unquoted(word)
            next(words)  # the colon
            value(f"{path}.{key}" if path else key, *next(words))

    def items(path: str) -> int:
        index = 0
        while True:
            word, start = next(words)
            if word == "]":
                return start + 1
            if word != ",":
                value(f"{path}[{index}]", word, start)
                index += 1

    value("", *next(words))
    return _Texts(document, found)


def unquoted(word: str) -> str:
    """Return the string of a JSON word."""
    return str(loads(word)) if "\\" in word else word[1:-1]


def _words(document: str) -> Iterator[tuple[str, int]]:
    for match in _WORD.finditer(document):
        yield match[1], match.start(1)
