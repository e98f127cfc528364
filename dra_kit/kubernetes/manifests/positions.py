"""Positions of the fields of an object in its file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.kubernetes.manifests.yaml_reader import MappingNode, Node, ScalarNode, SequenceNode
from dra_kit.kubernetes.values.json import value_at

_INDEX: Final = re.compile(r"\[([0-9]+)\]")
_INDEX_DIGITS: Final = 9
_END: Final = re.compile(r"[.\[]")
_ENDS: Final = 64
"""Maximum dots and brackets tried as the end of a key; a key with more is found only at the end of a path."""
_ESCAPE: Final = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_JOINT: Final = re.compile(r"\\\r?\n[ \t]*")
_PROPERTIES: Final = re.compile(r"(?:[&!][^\s,\[\]{}]*\s*)+")
_ALIGNED: Final = 1 << 16
"""Maximum characters of a value in which positions are found: more than a CEL expression may have."""


class TextSpan(Struct, frozen=True):
    """A range of a text; ``end`` is exclusive."""

    start: int
    end: int


class FieldPosition(Struct, frozen=True):
    """The field at a path, or the nearest existing field above it.

    Attributes:
        key: the node of its key; None for items of lists and the document itself.
        value: the node of its value.
        path: the existing part of the path, as in the document.
        exact: whether the whole path exists.
        keys: its keys and indexes from the root of the document.
    """

    key: Node | None
    value: Node
    path: str
    exact: bool
    keys: tuple[str | int, ...] = ()

    def below(self, key: Node | None, value: Node, written: str, step: str | int) -> FieldPosition:
        """Return the field one level below, whose ``step`` is ``written`` in the path."""
        return FieldPosition(key, value, self.path + written, exact=True, keys=(*self.keys, step))


class Positions:
    """The positions of the fields of one document.

    Paths are those of the API server's errors: ``spec.devices.requests[0].exactly.selectors[0].cel.expression``, with
    ``[key]`` or ``["key"]`` for the keys of maps. A level that only v1 (``exactly``) or only v1beta1 (``basic``) has is
    skipped if the document does not have it.

    Args:
        text: the file.
        root: the document.
        prefix: path of the object in the document, for example ``items[3]`` in a List.
    """

    def __init__(self, text: str, root: Node, prefix: str = "") -> None:
        self._text = text
        self.root = root
        self._prefix = prefix
        self._aligned: dict[int, list[TextSpan]] = {}

    def find(self, path: str) -> FieldPosition:
        """Return the field at ``path``, or the nearest one above it in the document."""
        found = _walk(FieldPosition(None, self.root, "", exact=True), self._prefix)
        return _walk(replace(found, path="", exact=True), path)

    def place(self, path: str) -> TextSpan:
        """Return the range to underline for a field: a value on one line, else its key, else its item or parent."""
        field = self.find(path)
        scalar = isinstance(field.value, ScalarNode)
        if field.exact and scalar and self._is_one_line(field.value) and field.value.start < field.value.end:
            return _of(field.value)
        return self._first_line(_of(field.value if field.key is None else field.key))

    def key(self, path: str) -> TextSpan:
        """Return the range to underline for the name of a field."""
        field = self.find(path)
        return self._first_line(_of(field.value if field.key is None else field.key))

    def inside(self, path: str, start: int, end: int) -> TextSpan:
        """Return the position of the characters ``start:end`` of a string, which may be quoted, folded or a block."""
        field = self.find(path)
        if not field.exact or not isinstance(field.value, ScalarNode) or len(field.value.text) > _ALIGNED:
            return self.place(path)
        places = self._places(field.value)
        first = places[min(start, len(places) - 1)]
        last = places[min(max(end - 1, start), len(places) - 1)]
        return self._first_line(TextSpan(first.start, max(last.end, first.start + 1)))

    def exactly(self, node: ScalarNode, start: int, end: int) -> TextSpan | None:
        """Return the position of the characters ``start:end`` of a string, which may be empty; None if unknown."""
        if len(node.text) > _ALIGNED:
            return None
        places = self._places(node)
        return TextSpan(places[start].start, places[end - 1].end if end > start else places[start].start)

    def holder(self, field: FieldPosition) -> object:
        """Return the value that contains a field."""
        return value_at(self.root.value, field.keys[:-1])

    def _places(self, node: ScalarNode) -> list[TextSpan]:
        places = self._aligned.get(id(node))
        if places is None:
            places = self._aligned[id(node)] = _aligned(self._text, node)
        return places

    def _is_one_line(self, node: Node) -> bool:
        return self._text.find("\n", node.start, node.end) < 0

    def _first_line(self, place: TextSpan) -> TextSpan:
        newline = self._text.find("\n", place.start, place.end)
        return place if newline < 0 else TextSpan(place.start, max(newline, place.start + 1))


def _of(node: Node) -> TextSpan:
    return TextSpan(node.start, max(node.end, node.start + 1))


def _walk(field: FieldPosition, path: str) -> FieldPosition:
    rest = path
    while rest:
        step = _step(field, rest)
        if step is None:
            passed = _passed_over(field, rest)
            if passed is None:
                return replace(field, exact=False)
            field, rest = passed
            continue
        field, rest = step
    return field


def _step(field: FieldPosition, rest: str) -> tuple[FieldPosition, str] | None:
    if isinstance(field.value, SequenceNode):
        match = _INDEX.match(rest)
        if match is None or len(match[1]) > _INDEX_DIGITS or int(match[1]) >= len(field.value.items):
            return None
        number = int(match[1])
        return field.below(None, field.value.items[number], match[0], number), rest[match.end() :]
    if not isinstance(field.value, MappingNode):
        return None
    for key, written in _keys(rest, first=not field.path):
        found = field.value.index.get(key)
        if found is not None:
            return field.below(*found, written, key), rest[len(written) :]
    return None


def _keys(rest: str, *, first: bool) -> Iterator[tuple[str, str]]:
    """Yield the possible next keys of a path, each with its notation in the path.

    If two keys match, the longer one is used, because a key may contain dots and brackets.
    """
    ends = [match.start() for match in islice(_END.finditer(rest, 1), _ENDS)]
    for end in reversed([*ends, len(rest)]):
        written = rest[:end]
        if written.startswith('["') and written.endswith('"]'):
            yield written[2:-2], written
        if written.startswith("[") and written.endswith("]"):
            yield written[1:-1], written
        if first:
            yield written, written
        elif written.startswith("."):
            yield written[1:], written


def _passed_over(field: FieldPosition, rest: str) -> tuple[FieldPosition, str] | None:
    """Return the level that exists in only one version of the API."""
    for level in (".exactly", ".basic"):
        if rest.startswith(level) and rest[len(level) : len(level) + 1] in {"", ".", "["}:
            return field, rest[len(level) :]
    if isinstance(field.value, MappingNode):
        found = field.value.index.get("basic")
        if found is not None and isinstance(found[1], MappingNode):
            return field.below(*found, ".basic", "basic"), rest
    return None


def content_start(text: str, node: Node) -> int:
    """Return the start of a value after its anchor and tag, which are parts of its node."""
    found = _PROPERTIES.match(text, node.start, node.end)
    return node.start if found is None else found.end()


def _aligned(text: str, node: ScalarNode) -> list[TextSpan]:
    """Return the position in the file of each character of a value, and of its end.

    Quoting, folding and indentation change only white space and escapes, so all other characters are in the same order
    as in the value.
    """
    at, end = content_start(text, node), node.end
    quoted = node.style in {"'", '"'}
    if quoted:
        at += 1
    elif node.style in {"|", ">"}:
        newline = text.find("\n", at, end)
        at = end if newline < 0 else newline + 1
    last = max(end - 1, 0)
    places = []
    for character in node.text:
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
        places.append(TextSpan(unit, max(min(at, end), unit + 1)))
    at = min(at, last if quoted else end)
    places.append(TextSpan(at, at + 1))
    return places


def _joined(text: str, at: int, style: str | None) -> int:
    """Return the position after the end of a line that a backslash joins with the next one."""
    match = _JOINT.match(text, at) if style == '"' else None
    return match.end() if match is not None else at


def _indented(text: str, at: int, end: int) -> int:
    while at < end and text[at] == " ":
        at += 1
    return at


def _behind(text: str, unit: int, style: str | None) -> int:
    """Return the position after one written character."""
    if style == "'" and text.startswith("''", unit):
        return unit + 2
    if style == '"':
        match = _ESCAPE.match(text, unit)
        if match is not None:
            return match.end()
    return unit + 1
