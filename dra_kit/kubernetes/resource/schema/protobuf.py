"""Decodes Kubernetes' protobuf by the table."""

from __future__ import annotations

import base64
import json
import struct as binary
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, Final, TypeAlias

from dra_kit.kubernetes.resource.schema.types import LIST, MAP, item_type, struct

MAGIC: Final = b"k8s\x00"
Value: TypeAlias = int | bytes
"""A number, or the bytes of a string, a message or eight-byte numbers."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
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
    envelope = dict(_values(body[len(MAGIC) :]))
    meta = dict(_values(_bytes(envelope.get(1, b""))))
    return _text(meta.get(1, b"")), _text(meta.get(2, b"")), _bytes(envelope.get(2, b""))


def decode_message(message: bytes, type_name: str) -> Any:
    """Return a message as the JSON value of a type, without unknown fields.

    Raises:
        MalformedProtobuf: it is not such a message.
    """
    if type_name in _MESSAGES:
        return _MESSAGES[type_name](message)
    decoded: dict[str, Any] = {}
    _fill(decoded, message, type_name, ())
    return decoded


def _fill(decoded: dict[str, Any], message: bytes, type_name: str, outside: tuple[int, ...]) -> None:
    """Add the fields of a message, and of messages in it that are inlined in JSON."""
    fields, inlined = _numbers(type_name)
    for number, value in _values(message):
        tag = (*outside, number)
        if tag in inlined:
            _fill(decoded, _bytes(value), type_name, tag)
        elif tag in fields:
            name, field_type = fields[tag]
            _add(decoded, name, value, field_type)


@cache
def _numbers(type_name: str) -> tuple[dict[tuple[int, ...], tuple[str, str]], set[tuple[int, ...]]]:
    """Return name and type of each numbered field, and the numbers of messages that are inlined in JSON."""
    known = struct(type_name)
    tagged = {entry.tag: (name, entry.type) for name, entry in known.fields.items()} if known else {}
    return tagged, {tag[:i] for tag in tagged for i in range(1, len(tag))}


def _add(decoded: dict[str, Any], name: str, value: Value, field_type: str) -> None:
    if field_type.startswith(LIST):
        below = item_type(field_type)
        items = decoded.setdefault(name, [])
        if below in _NUMBERS and isinstance(value, bytes):
            items += [_number(item, below) for item in _packed(value)]
        else:
            items.append(_single(value, below))
    elif field_type.startswith(MAP):
        entry = dict(_values(_bytes(value)))
        decoded.setdefault(name, {})[_text(entry.get(1, b""))] = _single(entry.get(2, b""), item_type(field_type))
    elif (single := _single(value, field_type)) is not None:
        decoded[name] = single


def _single(value: Value, type_name: str) -> Any:
    if type_name in _NUMBERS:
        return _number(value, type_name)
    if type_name == "string":
        return _text(value)
    if type_name == "bytes":
        return base64.b64encode(_bytes(value)).decode()
    if type_name.startswith(LIST):  # the value of a map: a separate message with the items
        return [_single(item, item_type(type_name)) for number, item in _values(_bytes(value)) if number == 1]
    return decode_message(_bytes(value), type_name)


_NUMBERS: Final = {"bool", "int32", "int64", "double"}


def _number(value: Value, type_name: str) -> Any:
    if type_name == "double":
        return binary.unpack("<d", _bytes(value))[0]
    if not isinstance(value, int):
        raise MalformedProtobuf(f"a {type_name} is not a number")
    if type_name == "bool":
        return bool(value)
    return value - (1 << 64) if value >= 1 << 63 else value


def _packed(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        number, position = _varint(data, position)
        yield number


def _values(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield number and value of each field of a message, in order."""
    position = 0
    while position < len(message):
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


def _varint(data: bytes, position: int) -> tuple[int, int]:
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


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise MalformedProtobuf("a message is a number")
    return value


def _text(value: Value) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError as error:
        raise MalformedProtobuf(str(error)) from None


def _time(message: bytes, *, timespec: str) -> str | None:
    if not message:
        return None
    parts = dict(_values(message))
    seconds, nanos = _number(parts.get(1, 0), "int64"), _number(parts.get(2, 0), "int32")
    moment = _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    return moment.isoformat(timespec=timespec) + "Z"


def _int_or_string(message: bytes) -> int | str:
    parts = dict(_values(message))
    return _text(parts.get(3, b"")) if parts.get(1) else int(_number(parts.get(2, 0), "int32"))


def _raw(message: bytes) -> Any:
    text = _bytes(dict(_values(message)).get(1, b""))
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise MalformedProtobuf(str(error)) from None


_MESSAGES: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "Time": partial(_time, timespec="seconds"),
    "MicroTime": partial(_time, timespec="microseconds"),
    "Quantity": lambda message: _text(dict(_values(message)).get(1, b"0")),
    "IntOrString": _int_or_string,
    "RawExtension": _raw,
    "FieldsV1": _raw,
    "JSON": _raw,
}
