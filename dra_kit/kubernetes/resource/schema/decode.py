"""Reading JSON as an object of some type, and writing it as the API server would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dra_kit.resource.opaque import RawObject
from dra_kit.resource.schema.scalars import READERS, ZEROS, WrongType, mismatch
from dra_kit.resource.schema.table import LIST, MAP, Field, Struct, struct
from dra_kit.values.json import DuplicateKeysObject

_TIMES = {"Time", "MicroTime"}  # Go structs, which are always written; as null when they are zero


_OPAQUE = {"JSON", "RawExtension", "FieldsV1"}


class Strictness(msgspec.Struct):
    """What strict decoding finds fault with, and what it needs to know of the text.

    Attributes:
        problems: ``unknown field "spec.x"`` and ``duplicate field "spec.y"``, as they come.
        unknown: paths of the unknown fields among them: ``spec.x``.
        texts: the text of the objects in the document by path, for those that are stored as they were sent.
    """

    problems: list[str] = msgspec.field(default_factory=list)
    unknown: list[str] = msgspec.field(default_factory=list)
    texts: Mapping[str, str] = msgspec.field(default_factory=dict)


def decode(value: Any, type_name: str, strictness: Strictness | None = None) -> Any:
    """Return a JSON value as a value of a type: unknown fields dropped, null as absent, scalars as they are stored.

    Empty lists and maps stay: validation tells some of them from absent ones. :func:`prune` removes them.

    Args:
        value: parsed JSON; objects with duplicate keys as :class:`~dra_kit.values.json.DuplicateKeysObject`.
        type_name: type expression as in :mod:`dra_kit.resource.schema.table`.
        strictness: where unknown and duplicate fields are noted.

    Raises:
        WrongType: the JSON does not fit the type.
    """
    return _decode(value, type_name, "", strictness or Strictness())


def _decode(value: Any, type_name: str, path: str, strictness: Strictness) -> Any:
    reader = READERS.get(type_name)
    if type_name == "RawExtension" and isinstance(value, dict) and path in strictness.texts:
        return RawObject(value, strictness.texts[path])
    if reader is not None:
        try:
            return reader(value)
        except WrongType as error:
            raise error.at(path) from None
    if type_name.startswith(LIST):
        return _decode_list(value, type_name[len(LIST) :], path, strictness)
    if type_name.startswith(MAP):
        return _decode_map(value, type_name[len(MAP) :], path, strictness)
    known = struct(type_name)
    return value if known is None else _decode_struct(value, known, path, strictness)


def _decode_list(value: Any, item_type: str, path: str, strictness: Strictness) -> list[Any]:
    if not isinstance(value, list):
        raise mismatch(value, f"[]{item_type}").at(path)
    return [
        zero(item_type) if item is None else _decode(item, item_type, f"{path}[{i}]", strictness)
        for i, item in enumerate(value)
    ]


def _decode_map(value: Any, item_type: str, path: str, strictness: Strictness) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise mismatch(value, f"map[string]{item_type}").at(path)
    decoded = {
        key: zero(item_type) if item is None else _decode(item, item_type, _below(path, key), strictness)
        for key, item in value.items()
    }
    _note_duplicates(value, path, strictness)
    return decoded


def _decode_struct(value: Any, known: Struct, path: str, strictness: Strictness) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise mismatch(value, known.name).at(path)
    decoded: dict[str, Any] = {}
    fields = known.fields
    for key, item in value.items():
        entry = fields.get(key)
        if entry is not None:
            if item is not None:
                decoded[key] = _decode(item, entry.type, _below(path, key), strictness)
        elif known.open:
            decoded[key] = item
        else:
            strictness.problems.append(f'unknown field "{_below(path, key)}"')
            strictness.unknown.append(_below(path, key))
    _note_duplicates(value, path, strictness)
    for key, entry in fields.items():
        if entry.presence == "always" and key not in decoded and (empty := zero(entry.type)) is not None:
            decoded[key] = empty
    return decoded


def _note_duplicates(value: Any, path: str, strictness: Strictness) -> None:
    if isinstance(value, DuplicateKeysObject):
        strictness.problems += [f'duplicate field "{_below(path, key)}"' for key in value.duplicates]


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def zero(type_name: str) -> Any:
    """Return the zero value of a type: null for lists, maps and times; a struct with the zeros that are written."""
    if type_name in READERS:
        return ZEROS.get(type_name)
    if type_name.startswith((LIST, MAP)):
        return None
    known = struct(type_name)
    if known is None:
        return None
    return {
        name: empty
        for name, entry in known.fields.items()
        if entry.presence == "always" and (empty := zero(entry.type)) is not None
    }


def prune(value: Any, type_name: str, *, stored: bool = True) -> Any:
    """Return a decoded value as the API server writes it: zero values left out or written, by the table.

    Returns a new value; scalars and JSON are shared with the old one.

    Args:
        value: decoded.
        type_name: its type.
        stored: whether it comes from storage, which does not tell empty lists and maps from absent ones.
    """
    if type_name in READERS:
        return value
    if type_name.startswith(LIST):
        item_type = type_name[len(LIST) :]
        return list(value) if item_type in READERS else [prune(item, item_type, stored=stored) for item in value]
    if type_name.startswith(MAP):
        item_type = type_name[len(MAP) :]
        if item_type in READERS:
            return dict(value)
        return {key: prune(item, item_type, stored=stored) for key, item in value.items()}
    known = struct(type_name)
    return value if known is None else _prune_struct(value, known, stored=stored)


def _prune_struct(value: dict[str, Any], known: Struct, *, stored: bool) -> dict[str, Any]:
    pruned: dict[str, Any] = {}
    for name, entry in known.fields.items():
        item = value.get(name)
        if item is not None:
            item = prune(item, entry.type, stored=stored)
        if item is None and entry.presence != "nullable" and _without_absence(entry):
            item = zero_written(entry.type)
            pruned[name] = item
        elif entry.presence == "nullable" or (item is not None and _is_written(item, entry)):
            empty = stored and entry.presence == "always" and not item and entry.type.startswith((LIST, MAP))
            pruned[name] = None if empty else item
    if known.open:
        pruned |= {name: item for name, item in value.items() if name not in known.fields}
    return pruned


def _without_absence(entry: Field) -> bool:
    """Return whether a field is written even when it is absent: what is no pointer in Go has a zero value instead."""
    if entry.presence == "omitempty":
        return _is_struct(entry.type) or entry.type in _TIMES
    return entry.presence == "always"


def _is_written(item: Any, entry: Field) -> bool:
    """Return whether a value that is there is written."""
    if entry.presence == "always" or item:
        return entry.presence != "omitzero" or item != zero_written(entry.type)
    if entry.presence == "pointer":
        return not entry.type.startswith((LIST, MAP))
    return entry.presence == "omitempty" and (_is_struct(entry.type) or entry.type in _OPAQUE)


def _is_struct(type_name: str) -> bool:
    return "." in type_name and not type_name.startswith((LIST, MAP)) and struct(type_name) is not None


def zero_written(type_name: str) -> Any:
    """Return the zero value of a type as it is written; null for lists, maps and times."""
    known = struct(type_name)
    return ZEROS.get(type_name) if known is None else _prune_struct({}, known, stored=True)
