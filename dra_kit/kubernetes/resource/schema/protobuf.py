"""Kubernetes' protobuf by the table: decodes it to the JSON that Go writes for the same object, and encodes it as Go.

Go writes every field that is not a pointer, with zero values too, so that those do not count as set.

Source: ``generated.pb.go`` and ``marshal.go`` of k8s.io/api, k8s.io/apimachinery and k8s.io/apiextensions-apiserver
0.37.
"""

from __future__ import annotations

import base64
import math
import struct as binary
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, Final, TypeAlias

from dra_kit.kubernetes.manifests.files import REQUESTS
from dra_kit.kubernetes.resource.schema.types import LIST, MAP, SchemaField, is_unset, item_type, struct_of_all
from dra_kit.kubernetes.values.json import RawObject, check_json, loads, raw_text

MAGIC: Final = b"k8s\x00"
Value: TypeAlias = int | memoryview
"""A number, or the bytes of a string, a message or eight-byte numbers."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EMPTY: Final = memoryview(b"")
_DEPTH_MAX: Final = REQUESTS.depth // 2
"""Of messages: in JSON, most are an object in a list or map."""
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - UTC, as all times are


class MalformedProtobuf(ValueError):
    """Bytes that are not a message of the type."""


def unpack(body: bytes) -> tuple[str, str, bytes]:
    """Return ``apiVersion``, ``kind`` and message of an object in its envelope (``runtime.Unknown``).

    Raises:
        MalformedProtobuf: it is not such an object.
    """
    if not body.startswith(MAGIC):
        raise MalformedProtobuf("provided data does not appear to be a protobuf message")
    decoder = _Decoder()
    envelope = dict(decoder.values(memoryview(body)[len(MAGIC) :]))
    meta = dict(decoder.values(_bytes(envelope.get(1, _EMPTY))))
    return _text(meta.get(1, _EMPTY)), _text(meta.get(2, _EMPTY)), bytes(_bytes(envelope.get(2, _EMPTY)))


def decode_message(message: bytes, type_name: str) -> Any:
    """Return a message as the JSON value of a type, without fields that the type does not have.

    Raises:
        MalformedProtobuf: it is not such a message, is nested too deeply, or has more values than JSON may have.
    """
    return _Decoder().message(memoryview(message), type_name)


class _Decoder:
    """Decodes one message; how deep and how many its values are is limited, as two bytes can stand for an object."""

    def __init__(self) -> None:
        self._depth = 0
        self._left = REQUESTS.values

    def values(self, message: memoryview) -> Iterator[tuple[int, Value]]:
        """Yield number and value of each field of a message, in order."""
        position = 0
        while position < len(message):
            self._count(1)
            key, position = _varint(message, position)
            number, wire = key >> 3, key & 7
            if wire == _VARINT:
                value, position = _varint(message, position)
                yield number, value
                continue
            length = {_FIXED64: 8, _FIXED32: 4}.get(wire)
            if wire == _BYTES:
                length, position = _varint(message, position)
            if length is None or position + length > len(message):
                raise MalformedProtobuf("unexpected EOF")
            yield number, message[position : position + length]
            position += length

    def _count(self, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise MalformedProtobuf(f"it has more than {REQUESTS.values} values; split it")

    def message(self, message: memoryview, type_name: str) -> Any:
        """Return a message as the JSON value of a type."""
        if type_name in _MESSAGES:
            return _MESSAGES[type_name](self, message)
        if self._depth == _DEPTH_MAX:
            raise MalformedProtobuf("exceeded max recursion depth")
        self._depth += 1
        decoded: dict[str, Any] = {}
        self._fill(decoded, message, type_name, ())
        self._depth -= 1
        return decoded

    def _fill(self, decoded: dict[str, Any], message: memoryview, type_name: str, outside: tuple[int, ...]) -> None:
        """Add the fields of a message, and of messages in it that are inlined in JSON."""
        fields, inlined = _numbers(type_name)
        for number, value in self.values(message):
            tag = (*outside, number)
            if tag in inlined:
                self._fill(decoded, _bytes(value), type_name, tag)
            elif tag in fields:
                self._add(decoded, *fields[tag], value)

    def _add(self, decoded: dict[str, Any], name: str, entry: SchemaField, value: Value) -> None:
        field_type = entry.type
        if field_type.startswith(LIST):
            below = item_type(field_type)
            items = decoded.setdefault(name, [])
            if below in _NUMBERS and isinstance(value, memoryview):
                self._count(len(value))
                items += [_number(item, below) for item in _packed(value)]
            else:
                items.append(self._single(value, below))
        elif field_type.startswith(MAP):
            below = item_type(field_type)
            pair = dict(self.values(_bytes(value)))
            item = self._single(pair.get(2, 0 if below in _NUMBERS else _EMPTY), below)
            decoded.setdefault(name, {})[_text(pair.get(1, _EMPTY))] = item
        elif (single := self._single(value, field_type)) is not None and not is_unset(single, entry):
            decoded[name] = single

    def _single(self, value: Value, type_name: str) -> Any:
        if type_name in _NUMBERS:
            return _number(value, type_name)
        if type_name == "string":
            return _text(value)
        if type_name == "bytes":
            return base64.b64encode(_bytes(value)).decode()
        if type_name.startswith(LIST):  # the value of a map: a separate message with the items
            below = item_type(type_name)
            return [self._single(item, below) for number, item in self.values(_bytes(value)) if number == 1]
        return self.message(_bytes(value), type_name)


@cache
def _numbers(type_name: str) -> tuple[dict[tuple[int, ...], tuple[str, SchemaField]], set[tuple[int, ...]]]:
    """Return name and entry of each numbered field, and the numbers of messages that are inlined in JSON."""
    known = struct_of_all(type_name)
    tagged = {entry.tag: (name, entry) for name, entry in known.fields.items() if entry.tag} if known else {}
    return tagged, {tag[:i] for tag in tagged for i in range(1, len(tag))}


_NUMBERS: Final = {"bool", "int32", "int64", "double"}


def _number(value: Value, type_name: str) -> Any:
    if type_name == "double":
        content = _bytes(value)
        number: float = binary.unpack("<d", content)[0] if len(content) == 8 else math.nan
        if not math.isfinite(number):
            raise MalformedProtobuf("a double is not a number that JSON can have")
        return number
    if not isinstance(value, int):
        raise MalformedProtobuf(f"a {type_name} is not a number")
    if type_name == "bool":
        return bool(value)
    return value - (1 << 64) if value >= 1 << 63 else value


def _packed(data: memoryview) -> Iterator[int]:
    position = 0
    while position < len(data):
        number, position = _varint(data, position)
        yield number


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise MalformedProtobuf("unexpected EOF")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & ((1 << 64) - 1), position
        shift += 7


def _bytes(value: Value) -> memoryview:
    if not isinstance(value, memoryview):
        raise MalformedProtobuf("a message is a number")
    return value


def _text(value: Value) -> str:
    try:
        return str(_bytes(value), "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedProtobuf(str(error)) from None


def _time(decoder: _Decoder, message: memoryview, *, timespec: str) -> str | None:
    if not message:
        return None
    parts = dict(decoder.values(message))
    seconds, nanos = _number(parts.get(1, 0), "int64"), _number(parts.get(2, 0), "int32")
    try:
        moment = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    except OverflowError as error:
        raise MalformedProtobuf(str(error)) from None
    return moment.isoformat(timespec=timespec) + "Z"


def _int_or_string(decoder: _Decoder, message: memoryview) -> int | str:
    parts = dict(decoder.values(message))
    return _text(parts.get(3, _EMPTY)) if parts.get(1) else int(_number(parts.get(2, 0), "int32"))


def _raw(decoder: _Decoder, message: memoryview) -> Any:
    """Return JSON that is stored unchanged; an object keeps its text."""
    text = _text(dict(decoder.values(message)).get(1, _EMPTY))
    try:
        check_json(text.encode(), depth=REQUESTS.depth, values=REQUESTS.values)
        value = loads(text) if text else None
    except ValueError as error:
        raise MalformedProtobuf(str(error)) from None
    return RawObject(value, text) if isinstance(value, dict) else value


_SCHEMA: Final = "apiextensions/v1.JSONSchemaProps"


def _schema_or_bool(decoder: _Decoder, message: memoryview) -> Any:
    parts = dict(decoder.values(message))
    return decoder.message(_bytes(parts[2]), _SCHEMA) if 2 in parts else bool(parts.get(1))


def _schema_or_items(decoder: _Decoder, message: memoryview, *, below: str) -> Any:
    """Return a schema, or the list in its place."""
    parts = [(number, _bytes(value)) for number, value in decoder.values(message)]
    items = [
        _text(value) if below == "string" else decoder.message(value, below) for number, value in parts if number == 2
    ]
    schemas = [decoder.message(value, _SCHEMA) for number, value in parts if number == 1]
    return items or (schemas[0] if schemas else None)


_MESSAGES: Final[Mapping[str, Callable[[_Decoder, memoryview], Any]]] = {
    "Time": partial(_time, timespec="seconds"),
    "MicroTime": partial(_time, timespec="microseconds"),
    "Quantity": lambda decoder, message: _text(dict(decoder.values(message)).get(1, memoryview(b"0"))),
    "IntOrString": _int_or_string,
    "RawExtension": _raw,
    "FieldsV1": _raw,
    "apiextensions/v1.JSON": _raw,
    "apiextensions/v1.JSONSchemaPropsOrArray": partial(_schema_or_items, below=_SCHEMA),
    "apiextensions/v1.JSONSchemaPropsOrBool": _schema_or_bool,
    "apiextensions/v1.JSONSchemaPropsOrStringArray": partial(_schema_or_items, below="string"),
}


def pack(api_version: str, kind: str, message: bytes) -> bytes:
    """Return a message of a kind in the envelope that :func:`unpack` reads."""
    meta = _field(1, api_version.encode()) + _field(2, kind.encode())
    return MAGIC + _field(1, meta) + _field(2, message) + _field(3, b"") + _field(4, b"")


def encode_message(value: Mapping[str, Any], type_name: str) -> bytes:
    """Return an object of a type as Go writes it; ``apiVersion`` and ``kind`` are in the envelope only.

    Args:
        value: as :func:`~dra_kit.kubernetes.resource.schema.types.prune` returns it; an opaque object without its text
            is written as compact JSON.
        type_name: a struct.
    """
    return _struct(value, _layout(type_name))


def encode_list(metadata: Mapping[str, Any], items: Iterable[bytes]) -> bytes:
    """Return a list with its metadata and the messages of its items."""
    return _field(1, encode_message(metadata, "meta/v1.ListMeta")) + b"".join(_field(2, item) for item in items)


def encode_event(type_: str, content: bytes) -> bytes:
    """Return an event of a watch about an object in its envelope."""
    return _field(1, type_.encode()) + _field(2, _field(1, content))


_Layout: TypeAlias = "dict[int, tuple[str, SchemaField] | _Layout]"
"""Name and entry of each field by its number, or the fields of a message that is inlined in JSON."""


@cache
def _layout(type_name: str) -> _Layout:
    layout: _Layout = {}
    known = struct_of_all(type_name)
    for name, entry in sorted(known.fields.items(), key=lambda item: item[1].tag) if known else ():
        if entry.tag:
            place: Any = layout
            for number in entry.tag[:-1]:
                place = place.setdefault(number, {})
            place[entry.tag[-1]] = name, entry
    return layout


def _struct(value: Mapping[str, Any], layout: _Layout) -> bytes:
    written = bytearray()
    for number, place in layout.items():
        if isinstance(place, dict):
            written += _field(number, _struct(value, place))
            continue
        name, entry = place
        item = value.get(name)
        if entry.type.startswith(LIST):
            below = item_type(entry.type)
            written += b"".join(_value(number, each, below) for each in item or ())
        elif entry.type.startswith(MAP):
            below = item_type(entry.type)
            pairs = (_value(1, key, "string") + _value(2, each, below) for key, each in sorted((item or {}).items()))
            written += b"".join(_field(number, pair) for pair in pairs)
        elif item is not None or (entry.presence not in {"pointer", "nullable"} and entry.type != "bytes"):
            written += _value(number, item, entry.type)
    return bytes(written)


def _value(number: int, value: Any, type_name: str) -> bytes:
    """Return one field; None stands for the zero value."""
    if type_name in {"bool", "int32", "int64"}:
        return _key(number, _VARINT) + _number_bytes(int(value or 0))
    if type_name == "double":
        return _key(number, _FIXED64) + binary.pack("<d", value or 0)
    return _field(number, _content(value, type_name))


def _content(value: Any, type_name: str) -> bytes:
    if type_name == "string":
        return (value or "").encode(errors="replace")
    if type_name == "bytes":
        return base64.b64decode(value or "")
    if type_name.startswith(LIST):
        return b"".join(_value(1, item, item_type(type_name)) for item in value or ())
    if type_name in _WRITERS:
        return _WRITERS[type_name](value)
    return encode_message(value or {}, type_name)


@cache
def _key(number: int, wire: int) -> bytes:
    return _number_bytes(number << 3 | wire)


def _field(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _number_bytes(len(content)) + content


_ONE_BYTE: Final = tuple(bytes([number]) for number in range(128))


def _number_bytes(number: int) -> bytes:
    if 0 <= number <= 0x7F:
        return _ONE_BYTE[number]
    number &= (1 << 64) - 1
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _write_time(value: str | None) -> bytes:
    if value is None:
        return b""
    since = datetime.fromisoformat(value.removesuffix("Z")) - _EPOCH
    seconds = since.days * 86_400 + since.seconds
    return _value(1, seconds, "int64") + _value(2, since.microseconds * 1000, "int32")


def _write_int_or_string(value: int | str | None) -> bytes:
    is_text = isinstance(value, str)
    number, text = (0, value) if is_text else (value, "")
    return _value(1, is_text, "int32") + _value(2, number, "int32") + _value(3, text, "string")


def _write_raw(value: Any) -> bytes:
    return b"" if value is None else _field(1, raw_text(value).encode(errors="replace"))


def _write_schema_or(value: Any) -> bytes:
    """Return a schema, or what may be in its place: a boolean, a list of schemas, a list of names."""
    if isinstance(value, dict):
        return _value(1, value, _SCHEMA)
    items = value or ()
    return b"".join(_value(2, item, _SCHEMA if isinstance(item, dict) else "string") for item in items)


def _write_schema_or_bool(value: Any) -> bytes:
    is_schema = isinstance(value, dict)
    return _value(1, is_schema or value, "bool") + (_value(2, value, _SCHEMA) if is_schema else b"")


_WRITERS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "Time": _write_time,
    "MicroTime": _write_time,
    "Quantity": lambda value: _value(1, "0" if value is None else value, "string"),
    "IntOrString": _write_int_or_string,
    "RawExtension": _write_raw,
    "FieldsV1": _write_raw,
    "apiextensions/v1.JSON": _write_raw,
    "apiextensions/v1.JSONSchemaPropsOrArray": _write_schema_or,
    "apiextensions/v1.JSONSchemaPropsOrBool": _write_schema_or_bool,
    "apiextensions/v1.JSONSchemaPropsOrStringArray": _write_schema_or,
}
