"""Where the fields of a YAML or JSON document stand in its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import yaml

_INDEX: Final = re.compile(r"\[(\d+)\]")
_ESCAPE: Final = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_JOINT: Final = re.compile(r"\\\r?\n[ \t]*")


@dataclass(frozen=True, slots=True)
class Place:
    """A piece of a text; its end is behind its last character."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Field:
    """A field that a path led to, or the one above that is there when it is not.

    Attributes:
        key: the node of its key; None for items of lists and the document itself.
        value: the node of its value.
        path: the part of the path that is there, as it is written in the document.
        exact: whether the whole path is there.
    """

    key: yaml.Node | None
    value: yaml.Node
    path: str
    exact: bool


class Positions:
    """The places of the fields of one document.

    Paths are those of the API server's errors: ``spec.devices.requests[0].exactly.selectors[0].cel.expression``, with
    ``[key]`` or ``["key"]`` for the keys of maps. What only v1 has (``exactly``), or only v1beta1 (``basic``), is
    passed over where the document does not have it.

    Args:
        text: the file.
        root: the document in it.
        prefix: path of the object in the document; of an item of a List, for example ``items[3]``.
    """

    def __init__(self, text: str, root: yaml.Node, prefix: str = "") -> None:
        self._text = text
        self._root = root
        self._prefix = prefix

    def find(self, path: str) -> Field:
        """The field at ``path``, or the nearest one above it that the document has."""
        found = _walk(Field(None, self._root, "", exact=True), self._prefix)
        return _walk(Field(found.key, found.value, "", exact=True), path)

    def place(self, path: str) -> Place:
        """What to underline for a field: a value of one line, else its key, else the item or what is above."""
        field = self.find(path)
        scalar = isinstance(field.value, yaml.ScalarNode)
        one_line = field.value.start_mark.line == field.value.end_mark.line
        if field.exact and scalar and one_line and field.value.start_mark.index < field.value.end_mark.index:
            return _of(field.value)
        return self._first_line(_of(field.value if field.key is None else field.key))

    def key(self, path: str) -> Place:
        """What to underline for the name of a field."""
        field = self.find(path)
        return self._first_line(_of(field.value if field.key is None else field.key))

    def inside(self, path: str, start: int, end: int) -> Place:
        """The place of some characters of a text value, which may be quoted, folded or a block.

        Args:
            path: of the value.
            start: index in the value.
            end: index behind the last character that is meant.
        """
        field = self.find(path)
        if not field.exact or not isinstance(field.value, yaml.ScalarNode):
            return self.place(path)
        places = _aligned(self._text, field.value)
        first = places[min(start, len(places) - 1)]
        last = places[min(max(end - 1, start), len(places) - 1)]
        return self._first_line(Place(first.start, max(last.end, first.start + 1)))

    def _first_line(self, place: Place) -> Place:
        newline = self._text.find("\n", place.start, place.end)
        return place if newline < 0 else Place(place.start, max(newline, place.start + 1))


def _of(node: yaml.Node) -> Place:
    return Place(node.start_mark.index, max(node.end_mark.index, node.start_mark.index + 1))


def _walk(field: Field, path: str) -> Field:
    rest = path
    while rest:
        step = _step(field, rest)
        if step is None:
            passed = _passed_over(field, rest)
            if passed is None:
                return Field(field.key, field.value, field.path, exact=False)
            field, rest = passed
            continue
        field, rest = step
    return field


def _step(field: Field, rest: str) -> tuple[Field, str] | None:
    if isinstance(field.value, yaml.SequenceNode):
        match = _INDEX.match(rest)
        if match is None or int(match[1]) >= len(field.value.value):
            return None
        item = field.value.value[int(match[1])]
        return Field(None, item, field.path + match[0], exact=True), rest[match.end() :]
    if not isinstance(field.value, yaml.MappingNode):
        return None
    best: tuple[Field, str] | None = None
    for key, value in _entries(field.value):
        for written in _spellings(str(key.value), first=not field.path):
            if rest.startswith(written) and rest[len(written) : len(written) + 1] in {"", ".", "["}:
                below = rest[len(written) :]
                # of two keys that fit, the longer one is meant: a key may hold dots
                if best is None or len(below) < len(best[1]):
                    best = Field(key, value, field.path + written, exact=True), below
    return best


def _spellings(key: str, *, first: bool) -> tuple[str, ...]:
    return (key if first else f".{key}", f"[{key}]", f'["{key}"]')


def _entries(node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Keys and values, those that ``<<`` merges in after its own."""
    merged: list[tuple[yaml.Node, yaml.Node]] = []
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            maps = value.value if isinstance(value, yaml.SequenceNode) else [value]
            merged += [pair for item in maps if isinstance(item, yaml.MappingNode) for pair in item.value]
        else:
            yield key, value
    yield from merged


def _passed_over(field: Field, rest: str) -> tuple[Field, str] | None:
    """One version of the API has a level that another has not."""
    for level in (".exactly", ".basic"):
        if rest.startswith(level) and rest[len(level) : len(level) + 1] in {"", ".", "["}:
            return field, rest[len(level) :]
    if isinstance(field.value, yaml.MappingNode):
        for key, value in field.value.value:
            if key.value == "basic" and isinstance(value, yaml.MappingNode):
                return Field(key, value, f"{field.path}.basic", exact=True), rest
    return None


def _aligned(text: str, node: yaml.ScalarNode) -> list[Place]:
    """The place in the file of each character of a value, and one for its end.

    Quoting, folding and indentation change nothing but white space and escapes, so that all other characters follow
    each other as in the value.
    """
    at, end = node.start_mark.index, node.end_mark.index
    quoted = node.style in {"'", '"'}
    if quoted:
        at += 1
    elif node.style in {"|", ">"}:
        newline = text.find("\n", at, end)
        at = end if newline < 0 else newline + 1
    last = max(end - 1, 0)
    places = []
    for character in node.value:
        unit = _joined(text, at, node.style)
        if not character.isspace():
            while unit < end and text[unit].isspace():
                unit = _joined(text, unit + 1, node.style)
            at = _behind(text, unit, node.style)
        elif unit < end and node.style == '"' and text[unit] == "\\":
            at = _behind(text, unit, node.style)
        elif unit < end and text[unit] == character:
            at = unit + 1
            if character == "\n":
                at = _indented(text, at, end)
        unit = min(unit, last)
        places.append(Place(unit, max(min(at, end), unit + 1)))
    at = min(at, last if quoted else end)
    places.append(Place(at, at + 1))
    return places


def _joined(text: str, at: int, style: str | None) -> int:
    """Behind the end of a line that a backslash joins with the next one."""
    match = _JOINT.match(text, at) if style == '"' else None
    return match.end() if match is not None else at


def _indented(text: str, at: int, end: int) -> int:
    while at < end and text[at] == " ":
        at += 1
    return at


def _behind(text: str, unit: int, style: str | None) -> int:
    """Behind what is written for one character."""
    if style == "'" and text.startswith("''", unit):
        return unit + 2
    if style == '"':
        match = _ESCAPE.match(text, unit)
        if match is not None:
            return match.end()
    return unit + 1
