"""Types of the API's objects: the table of their fields, and values that are decoded and written by it."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from importlib import resources
from typing import Any, Final, Literal, TypeAlias

import msgspec

from dra_kit.kubernetes.release import NEWEST, KubernetesVersion
from dra_kit.kubernetes.values.json import DuplicateKeysObject, RawObject, go_json
from dra_kit.kubernetes.values.quantity import WHITE_SPACE, InvalidQuantity, Quantity

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
def struct(name: str, version: KubernetesVersion) -> SchemaType | None:
    """Return the struct of that name as a release knows it; None for scalars, lists and maps.

    For decoded objects, whose release does not matter, there is :func:`struct_of_all`.

    Raises:
        KeyError: no served kind contains such a type.
    """
    if name == CUSTOM_RESOURCE.name:
        return CUSTOM_RESOURCE
    entry = _entry(name)
    if entry is None:
        return None
    fields = {key: _field(value) for key, value in entry["fields"].items()}
    return SchemaType(name, _of_release(fields, name, version), entry.get("map", ""))


@cache
def struct_of_all(name: str) -> SchemaType | None:
    """Return the struct of that name with the fields of all releases; None for scalars, lists and maps.

    The shape of a field is the same in all releases that have it, and no two fields have the same protobuf number: this
    is for objects that were decoded, so that they have the fields of one release.

    Raises:
        KeyError: no served kind contains such a type.
    """
    entry = _entry(name)
    if entry is None:
        return struct(name, NEWEST)
    fields = {key: _field(value) for key, value in (entry["fields"] | _former(name)).items()}
    return SchemaType(name, fields, entry.get("map", ""))


def _former(type_name: str) -> dict[str, Any]:
    """Return the fields that the newest release does not have any more."""
    found: dict[str, Any] = read_table("former")["fields"].get(type_name, {})
    return found


_WRITTEN_BEFORE: Final[Mapping[str, Mapping[str, int]]] = {"ResourceSliceSpec": {"devices": 35}}
"""The first minor release that leaves out a field without a value; before, it was written as null.

By the name of the type, in all versions of its group. Source: ``resource/*/types.go`` of ``k8s.io/api`` v0.34.2 to
v0.37.1.
"""
_GROUP: Final = "resource/"


def _of_release(
    fields: Mapping[str, SchemaField], type_name: str, version: KubernetesVersion
) -> Mapping[str, SchemaField]:
    """Return the fields of a struct that a release knows, written as it writes them.

    Source: the Go structs of ``k8s.io/api``, ``k8s.io/apimachinery`` and ``k8s.io/apiextensions-apiserver`` of each
    release, by which ``since.json`` names the first minor release with each field that its type did not always have,
    and ``former.json`` the first and the last one with each field that the newest release does not have any more.
    """
    kind = type_name.rpartition(".")[2] if type_name.startswith(_GROUP) else type_name
    since: Mapping[str, int] = read_table("since").get(type_name, {})
    written = _WRITTEN_BEFORE.get(kind, {})
    former = _former(type_name).items()
    known = {name: entry for name, entry in former if entry["first"] <= version.minor <= entry["last"]}
    return {
        name: msgspec.structs.replace(entry, presence="always") if version.minor < written.get(name, 0) else entry
        for name, entry in fields.items() if version.minor >= since.get(name, 0)
    } | {name: _field(entry) for name, entry in known.items()}  # fmt: skip


def _field_types(name: str) -> Iterator[str]:
    """Yield the names of the types of a struct's fields; nothing for scalars, lists and maps."""
    if name == CUSTOM_RESOURCE.name:
        yield from (item.type for item in CUSTOM_RESOURCE.fields.values())
    elif (entry := _entry(name)) is not None:
        yield from (item["type"] for item in (*entry["fields"].values(), *_former(name).values()))


def item_type(name: str) -> str:
    """Return the type of the items of a list, or of the values of a map."""
    return name.removeprefix(LIST) if name.startswith(LIST) else name.removeprefix(MAP)


def _entry(name: str) -> dict[str, Any] | None:
    package, dot, kind = name.partition(".")
    if not dot or name.startswith((LIST, MAP)):
        return None
    former: dict[str, Any] = read_table("former")["types"]
    entry: dict[str, Any] = former[name] if name in former else _package(package)[kind]
    return None if "scalar" in entry else entry


def _package(name: str) -> dict[str, Any]:
    return read_table(name.replace("/", "."))


@cache
def read_table(name: str) -> dict[str, Any]:
    """Return the content of a JSON file in this folder."""
    text = resources.files("dra_kit.kubernetes.resource.schema").joinpath(f"{name}.json").read_text("utf-8")
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


_GO_STRUCTS = {"Time", "MicroTime", "Quantity", "IntOrString"}  # always written; times as null when they are zero
_OPAQUE = {"JSON", "RawExtension", "FieldsV1"}


class StrictDecoding(msgspec.Struct):
    """What strict decoding finds fault with, and what it needs to know of the text.

    Attributes:
        version: the release that decodes: it reads quantities, and newer fields are unknown to it.
        problems: ``unknown field "spec.x"`` and ``duplicate field "spec.y"``, as they come.
        texts: the text of the objects in the document by path, for those that are stored unchanged.
    """

    version: KubernetesVersion
    problems: list[str] = msgspec.field(default_factory=list)
    texts: Mapping[str, str] = msgspec.field(default_factory=dict)


def decode(value: Any, type_name: str, reader: KubernetesVersion | StrictDecoding) -> Any:
    """Return a JSON value as a value of a type: unknown fields dropped, null as absent, scalars as they are stored.

    Empty lists and maps stay: validation tells some of them from absent ones. :func:`prune` removes them.

    Args:
        value: parsed JSON; objects with duplicate keys as :class:`~dra_kit.kubernetes.values.json.DuplicateKeysObject`.
        type_name: type expression as in :mod:`dra_kit.kubernetes.resource.schema.types`.
        reader: the release that decodes, or where unknown and duplicate fields are noted.

    Raises:
        TypeMismatch: the JSON does not fit the type.
    """
    return _decode(value, type_name, "", StrictDecoding(reader) if isinstance(reader, KubernetesVersion) else reader)


def _decode(value: Any, type_name: str, path: str, strictness: StrictDecoding) -> Any:
    if type_name == "RawExtension" and isinstance(value, dict) and path in strictness.texts:
        return RawObject(value, strictness.texts[path])
    if type_name in SCALARS:
        try:
            return read_scalar(value, type_name, strictness.version)
        except TypeMismatch as error:
            raise error.at(path) from None
    if type_name.startswith(LIST):
        return _decode_list(value, type_name[len(LIST) :], path, strictness)
    if type_name.startswith(MAP):
        return _decode_map(value, type_name[len(MAP) :], path, strictness)
    known = struct(type_name, strictness.version)
    return value if known is None else _decode_struct(value, known, path, strictness)


def _decode_list(value: Any, item_type: str, path: str, strictness: StrictDecoding) -> list[Any]:
    if not isinstance(value, list):
        raise mismatch(value, f"[]{item_type}").at(path)
    return [
        zero(item_type, strictness.version) if item is None else _decode(item, item_type, f"{path}[{i}]", strictness)
        for i, item in enumerate(value)
    ]


def _decode_map(value: Any, item_type: str, path: str, strictness: StrictDecoding) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise mismatch(value, f"map[string]{item_type}").at(path)
    empty = (
        "" if item_type == "bytes" else zero(item_type, strictness.version)
    )  # storage does not tell null from no bytes
    decoded = {
        key: empty if item is None else _decode(item, item_type, _below(path, key), strictness)
        for key, item in value.items()
    }
    _note_duplicates(value, path, strictness)
    return decoded


def _decode_struct(value: Any, known: SchemaType, path: str, strictness: StrictDecoding) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise mismatch(value, known.name).at(path)
    decoded: dict[str, Any] = {}
    fields = known.fields
    for key, item in value.items():
        entry = fields.get(key)
        if entry is not None:
            if item is not None and not is_unset(
                read := _decode(item, entry.type, _below(path, key), strictness), entry
            ):
                decoded[key] = read
        elif known.open:
            decoded[key] = item
        else:
            strictness.problems.append(f'unknown field "{_below(path, key)}"')
    _note_duplicates(value, path, strictness)
    for key, entry in fields.items():
        if (
            entry.presence == "always"
            and key not in decoded
            and (empty := zero(entry.type, strictness.version)) is not None
        ):
            decoded[key] = empty
    return decoded


_PLAIN: Final = {"string", "bool", "int32", "int64", "double", "bytes"}


def is_unset(value: Any, entry: SchemaField) -> bool:
    """Return whether Go cannot distinguish a value of a field from an absent one, and so does not write it."""
    return not value and entry.presence == "omitempty" and entry.type in _PLAIN


def _note_duplicates(value: Any, path: str, strictness: StrictDecoding) -> None:
    if isinstance(value, DuplicateKeysObject):
        strictness.problems += [f'duplicate field "{_below(path, key)}"' for key in value.duplicates]


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def zero(type_name: str, version: KubernetesVersion) -> Any:
    """Return the zero value of a type: null for lists, maps and times; a struct with the zeros that are written."""
    if type_name in SCALARS:
        return ZEROS.get(type_name)
    if type_name.startswith((LIST, MAP)):
        return None
    known = struct(type_name, version)
    if known is None:
        return None
    return {
        name: empty
        for name, entry in known.fields.items()
        if entry.presence == "always" and (empty := zero(entry.type, version)) is not None
    }


def prune(value: Any, type_name: str, version: KubernetesVersion, *, stored: bool = True) -> Any:
    """Return a decoded value as the API server writes it: zero values left out or written, by the table.

    Returns a new value; scalars and JSON are shared with the old one.

    Args:
        value: decoded.
        type_name: its type.
        version: the release of the API server.
        stored: whether it comes from storage, which does not tell empty lists and maps from absent ones.
    """
    if type_name in SCALARS:
        return value
    if type_name.startswith(LIST):
        item_type = type_name[len(LIST) :]
        if item_type in SCALARS:
            return list(value)
        return [prune(item, item_type, stored=stored, version=version) for item in value]
    if type_name.startswith(MAP):
        item_type = type_name[len(MAP) :]
        if item_type in SCALARS:
            return dict(value)
        return {key: prune(item, item_type, stored=stored, version=version) for key, item in value.items()}
    known = struct(type_name, version)
    return value if known is None else _prune_struct(value, known, stored=stored, version=version)


def _prune_struct(
    value: dict[str, Any], known: SchemaType, *, stored: bool, version: KubernetesVersion
) -> dict[str, Any]:
    pruned: dict[str, Any] = {}
    for name, entry in known.fields.items():
        item = value.get(name)
        if item is not None:
            item = prune(item, entry.type, stored=stored, version=version)
        if item is None and entry.presence != "nullable" and _without_absence(entry):
            item = written_zero(entry.type, version)
            pruned[name] = item
        elif entry.presence == "nullable" or (item is not None and _is_written(item, entry, version)):
            empty = stored and entry.presence == "always" and not item and entry.type.startswith((LIST, MAP))
            pruned[name] = None if empty else item
    if known.open:
        pruned |= {name: item for name, item in value.items() if name not in known.fields}
    return pruned


def _without_absence(entry: SchemaField) -> bool:
    """Return whether a field is written even if it is absent: a field that is not a pointer in Go has a zero value."""
    if entry.presence == "omitempty":
        return _is_struct(entry.type) or entry.type in _GO_STRUCTS
    return entry.presence == "always"


def _is_written(item: Any, entry: SchemaField, version: KubernetesVersion) -> bool:
    """Return whether a value that is there is written."""
    if entry.presence == "always" or item:
        return entry.presence != "omitzero" or item != written_zero(entry.type, version)
    if entry.presence == "pointer":
        return not entry.type.startswith((LIST, MAP))
    return entry.presence == "omitempty" and (_is_struct(entry.type) or entry.type in _OPAQUE | _GO_STRUCTS)


def _is_struct(type_name: str) -> bool:
    return type_name == CUSTOM_RESOURCE.name or _entry(type_name) is not None


def written_zero(type_name: str, version: KubernetesVersion) -> Any:
    """Return the zero value of a type as a release writes it; null for lists, maps and times."""
    known = struct(type_name, version)
    return ZEROS.get(type_name) if known is None else _prune_struct({}, known, stored=True, version=version)


_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)  # lower-case t and z are refused


class TypeMismatch(ValueError):
    """A JSON value that the field's type cannot hold; the text says why.

    Args:
        text: in Go's words.
        given: what Go calls the type of the JSON value; empty where the type would do, and the value does not.
        wanted: Go's type of the field; empty likewise.
    """

    def __init__(self, text: str, *, given: str = "", wanted: str = "") -> None:
        super().__init__(text)
        self.given = given
        self.wanted = wanted

    def at(self, path: str) -> TypeMismatch:
        """Return the same error with the path of the field."""
        return TypeMismatch(f"{self} ({path})", given=self.given, wanted=self.wanted)


def json_type(value: Any) -> str:
    """Return what Go calls the type of a JSON value."""
    if isinstance(value, bool):
        return "bool"
    names = {dict: "object", list: "array", str: "string", int: "number", float: "number"}
    return next((name for python, name in names.items() if isinstance(value, python)), "null")


def mismatch(value: Any, go_type: str) -> TypeMismatch:
    """Return the error for a JSON value of another type."""
    given = json_type(value)
    return TypeMismatch(f"json: cannot unmarshal {given} into a field of type {go_type}", given=given, wanted=go_type)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise mismatch(value, "string")
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise mismatch(value, "bool")
    return value


def _integer(bits: int, go_type: str) -> Callable[[Any], int]:
    lowest, highest = -(2**bits), 2**bits - 1

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise mismatch(value, go_type)
        return value

    return read


def _double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise mismatch(value, "float64")
    return value


def _bytes(value: Any) -> str:
    text = _string(value)
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError) as error:
        raise TypeMismatch(f"illegal base64 data: {error}") from None
    return text


def _parsed(text: str) -> tuple[datetime, str]:
    match = _TIME.fullmatch(text)
    if match is None:
        raise TypeMismatch(f'parsing time "{text}": it is not an RFC 3339 time')
    date, clock, fraction, sign, hours, minutes = match.groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=timezone(-offset if sign == "-" else offset))
        return moment.astimezone(UTC), fraction or ""
    except (ValueError, OverflowError) as error:
        raise TypeMismatch(f'parsing time "{text}": {error}') from None


def _time(value: Any) -> str:
    """Return ``metav1.Time``: fractions of a second are cut, other zones become UTC."""
    moment, _ = _parsed(_string(value))
    return moment.isoformat()[:19] + "Z"


def _micro_time(value: Any) -> str:
    """Return ``metav1.MicroTime``: exactly six digits of a second."""
    moment, fraction = _parsed(_string(value))
    if len(fraction) != 7:
        raise TypeMismatch(f'parsing time "{value}": it has not exactly six digits after the seconds')
    return moment.isoformat()[:19] + fraction + "Z"


def _quantity(value: Any, version: KubernetesVersion) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise mismatch(value, "resource.Quantity")
    try:
        return str(Quantity(str(value).strip(WHITE_SPACE), version))
    except InvalidQuantity as error:
        raise TypeMismatch(str(error)) from None


def _int_or_string(value: Any) -> int | str:
    if isinstance(value, str):
        return value
    return _INT32(value)


def _raw_extension(value: Any) -> Any:
    """Return opaque JSON; an object that has no text of its own gets the one that Go would write."""
    return RawObject(value, go_json(value)) if isinstance(value, dict) and not isinstance(value, RawObject) else value


def _any_json(value: Any) -> Any:
    return value


_INT32 = _integer(31, "int32")
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "string": _string,
    "bool": _bool,
    "int32": _INT32,
    "int64": _integer(63, "int64"),
    "double": _double,
    "bytes": _bytes,
    "Time": _time,
    "MicroTime": _micro_time,
    "IntOrString": _int_or_string,
    "RawExtension": _raw_extension,
    "JSON": _any_json,
    "FieldsV1": _any_json,
}
"""For each scalar except quantities, what turns a JSON value into the stored form."""
SCALARS: Final = frozenset({*_READERS, "Quantity"})
"""The types without parts in the schema."""
ZEROS: Final[Mapping[str, Any]] = {
    "string": "", "bool": False, "int32": 0, "int64": 0, "double": 0, "IntOrString": 0, "Quantity": "0",
}  # fmt: skip
"""The zero value of each scalar that has one; the others' is null."""


def read_scalar(value: Any, type_name: str, version: KubernetesVersion) -> Any:
    """Return the stored form of a JSON value other than null, as a release reads it.

    Raises:
        TypeMismatch: it does not fit the type, which is one of :data:`SCALARS`.
    """
    return _quantity(value, version) if type_name == "Quantity" else _READERS[type_name](value)


def reached_types(type_name: str) -> Iterator[str]:
    """Yield a type and the types inside it, at any depth; of lists and maps the type of their items."""
    waiting, seen = [type_name], set[str]()
    while waiting:
        name = waiting.pop().removeprefix(LIST).removeprefix(MAP)
        if name not in seen:
            seen.add(name)
            yield name
            waiting += _field_types(name)


@cache
def reaches_raw(type_name: str) -> bool:
    """Return whether a type, or one inside it, has fields of type RawExtension."""
    return "RawExtension" in reached_types(type_name)
