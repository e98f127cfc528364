"""YAML as kubectl reads it: nodes with their positions, scalars, and remedies for frequent mistakes."""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, TypeAlias

import yaml
from msgspec import Struct
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from dra_kit.kubernetes.manifests.files import Limits, UnreadableText
from dra_kit.kubernetes.values.json import too_deep

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_IGNORED: Final = frozenset({StreamStartEvent, DocumentStartEvent})
_DIRECTIVES: Final = 20
"""Maximum lines that begin with ``%``: kubectl accepts none, and libyaml compares each ``%TAG`` with all others."""


def compose(text: str, limits: Limits, *, inner: bool = True) -> Iterator[Node]:
    """Yield the documents of a YAML text one at a time, including empty ones.

    Args:
        text: the text.
        limits: of all documents together.
        inner: whether lists and mappings have the nodes of their items in addition to the value.

    Raises:
        UnreadableText: the text from here on is not YAML, or exceeds the limits.
    """
    directives = text.count("\n%") + text.startswith("%")
    if directives > _DIRECTIVES:
        raise UnreadableText(
            f"{directives} lines begin with % like directives, more than {_DIRECTIVES}: indent them, or remove them"
        )
    loader = None
    try:
        loader = _LOADER(text)
        composer = _Composer(loader, limits, inner=inner)
        while (root := composer.document()) is not None:
            yield root
    except yaml.reader.ReaderError as error:
        raise UnreadableText(str(error.reason), _index(text, error)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise UnreadableText(with_remedy(problem), mark.index if mark is not None else 0) from None
    finally:
        if loader is not None:
            loader.dispose()


def _index(text: str, error: yaml.reader.ReaderError) -> int:
    """Return the index of a character that may be missing; libyaml counts bytes."""
    return len(text.encode(errors="replace")[: error.position].decode(errors="ignore"))


class _Anchor(Struct):
    """A node with an anchor, and its size."""

    node: Node | None = None  # None until the node is complete
    values: int = 0
    characters: int = 0


class _Open(Struct):
    """A list or mapping whose end has not been read yet."""

    node: SequenceNode | MappingNode
    anchor: _Anchor | None
    values: int
    characters: int
    key: tuple[str | None, ScalarNode] | None = None


class _Composer:
    """Builds one document after another."""

    def __init__(self, loader: Any, limits: Limits, *, inner: bool) -> None:
        self._inner = inner
        self._next = loader.get_event
        self._limits = limits
        self._open: list[_Open] = []
        self._anchors: dict[str, _Anchor] = {}
        self._values = 0
        self._characters = 0
        self._root: Node | None = None

    def document(self) -> Node | None:
        """Return the next document; None after the last one."""
        self._anchors.clear()
        while True:
            event = self._next()
            kind = type(event)
            if kind is ScalarEvent:
                self._scalar(event)
            elif kind is MappingStartEvent:
                self._begin(MappingNode(event.start_mark.index, event.end_mark.index), event)
            elif kind is SequenceStartEvent:
                self._begin(SequenceNode(event.start_mark.index, event.end_mark.index), event)
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                self._end(event)
            elif kind is AliasEvent:
                self._alias(event)
            elif kind is DocumentEndEvent:
                return self._root
            elif kind is StreamEndEvent:
                return None
            else:
                assert kind in _IGNORED  # noqa: S101 - no other kinds of events exist

    def _scalar(self, event: Any) -> None:
        text = event.value
        start = event.start_mark.index
        plain = event.implicit[0] and event.tag is None
        key = self._is_key()
        try:
            if key and is_merge(text, event.tag, plain=plain):
                self._open[-1].key = None, ScalarNode(start, event.end_mark.index, text, event.style, None)
                return
            value = resolve(text, event.tag, plain=plain)
            value = key_text(value) if key else json_value(value)
        except InvalidScalar as error:
            raise UnreadableText(str(error), start) from None
        node = ScalarNode(start, event.end_mark.index, text, event.style, value)
        anchor = self._anchor(event)
        if anchor is not None:
            anchor.node, anchor.values, anchor.characters = node, 1, len(text)
        self._count(1, len(text), start)
        self._add(node, start)

    def _begin(self, node: SequenceNode | MappingNode, event: Any) -> None:
        if len(self._open) == self._limits.depth:
            raise UnreadableText(too_deep(self._limits.depth), node.start)
        if self._is_key():
            raise UnreadableText("a list or mapping cannot be a key", node.start)
        self._open.append(_Open(node, self._anchor(event), self._values, self._characters))
        self._count(1, 0, node.start)

    def _end(self, event: Any) -> None:
        frame = self._open.pop()
        node = frame.node
        node.end = event.end_mark.index
        if frame.anchor is not None:
            frame.anchor.node = node
            frame.anchor.values = self._values - frame.values
            frame.anchor.characters = self._characters - frame.characters
        self._add(node, node.start)

    def _alias(self, event: Any) -> None:
        start = event.start_mark.index
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            raise UnreadableText(f"the alias {event.anchor} has no anchor before it in the document", start)
        node = anchor.node
        if node is None:
            raise UnreadableText("an alias is inside the value of its anchor", start)
        self._count(anchor.values, anchor.characters, start)
        self._add(node, start)

    def _anchor(self, event: Any) -> _Anchor | None:
        if event.anchor is None:
            return None
        made = self._anchors[event.anchor] = _Anchor()
        return made

    def _count(self, values: int, characters: int, start: int) -> None:
        self._values += values
        self._characters += characters
        if self._values > self._limits.values:
            raise UnreadableText(
                f"it has more than {self._limits.values} values and keys with its aliases expanded; split it, or save "
                "it as JSON, whose keys do not count",
                start,
            )
        if self._characters > self._limits.file_bytes:
            raise UnreadableText(
                f"its strings have more than {self._limits.file_bytes} characters with its aliases expanded; split it",
                start,
            )

    def _is_key(self) -> bool:
        if not self._open:
            return False
        frame = self._open[-1]
        return frame.key is None and isinstance(frame.node, MappingNode)

    def _add(self, node: Node, start: int) -> None:
        """Add a complete node to its parent."""
        if not self._open:
            self._root = node
            return
        frame = self._open[-1]
        parent = frame.node
        if isinstance(parent, SequenceNode):
            if self._inner:
                parent.items.append(node)
            parent.value.append(node.value)
        elif frame.key is None:
            frame.key = self._key(node, start)
        else:
            key, key_node = frame.key
            frame.key = None
            if self._inner:
                parent.entries.append((key, key_node, node))
            if key is None:
                self._merge(parent.value, node)
            else:
                parent.value[key] = node.value

    def _key(self, node: Node, start: int) -> tuple[str, ScalarNode]:
        if not isinstance(node, ScalarNode):
            raise UnreadableText("a list or mapping cannot be a key", start)
        try:
            # for an alias: the value is not valid as a key
            return key_text(node.value), node
        except InvalidScalar as error:
            raise UnreadableText(str(error), start) from None

    def _merge(self, into: dict[str, Any], node: Node) -> None:
        """Merge mappings; in kubectl they override earlier entries, and the first of a list overrides the others."""
        merged = reversed(node.value) if isinstance(node, SequenceNode) else [node.value]
        for mapping in merged:
            if not isinstance(mapping, dict):
                raise UnreadableText("<< needs a mapping or a list of mappings", node.start)
            into.update(mapping)


Scalar: TypeAlias = str | int | float | bool | None
_STANDARD: Final = "tag:yaml.org,2002:"
_MERGE: Final = "<<"
_MERGE_TAG: Final = f"{_STANDARD}merge"
_INT: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_OCTAL: Final = re.compile(r"([-+]?)0([0-7]+)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_FRACTION: Final = re.compile(r"\.[0-9](?:_?[0-9])*(?:[eE][-+]?[0-9](?:_?[0-9])*)?")
_NUMERIC: Final = frozenset("+-0123456789")
_DIGITS: Final = 400
"""Maximum characters of a number; longer ones exceed 64 bits and are slow to parse."""
_INT64: Final = range(-(1 << 63), 1 << 63)
_UINT64_MAX: Final = (1 << 64) - 1
_EXACT: Final = 1 << 53
"""Up to this number, a float can represent every integer."""
_WHOLE: Final = 1e21
"""Go's JSON writes larger numbers with an exponent."""
_SHORTEST: Final = 6
"""From this exponent on, Go writes a float key with an exponent (``strconv.FormatFloat``, 'g', -1)."""
_CONSTANTS: Final[dict[str, bool | float | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}


class InvalidScalar(ValueError):
    """A scalar that kubectl rejects; the text has the reason."""


def is_merge(text: str, tag: str | None, *, plain: bool) -> bool:
    """Return whether a key merges other mappings; arguments are those of ``resolve``."""
    return text == _MERGE and (tag == _MERGE_TAG or (tag is None and plain))


def resolve(text: str, tag: str | None, *, plain: bool) -> Scalar:
    """Return the value of a scalar before conversion to JSON: a float stays a float, even if whole or infinite.

    Args:
        text: its content.
        tag: its tag in the long form, or None.
        plain: whether it is unquoted.

    Raises:
        InvalidScalar: the value does not fit its tag.
    """
    if tag is None:
        return _implicit(text) if plain else text
    kind = tag.removeprefix(_STANDARD) if tag.startswith(_STANDARD) else ""
    if kind == "binary":
        return _binary(text)
    if kind not in {"int", "float", "bool", "null", "timestamp"}:
        return text  # for unknown tags kubectl uses the text
    value = _implicit(text)
    if kind == "timestamp" and isinstance(value, str) and text[:1].isdigit():
        return text
    if kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if (kind == "int" and type(value) is int) or (kind == "bool" and type(value) is bool):
        return value
    if kind == "null" and value is None:
        return None
    raise InvalidScalar(f"the value has the tag !!{kind} but another type; remove the tag or change the value")


def json_value(value: Scalar) -> Scalar:
    """Return a scalar from ``resolve`` as converted to JSON: large whole numbers lose digits.

    Raises:
        InvalidScalar: JSON cannot represent the value.
    """
    if type(value) is int and value not in _INT64:
        value = float(value)
    if type(value) is not float:
        return value
    if not math.isfinite(value):
        raise InvalidScalar("JSON has neither infinite numbers nor NaN; quote it if it is a string")
    if not value.is_integer() or abs(value) >= _WHOLE:
        return value
    return int(value) if abs(value) <= _EXACT else int(Decimal(repr(value)))


def key_text(value: Scalar) -> str:
    """Return a scalar from ``resolve`` as the key of a JSON object.

    Raises:
        InvalidScalar: kubectl rejects such a key.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _short(value)
    if value is None or value not in _INT64:
        raise InvalidScalar(f"{'null' if value is None else value} cannot be a key; quote it if it is a string")
    return str(value)


def _implicit(text: str) -> Scalar:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    first = text[0]
    if first == ".":
        return _float(text.replace("_", "")) if _FRACTION.fullmatch(text) else text
    if first not in _NUMERIC:
        return text
    digits = text.replace("_", "")
    value: Scalar = _integer(digits) if len(digits) <= _DIGITS and _INT.fullmatch(digits) else None
    if value is None and _FLOAT.fullmatch(digits):
        value = _float(digits)
    return text if value is None or isinstance(value, str) else value


def _integer(digits: str) -> int | None:
    """Return an integer; None beyond 64 bits."""
    number = int(_OCTAL.sub(r"\g<1>0o\2", digits) if _OCTAL.fullmatch(digits) else digits, 0)
    return number if _INT64.start <= number <= _UINT64_MAX else None


def _float(text: str) -> float | str:
    """Return a float; the text itself beyond the range of floats."""
    number = float(text)
    return number if math.isfinite(number) else text


def _binary(text: str) -> str:
    try:
        return base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True).decode(errors="replace")
    except (binascii.Error, ValueError):
        raise InvalidScalar("the value has the tag !!binary but is not base64") from None


def _short(value: float) -> str:
    """Return a float in the fewest digits that distinguish it from other floats of 32 bits, as Go writes it."""
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    try:
        wanted = struct.pack("f", value)
        (value,) = struct.unpack("f", wanted)
    except OverflowError:
        return ".inf" if value > 0 else "-.inf"
    # nine digits distinguish any two of them
    precision = next(n for n in range(9) if struct.pack("f", float(f"{value:.{n}e}")) == wanted)
    mantissa, _, exponent = f"{value:.{precision}e}".partition("e")
    if -4 <= int(exponent) < _SHORTEST:
        return f"{value:.{max(precision - int(exponent), 0)}f}"
    return f"{mantissa}e{exponent}"


class ScalarNode(Struct, eq=False):
    """A string, number, boolean or null.

    Attributes:
        start: index of its first character in the text.
        end: index after its last character.
        text: its content.
        style: its quotes, ``|`` or ``>``; empty for a plain scalar.
        value: the value that kubectl reads.
    """

    start: int
    end: int
    text: str
    style: str
    value: Any


class SequenceNode(Struct, eq=False):
    """A list.

    Attributes:
        start: index of its first character in the text.
        end: index after its last character.
        items: its items.
        value: the list of their values.
    """

    start: int
    end: int
    items: list[Node] = []
    value: list[Any] = []


class MappingNode(Struct, eq=False):
    """A mapping.

    Attributes:
        start: index of its first character in the text.
        end: index after its last character.
        entries: key, node of the key and node of the value, in order. The key is None for an entry that merges other
            mappings.
        value: the mapping including merged mappings; the last entry of duplicate keys wins.
    """

    start: int
    end: int
    entries: list[tuple[str | None, ScalarNode, Node]] = []
    value: dict[str, Any] = {}
    _index: dict[str, tuple[ScalarNode, Node]] | None = None

    @property
    def index(self) -> dict[str, tuple[ScalarNode, Node]]:
        """The nodes of key and value by the key, including merged ones; its own entries take precedence."""
        if self._index is None:
            found: dict[str, tuple[ScalarNode, Node]] = {}
            for key, key_node, value in self.entries:
                if key is not None:
                    found.setdefault(key, (key_node, value))
            for key, _, value in self.entries:
                if key is None:
                    for mapping in value.items if isinstance(value, SequenceNode) else [value]:
                        if isinstance(mapping, MappingNode):
                            for name, nodes in mapping.index.items():
                                found.setdefault(name, nodes)
            self._index = found
        return self._index


Node: TypeAlias = ScalarNode | SequenceNode | MappingNode
_REMEDIES: Final = (
    ("mapping values are not allowed", "indent the line like its neighbours, or quote a string that contains ': '"),
    ("did not find expected key", "indent the line like the other keys of its mapping"),
    ("did not find expected '-' indicator", "begin each item of a list with '- ' in the same column"),
    ("block sequence entries are not allowed", "begin a list on a new line"),
    ("could not find expected ':'", "write 'key: value', with a space after the colon"),
    ("cannot start any token", "indent with spaces, not tabs, and quote a string that begins with @, ` or %"),
    ("did not find expected ',' or", "close the bracket, or separate the items by commas"),
    ("while scanning a quoted scalar", "close the quote"),
)
"""Remedies by parts of the message; the first match is used."""


def with_remedy(problem: str) -> str:
    """Return the message of libyaml with its remedy, if known."""
    remedy = next((text for words, text in _REMEDIES if words in problem), "")
    return f"{problem}; {remedy}" if remedy else problem
