"""The table of types and fields, read from the JSON files in this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any, Final, Literal, TypeAlias

import msgspec

Presence: TypeAlias = Literal["always", "nullable", "omitempty", "omitzero", "pointer"]
"""How a field's zero value is written.

``always``: written, lists and maps as null; ``nullable``: absent is written as null; ``omitempty``: omitted, except
structs; ``omitzero``: omitted, also structs; ``pointer``: an explicit zero differs from an absent value.
"""
LIST: Final = "[]"
MAP: Final = "map[string]"


class SchemaField(msgspec.Struct, frozen=True):
    """One field of a struct.

    Attributes:
        type: a scalar (``string``, ``bool``, ``int32``, ``int64``, ``double``, ``bytes``, ``Time``, ``MicroTime``,
            ``Quantity``, ``IntOrString``, ``RawExtension``, ``FieldsV1``, ``JSON``), a struct's name such as
            ``core/v1.Pod``, ``[]T`` or ``map[string]T``.
        presence: how its zero value is written.
        required: whether the API documents it as required.
        list: ``atomic``, ``set`` or ``map``: how server-side apply merges a list; empty means atomic.
        keys: the fields that identify an item of a list of type ``map``.
        map: ``atomic`` or ``granular``: how server-side apply merges a struct or map; empty means granular.
        merge_key: the field by which a strategic merge patch finds an item of a list.
        patch: strategies of a strategic merge patch: ``merge``, ``retainKeys``, ``replace``.
        default: the documented default, or None.
        enum: the allowed values of the field or its items; empty for any.
        tag: the protobuf number, after those of enclosing messages that are inlined in JSON; empty for none.
    """

    type: str
    presence: Presence = "pointer"
    required: bool = False
    list: str = ""
    keys: tuple[str, ...] = ()
    map: str = ""
    merge_key: str = ""
    patch: tuple[str, ...] = ()
    default: Any = None
    enum: tuple[str, ...] = ()
    tag: tuple[int, ...] = ()


class SchemaType(msgspec.Struct, frozen=True):
    """A type with fields, in the order in which the API server writes them.

    Attributes:
        name: such as ``core/v1.Pod``.
        fields: by JSON name.
        map: ``atomic`` when server-side apply treats it as one value.
        open: whether it preserves unknown fields, as custom resources may.
    """

    name: str
    fields: Mapping[str, SchemaField] = msgspec.field(default_factory=dict)
    map: str = ""
    open: bool = False


CUSTOM_RESOURCE: Final = SchemaType(
    "CustomResource",
    {
        "apiVersion": SchemaField("string", "omitempty"),
        "kind": SchemaField("string", "omitempty"),
        "metadata": SchemaField("meta/v1.ObjectMeta", "omitempty", default={}),
    },
    open=True,
)
"""The type of all custom resources: typed metadata, everything else unchanged."""


@cache
def struct(name: str) -> SchemaType | None:
    """Return the struct of that name; None for scalars, lists and maps.

    Raises:
        KeyError: no served kind contains such a type.
    """
    if name == CUSTOM_RESOURCE.name:
        return CUSTOM_RESOURCE
    entry = _entry(name)
    if entry is None:
        return None
    return SchemaType(name, {key: _field(value) for key, value in entry["fields"].items()}, entry.get("map", ""))


def field_types(name: str) -> Iterator[str]:
    """Yield the names of the types of a struct's fields; nothing for scalars, lists and maps."""
    if name == CUSTOM_RESOURCE.name:
        yield from (item.type for item in CUSTOM_RESOURCE.fields.values())
    elif (entry := _entry(name)) is not None:
        yield from (item["type"] for item in entry["fields"].values())


def types(package: str) -> tuple[str, ...]:
    """Return the names of all types of a package such as ``core/v1``."""
    return tuple(f"{package}.{kind}" for kind in _package(package))


def item_type(name: str) -> str:
    """Return the type of the items of a list, or of the values of a map."""
    return name.removeprefix(LIST) if name.startswith(LIST) else name.removeprefix(MAP)


def _entry(name: str) -> dict[str, Any] | None:
    package, dot, kind = name.partition(".")
    if not dot or name.startswith((LIST, MAP)):
        return None
    entry: dict[str, Any] = _package(package)[kind]
    return None if "scalar" in entry else entry


@cache
def _package(name: str) -> dict[str, Any]:
    text = (
        resources.files("dra_kit.kubernetes.resource.schema")
        .joinpath(f"{name.replace('/', '.')}.json")
        .read_text("utf-8")
    )
    data: dict[str, Any] = json.loads(text)
    return data


def _field(entry: Mapping[str, Any]) -> SchemaField:
    return SchemaField(
        type=entry["type"],
        presence=entry["presence"],
        required=entry.get("required", False),
        list=entry.get("list", ""),
        keys=tuple(entry.get("keys", ())),
        map=entry.get("map", ""),
        merge_key=entry.get("mergeKey", ""),
        patch=tuple(entry.get("patch", ())),
        default=entry.get("default"),
        enum=tuple(entry.get("enum", ())),
        tag=tuple(entry.get("tag", ())),
    )
