"""Selectors of lists and watches: of fields, of labels, and of shards.

Source: k8s.io/apimachinery ``pkg/fields``, ``pkg/labels`` and ``pkg/sharding``; k8s.io/apiserver ``pkg/sharding``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dra_kit.apiserver.status_errors import StatusError, bad_request
from dra_kit.kubernetes.cel.failures import CompileFailure
from dra_kit.kubernetes.cel.parser import parse
from dra_kit.kubernetes.cel.tree import CallNode, IdentNode, LiteralNode, SelectNode, SyntaxNode
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.resource.matching import LabelRequirement, LabelSelector, int64_of
from dra_kit.kubernetes.values.json import value_at

_TOKEN = re.compile(r"\s*(?:(!=|==|=|!|,|\(|\)|>|<)|([^\s!=,()<>]+))")


def parse_label_selector(text: str) -> LabelSelector:
    """Read ``a=b,c in (d,e),!f`` and the like.

    Raises:
        StatusError: 400, it does not read so.
    """
    return LabelSelector(tuple(_Parser(text).requirements())) if text.strip() else LabelSelector()


class _Parser:
    def __init__(self, text: str) -> None:
        self.words: list[str] = []
        position = 0
        while match := _TOKEN.match(text, position):
            self.words.append(match[1] or match[2])
            position = match.end()

    def requirements(self) -> list[LabelRequirement]:
        found = [self._requirement()]
        while self.words:
            if (word := self.words.pop(0)) != ",":
                raise bad_request(f"found '{word}', expected: ',' or 'end of string'")
            if not self.words or self.words[0] == ",":
                raise bad_request(f"found '{self.words[0] if self.words else ''}', expected: identifier after ','")
            found.append(self._requirement())
        return found

    def _requirement(self) -> LabelRequirement:
        word = self._next("!, identifier, or 'end of string'")
        if word == ",":
            raise bad_request("found ',', expected: !, identifier, or 'end of string'")
        if word == "!":
            return LabelRequirement(self._identifier(), "DoesNotExist")
        key = self._identifier(word)
        if not self.words or self.words[0] == ",":
            return LabelRequirement(key, "Exists")
        operator = self.words.pop(0)
        match operator:
            case "=" | "==":
                return LabelRequirement(key, "In", frozenset({self._value()}))
            case "!=":
                return LabelRequirement(key, "NotIn", frozenset({self._value()}))
            case ">" | "<":
                bound = self._value()
                if int64_of(bound) is None:
                    detail = "for 'Gt', 'Lt' operators, the value must be an integer"
                    raise self._refusal(f'values[0]: Invalid value: "{bound}": {detail}')
                return LabelRequirement(key, "Gt" if operator == ">" else "Lt", frozenset({bound}))
            case "in" | "notin":
                return LabelRequirement(key, "In" if operator == "in" else "NotIn", self._set())
        raise self._refusal(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")

    def _set(self) -> frozenset[str]:
        if (word := self._next("'('")) != "(":
            raise self._refusal(f"found '{word}', expected: '('")
        values: set[str] = set()
        while True:
            values.add(self._value())
            word = self._next("',' or ')'")
            if word == ")":
                return frozenset(values)
            if word != ",":
                raise self._refusal(f"found '{word}', expected: ',' or ')'")

    def _value(self) -> str:
        """Return an identifier, or the empty value before a comma, a parenthesis or the end."""
        if not self.words or self.words[0] in {",", ")"}:
            return ""
        return self._identifier()

    def _identifier(self, word: str | None = None) -> str:
        word = self._next("identifier") if word is None else word
        if _TOKEN.fullmatch(word) is None or word in {"!=", "==", "=", "!", ",", "(", ")", ">", "<"}:
            raise self._refusal(f"found '{word}', expected: identifier")
        return word

    def _next(self, expected: str) -> str:
        if not self.words:
            raise self._refusal(f"found '', expected: {expected}")
        return self.words.pop(0)

    def _refusal(self, cause: str) -> Exception:
        return bad_request(f"unable to parse requirement: {cause}")


FieldReader: TypeAlias = Callable[[Mapping[str, Any]], str]
"""Reads the value of one selectable field of an object; absent is the empty string."""
_TERM = re.compile(r"(?P<field>[^=!]*?)(?P<operator>!=|==|=)(?P<value>.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\,=])")


class FieldTerm(Struct, frozen=True):
    """``field=value`` or ``field!=value``."""

    field: str
    value: str
    equal: bool


class FieldSelector(Struct, frozen=True):
    """Terms that must all hold, each with the reader of its field."""

    terms: tuple[tuple[FieldTerm, FieldReader], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Return whether an object matches all terms."""
        return all((read(obj) == term.value) is term.equal for term, read in self.terms)

    def value(self, field: str) -> str | None:
        """Return the required value of a field, None if any value matches."""
        return next((term.value for term, _ in self.terms if term.field == field and term.equal), None)


def parse_field_selector(text: str, readers: Mapping[str, FieldReader], unknown: Callable[[str], str]) -> FieldSelector:
    r"""Read ``a.b=c,d!=e``; a backslash escapes ``\``, ``,`` and ``=`` in values.

    Raises:
        StatusError: 400, it does not read so, or names a field without a reader: then with the text of ``unknown``.
    """
    found = field_terms(text)
    if (refused := next((term.field for term in found if term.field not in readers), None)) is not None:
        raise bad_request(unknown(refused))
    return FieldSelector(tuple((term, readers[term.field]) for term in found))


def field_terms(text: str) -> list[FieldTerm]:
    """Return the terms of a field selector, whatever fields they name.

    Raises:
        StatusError: 400, it does not read as one.
    """
    terms: list[FieldTerm] = []
    for part in re.split(r"(?<!\\),", text):
        if not part.strip():
            continue
        match = _TERM.fullmatch(part)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        field = match["field"].strip()
        if not field and not match["value"]:
            continue  # selects everything
        terms.append(FieldTerm(field, _unescaped(match["value"]), equal=match["operator"] != "!="))
    return terms


def required_fields(text: str) -> tuple[tuple[str, str], ...]:
    """Return the fields of which a selector requires one value, with that value; nothing if it does not read."""
    try:
        return tuple((term.field, term.value) for term in field_terms(text) if term.equal)
    except StatusError:
        return ()


def _unescaped(value: str) -> str:
    rest = _ESCAPED.sub("", value)
    if (found := re.search(r"\\.?|=", rest, re.DOTALL)) is not None:
        cause = "unescaped character in value: 61" if found[0] == "=" else f"invalid escape sequence: {found[0]}"
        raise bad_request(f"invalid field selector: {cause}")
    return _ESCAPED.sub(r"\1", value)


def flag(path: str) -> FieldReader:
    """Read a dotted path to a boolean; absent is ``false``."""
    read = reader(path)
    return lambda obj: read(obj) or "false"


def reader(path: str) -> FieldReader:
    """Read a dotted path as a string; booleans as ``true`` and ``false``."""
    names = path.split(".")

    def read(obj: Mapping[str, Any]) -> str:
        value = value_at(obj, names)
        if isinstance(value, bool):
            return "true" if value else "false"
        return "" if value is None else str(value)

    return read


_SHARD_FIELDS: Final = {"object.metadata.uid": "uid", "object.metadata.namespace": "namespace"}
_HASHES: Final = 2**64
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_HEX: Final = re.compile(r"[0-9a-f]+")
_HEX_DIGITS: Final = 16


class ShardSelector(Struct, frozen=True):
    """The objects whose hash of one field is in one of some ranges (gate ShardedListAndWatch).

    Attributes:
        field: ``uid`` or ``namespace``.
        ranges: first hash, and the one after the last.
    """

    field: str
    ranges: tuple[tuple[int, int], ...]

    def matches(self, obj: Mapping[str, Any]) -> bool:
        """Return whether an object is in one of the ranges."""
        hashed = _FNV_OFFSET  # 64-bit FNV-1a
        for byte in str(obj["metadata"].get(self.field, "")).encode():
            hashed = (hashed ^ byte) * _FNV_PRIME % _HASHES
        return any(start <= hashed < end for start, end in self.ranges)

    def __str__(self) -> str:
        return " || ".join(
            f"shardRange(object.metadata.{self.field}, '{start:#018x}', '{end:#018x}')" for start, end in self.ranges
        )


def parse_shard_selector(text: str) -> ShardSelector:
    """Read ``shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')``, several joined by ``||``.

    Raises:
        StatusError: 400, it does not read so.
    """
    text = text.strip()
    if not text:
        raise _bad_shard("empty shard selector is not allowed; omit the parameter for unfiltered lists")
    try:
        root = parse(text, has_bind=False)
    except CompileFailure as failure:
        raise _bad_shard(f"CEL parse error: {failure.message}") from None
    found = [_shard_range(call) for call in _alternatives(root)]
    fields = [field for field, _ in found]
    if other := next((field for field in fields if field != fields[0]), ""):
        raise _bad_shard(f'all shard ranges must use the same field, got "{fields[0]}" and "{other}"')
    return ShardSelector(_SHARD_FIELDS[fields[0]], tuple(limits for _, limits in found))


def _bad_shard(detail: str) -> StatusError:
    return bad_request(f"invalid shard selector: {detail}")


def _alternatives(root: SyntaxNode) -> Iterator[CallNode]:
    """Yield the calls that ``||`` joins, from left to right."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, CallNode):
            raise _bad_shard("unexpected expression; expected shardRange() call or || operator")
        if node.function == "_||_":
            waiting += reversed(node.operands)
        elif node.function == "shardRange":
            yield node
        else:
            raise _bad_shard(f'unsupported function "{node.function}"; only shardRange() and || are allowed')


def _shard_range(call: CallNode) -> tuple[str, tuple[int, int]]:
    if len(call.arguments) != 3:
        raise _bad_shard(f"shardRange() requires exactly 3 arguments, got {len(call.arguments)}")
    path = _field_path(call.arguments[0])
    if path not in _SHARD_FIELDS:
        raise _bad_shard(f'unsupported field path "{path}"; supported: {", ".join(_SHARD_FIELDS)}')
    start, end = (_hash(node, name) for node, name in zip(call.arguments[1:], ("hexStart", "hexEnd"), strict=True))
    if start >= end:
        raise _bad_shard(f"shard range start {start:#018x} must be less than end {end:#018x}")
    return path, (start, end)


def _field_path(node: SyntaxNode) -> str:
    names: list[str] = []
    while isinstance(node, SelectNode) and not node.test_only:
        names.append(node.field)
        node = node.operand
    if not isinstance(node, IdentNode):
        raise _bad_shard("shardRange() first argument: expected field path (e.g. object.metadata.uid)")
    return ".".join([node.name, *reversed(names)])


def _hash(node: SyntaxNode, name: str) -> int:
    """Return a bound of 16 hexadecimal digits; that after the highest hash has 17."""
    value = node.value if isinstance(node, LiteralNode) else None
    if not isinstance(value, str):
        raise _bad_shard(f"{name} must be a string literal (e.g. '0xff')")
    digits = value.removeprefix("0x")
    if digits == value:
        raise _bad_shard(f"{name} must have '0x' prefix, got {go_quote(value)}")
    if not digits:
        raise _bad_shard(f"{name}: hex value is required after '0x'")
    if len(digits) > _HEX_DIGITS + 1:
        most = _HEX_DIGITS + 1
        raise _bad_shard(f"{name}: hex value too long ({len(digits)} chars, max {most}): {go_quote(digits)}")
    if _HEX.fullmatch(digits) is None:
        wrong = next(char for char in digits if _HEX.fullmatch(char) is None)
        raise _bad_shard(f"{name}: invalid hex character {go_quote(wrong)} in {go_quote(value)}")
    number = int(digits, 16)
    if len(digits) > _HEX_DIGITS and number != _HASHES:
        rule = f"17-digit hex value must be '{_HASHES:#x}' (2^64)"
        raise _bad_shard(f"{name}: {rule}, got {go_quote(value)}")
    if len(digits) < _HEX_DIGITS:
        hint = f'(did you mean "{number:#018x}"?)'
        raise _bad_shard(f"{name} must be a 0x-prefixed 16-digit hex value, got {go_quote(value)} {hint}")
    return number
