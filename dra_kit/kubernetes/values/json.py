"""JSON beyond the standard library: duplicate keys, limits, the text of opaque objects, sizes, values at a path.

Source of opaque JSON: k8s.io/apimachinery 0.37 ``pkg/runtime`` RawExtension; measured on kube-apiserver 1.37.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final, NoReturn, TypeAlias

from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

Object: TypeAlias = dict[str, Any]
"""A JSON object whose fields have the types of the API."""
ObjectView: TypeAlias = Mapping[str, Any]
"""A read-only ``Object``."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\.",
    re.DOTALL,
)
_MAX_DIGITS: Final = 400
"""More digits than a double can hold."""


class DuplicateKeysObject(dict[str, Any]):
    """A JSON object with duplicate keys; the last value of each key wins.

    Args:
        pairs: keys and values in the order of the text.

    Attributes:
        duplicates: the duplicate keys, in the order in which they first repeat.
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


class NestedTooDeeply(ValueError):
    """JSON has more levels than Python can read."""


def loads(text: str | bytes) -> Any:
    """Decode like ``json.loads``, but an object with duplicate keys becomes a DuplicateKeysObject.

    The API server stores opaque parameters (RawExtension) byte for byte, so that duplicate keys reach the driver;
    strict decoding must be able to reject them. ``NaN`` and ``Infinity``, which are not JSON, are rejected. Lone
    surrogates become U+FFFD, as in Go. A number that is too large for a double becomes infinite, also an integer with
    more digits than Python converts, so that one number does not make a list of objects unreadable.

    Raises:
        ValueError: the text is not JSON (NestedTooDeeply, if it may be).
    """
    try:
        return _decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python refuses to convert integers of more than 4,300 digits
        return _decode_long(text)


def make_decoder(
    parse_int: Callable[[str], Any] | None = None, parse_float: Callable[[str], Any] | None = None
) -> Callable[[str | bytes], Any]:
    """Return a decoder like ``loads`` that reads numbers with the given functions; see ``json.JSONDecoder``."""
    decoder = json.JSONDecoder(
        object_pairs_hook=_object, parse_constant=_refuse_constant, parse_int=parse_int, parse_float=parse_float
    )

    def decode(text: str | bytes) -> Any:
        if not isinstance(text, str):
            text = text.decode()
        if _SURROGATE.search(text):
            text = _ESCAPE.sub(_whole, text)
        try:
            return decoder.decode(text)
        except RecursionError:
            raise NestedTooDeeply("the JSON is nested too deeply to be read") from None

    return decode


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _whole(match: re.Match[str]) -> str:
    escape = match[0]
    return r"\ufffd" if match["pair"] is None and _SURROGATE.match(escape) else escape


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    return result if len(result) == len(pairs) else DuplicateKeysObject(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_decode = make_decoder()
_decode_long = make_decoder(parse_int=_integer)


_OTHERS: Final = bytes(set(range(256)) - set(b'[]{},"\\'))
_STEPS: Final = [0] * 256
for _bracket in b"[{":
    _STEPS[_bracket] = 1
for _bracket in b"]}":
    _STEPS[_bracket] = -1


def too_deep(depth: int) -> str:
    """Return why text of more levels is refused; Kubernetes stores more in opaque parameters."""
    return f"it is nested more than {depth} levels deep, which is all that dra-kit reads; write it with fewer levels"


def check_json(content: bytes, *, depth: int, values: int) -> None:
    """Raise ValueError if nesting or number of values exceed the limits; text that is not JSON may pass."""
    structure = _structure(content)
    # a list or object of n values has n - 1 commas and an opening bracket, so this is an upper bound for the values
    count = structure.count(b",") + structure.count(b"[") + structure.count(b"{")
    if count > values:
        raise ValueError(f"it has more than {values} values; split it")
    if _is_deeper(structure, depth):
        raise ValueError(too_deep(depth))


def is_deeper(content: bytes, depth: int) -> bool:
    """Return whether JSON has more levels of lists and objects."""
    return content.count(b"[") + content.count(b"{") > depth and _is_deeper(_structure(content), depth)


def _is_deeper(structure: bytes, depth: int) -> bool:
    depths = accumulate(map(_STEPS.__getitem__, structure.replace(b",", b"")))
    return structure.count(b"[") + structure.count(b"{") > depth and max(depths) > depth


_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def without_deeper(content: bytes, depth: int, mark: str) -> bytes:
    """Return JSON in which ``mark`` stands for each list and object below so many levels; the mark is plain text."""
    kept, level, end = list[bytes](), 0, 0
    for token in _TOKEN.finditer(content):
        step = _STEPS[token[0][0]] if len(token[0]) == 1 else 0
        if step > 0 and level == depth:
            kept += [content[end : token.start()], f'"{mark}"'.encode()]
        if step < 0 and level == depth + 1:
            end = token.end()
        level += step
    return b"".join((*kept, content[end:])) if level == 0 else content


def _structure(content: bytes) -> bytes:
    """Return the brackets and commas outside strings."""
    if b"\\" in content:  # only in strings
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    content = content.translate(None, _OTHERS)
    if b'"' not in content:
        return content
    # most strings are reduced to their quotes
    return b"".join(content.replace(b'""', b"").split(b'"')[::2])


def byte_length(text: str) -> int:
    """Return the length of ``text`` in bytes for the API server; it may contain lone surrogates from JSON."""
    return len(text.encode(errors="surrogatepass"))


RAW_OBJECT_MAX_LENGTH: Final = 10 * 1024
"""Bytes of ``opaque.parameters`` and of ``status.devices[].data`` (resource.k8s.io/v1)."""


class RawObject(dict[str, Any]):
    """A JSON object with its text, which the API server stores and whose length it limits; compared by text."""

    __slots__ = ("text",)
    __hash__ = None

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text: str = text

    @override
    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, RawObject) else super().__eq__(other)

    @override
    def __ne__(self, other: object) -> bool:
        return not self == other

    def __copy__(self) -> RawObject:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RawObject:
        return self  # values are replaced, never changed


def raw_text(value: Any) -> str:
    """Return opaque JSON as text: the original one including white space, else compact JSON."""
    return value.text if isinstance(value, RawObject) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_HTML: Final = {"&": "\\u0026", "<": "\\u003c", ">": "\\u003e", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def escape_html(text: str) -> str:
    """Return JSON as Go escapes it; the characters are in strings only."""
    for char, escaped in _HTML.items():
        if char in text:
            text = text.replace(char, escaped)
    return text


def shown_text(text: str) -> str:
    """Return the text of opaque JSON as the API server shows it: compact and escaped, otherwise unchanged."""
    return escape_html("".join(match[1] for match in _WORD.finditer(text)))


def go_json(value: Any, *, sort: bool = True) -> str:
    """Return JSON as Go's ``encoding/json`` writes it, opaque objects by their texts.

    Args:
        value: JSON.
        sort: whether the value is a Go map, whose keys are sorted and whose texts are not kept, instead of a struct.
    """
    if isinstance(value, RawObject) and not sort:
        return shown_text(value.text)
    if isinstance(value, dict):
        pairs = sorted(value.items()) if sort else value.items()
        return "{" + ",".join(f"{go_json(key)}:{go_json(item, sort=sort)}" for key, item in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(go_json(item, sort=sort) for item in value) + "]"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _go_number(value)
    return escape_html(json.dumps(value, ensure_ascii=False))


def _go_number(value: float) -> str:
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return str(value)
    number = float(value)
    if number == 0 or 1e-6 <= abs(number) < 1e21:
        return format(Decimal(repr(number)), "f").removesuffix(".0")
    mantissa, _, exponent = repr(number).partition("e")
    return f"{mantissa.removesuffix('.0')}e{exponent[0]}{exponent[1:].lstrip('0')}"


def json_size(value: Any) -> int:
    """Return the length of opaque JSON in bytes, as :func:`raw_text` has it."""
    return byte_length(raw_text(value))


def value_at(value: Any, keys: Iterable[str | int]) -> Any:
    """Return the value at a path of keys and list indexes; None if the path does not exist."""
    for key in keys:
        if isinstance(value, (dict, Mapping)):  # the check for a dict is fast
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def text_schema(
    validate: Callable[..., Any],
    *,
    accepts_numbers: bool = False,
    metadata: dict[str, Any] | None = None,
    sees_context: bool = False,
) -> CoreSchema:
    """Return the pydantic schema of a value that is a string in JSON.

    Args:
        validate: converts the input of a model to the value; raises ValueError.
        accepts_numbers: the JSON schema also allows numbers.
        metadata: of the schema, by which readers of schemas recognize it.
        sees_context: ``validate`` also takes pydantic's ValidationInfo.
    """
    accepted: CoreSchema = core_schema.str_schema()
    if accepts_numbers:
        accepted = core_schema.union_schema([accepted, core_schema.float_schema()])
    validator = (
        core_schema.with_info_plain_validator_function if sees_context else core_schema.no_info_plain_validator_function
    )
    return validator(
        validate,
        json_schema_input_schema=accepted,
        metadata=metadata,
        serialization=core_schema.to_string_ser_schema(when_used="always"),
    )


_WORD: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+)', re.DOTALL)


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


def raw_object_texts(document: str) -> Mapping[str, str]:
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
