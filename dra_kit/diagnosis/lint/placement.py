"""Where a field belongs that the API does not have at its place: deeper, higher, in another kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from msgspec import Struct

from dra_kit.kubernetes.resource.schema.types import LIST, MAP, READERS, SchemaType, item_type, struct

STATUS: Final = "status"
"""Written by schedulers, controllers and drivers, never by manifests."""
_DEPTH: Final = 7
"""Levels of a kind that are searched: ``spec.spec.devices.requests[].exactly.deviceClassName`` has six."""
_CLAIMS: Final = frozenset({"ResourceClaim", "ResourceClaimTemplate"})
_RARE: Final = ("firstAvailable", "derivedAttributes", "initContainers", "ephemeralContainers", "volumes")
"""Fields below which the same fields are as below a more usual one."""
_CLASS_NAMES: Final = frozenset({
    "resourceclassname", "deviceclassname", "resourceclass", "deviceclass", "classname", "class",
})  # fmt: skip
"""Names for the class of a device."""
_CLASSIC_MODES: Final = ("Immediate", "WaitForFirstConsumer")
"""Values of ``allocationMode`` in v1alpha2."""
_USUAL: Final = frozenset({
    "apiversion", "kind", "metadata", "name", "namespace", "spec", "key", "value", "values", "type", "effect",
    "operator", "path", "generation", "data", "template", "items", "command", "args", "env",
})  # fmt: skip
"""Names that many objects have, so that they say nothing about where a field belongs."""
_OTHER_KINDS: Final = {
    "a pod": "core/v1.Pod",
    "a ResourceClaim": "resource/v1.ResourceClaim",
    "a DeviceClass": "resource/v1.DeviceClass",
    "a ResourceSlice": "resource/v1.ResourceSlice",
}
"""Kinds in which a field is searched that its own kind does not have."""


class Level(Struct, frozen=True):
    """An object of a document, with those that contain it.

    Attributes:
        path: its path in the document.
        type: the name of its type.
        above: the object that contains it; None for the whole document or the known part of it.
    """

    path: str
    type: str
    above: Level | None = None

    @property
    def root(self) -> Level:
        """The outermost object."""
        return self if self.above is None else self.above.root

    @property
    def kind(self) -> str:
        """The kind of resource.k8s.io that the outermost object is; empty for any other."""
        group, _, name = self.root.type.partition("/")
        return name.partition(".")[2] if group == "resource" else ""

    def field(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.path}.{name}" if self.path else name


def replacement(key: str, value: Any, level: Level) -> str:
    """Return what replaces a field of an older API or a frequent wrong name; empty for other names."""
    if key == "allocationMode" and level.kind in _CLAIMS and value in _CLASSIC_MODES:
        return "remove it: the scheduler allocates a claim when a pod needs it"
    if key == "claims" and level.type.endswith(".PodSpec"):  # the API server refuses claims in resources of a pod
        return f"it belongs deeper: {level.field('containers[].resources.claims')}"
    return _replacements(level).get(_folded(key), "")


def other_place(key: str, value: Any, level: Level) -> str:
    """Return where a field belongs that an object does not have; empty if that is unknown."""
    if _folded(key) in _USUAL:
        return _higher(key, value, level)
    return _deeper(key, value, level) or _higher(key, value, level) or _elsewhere(key, value, level)


def other_kind(key: str, value: Any, level: Level) -> str:
    """Return which other kind has a field, and where; empty if none has it."""
    folded = _folded(key)
    if folded in _USUAL or folded in fields_below(level.root.type):
        return ""
    found = [
        (not may_have(value, places[0].type), f"{places[0].name} is a field of {noun}: {places[0].path}")
        for noun, type_name in _OTHER_KINDS.items()
        if (places := fields_below(type_name).get(folded))
    ]
    return min(found, key=lambda one: one[0])[1] if found else ""


class FieldPlace(Struct, frozen=True):
    """A field of a type or below it: its path with ``[]`` for lists and maps, and its type."""

    path: str
    type: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def depth(self) -> int:
        """The number of levels."""
        return self.path.count(".") + 1

    @property
    def is_rare(self) -> bool:
        """Whether a more usual field has the same fields."""
        return any(name in self.path for name in _RARE)


@cache
def fields_below(type_name: str) -> Mapping[str, tuple[FieldPlace, ...]]:
    """Return the fields of a type and of the types in it, by lower-case name, the usual and least deep ones first."""
    found: dict[str, list[FieldPlace]] = {}
    for place in _all_below(type_name):
        found.setdefault(_folded(place.name), []).append(place)
    return {name: tuple(sorted(places, key=lambda one: (one.is_rare, one.depth))) for name, places in found.items()}


@cache
def _all_below(type_name: str) -> tuple[FieldPlace, ...]:
    return tuple(_walk(type_name, "", ()))


def _walk(type_name: str, path: str, above: tuple[str, ...]) -> Iterator[FieldPlace]:
    known = struct(type_name)
    if known is None or type_name in above or len(above) >= _DEPTH:
        return
    for name, entry in known.fields.items():
        if (name == STATUS and not above) or (name == "resources" and type_name.endswith(".PodSpec")):
            continue  # the resources of containers are meant
        below, marks = entry.type, ""
        while below.startswith((LIST, MAP)):
            below, marks = item_type(below), f"{marks}[]"
        where = f"{path}.{name}" if path else name
        yield FieldPlace(where, entry.type)
        if below not in READERS and below != "meta/v1.ObjectMeta":
            yield from _walk(below, f"{where}{marks}", (*above, type_name))


def _folded(key: str) -> str:
    return key.casefold().replace("_", "").replace("-", "")


def _deeper(key: str, value: Any, level: Level) -> str:
    return _at(level, _candidates(key, value, level.type))


def _higher(key: str, value: Any, level: Level) -> str:
    above = level.above
    while above is not None:
        known = struct(above.type)
        for name, entry in known.fields.items() if known is not None else ():
            if _folded(name) == _folded(key) and may_have(value, entry.type):
                return f"it belongs higher: {above.field(name)}"
        above = above.above
    return ""


def _elsewhere(key: str, value: Any, level: Level) -> str:
    return _at(level.root, _candidates(key, value, level.root.type))


def _candidates(key: str, value: Any, type_name: str) -> Sequence[FieldPlace]:
    found = [place for place in fields_below(type_name).get(_folded(key), ()) if may_have(value, place.type)]
    return [place for place in found if (place.is_rare, place.depth) == (found[0].is_rare, found[0].depth)]


def _at(level: Level, places: Sequence[FieldPlace]) -> str:
    if not 1 <= len(places) <= 2:
        return ""
    return f"it belongs deeper: {' or '.join(level.field(place.path) for place in places)}"


def may_have(value: Any, type_name: str) -> bool:
    """Return whether a value has the form of a type: a list, an object with some of its fields, or a scalar."""
    if type_name.startswith(LIST):
        return isinstance(value, list) and all(may_have(item, item_type(type_name)) for item in value[:1])
    if type_name.startswith(MAP):
        return isinstance(value, Mapping) and all(
            may_have(item, item_type(type_name)) for item in list(value.values())[:1]
        )
    known = struct(type_name) if type_name not in READERS else None
    if known is None:
        return not isinstance(value, list | Mapping)
    return isinstance(value, Mapping) and (not value or any(key in known.fields for key in value))


def _replacements(level: Level) -> Mapping[str, str]:
    """Return what replaces old and frequent wrong names in an object, by lower-case name."""
    root = level.root
    if level.kind in _CLAIMS:
        of_class, parameters = (fields_below(root.type)[name][0].path for name in ("deviceclassname", "parameters"))
        return {
            **dict.fromkeys(_CLASS_NAMES - {"deviceclassname"}, f"name the class at {root.field(of_class)}"),
            "parametersref": f"write the parameters at {root.field(parameters)}",
        }
    if level.kind == "DeviceClass":
        driver = "select the driver at spec.selectors[].cel.expression: device.driver == '<driver>'"
        nodes = "remove it: the scheduler takes the nodes of devices from their ResourceSlices"
        parameters = "write the parameters at spec.config[].opaque.parameters"
        return {"driver": driver, "drivername": driver, "suitablenodes": nodes, "parametersref": parameters}
    if level.type.endswith(".PodResourceClaim"):
        text = (
            "a pod names a claim or a template, whose request names the class: write resourceClaimName: <claim>, or "
            "resourceClaimTemplateName: <template>"
        )
        return dict.fromkeys(_CLASS_NAMES, text)
    return {}


def level_to_add(key: str, value: Any, known: SchemaType) -> str:
    """Return the only map of a type that may have a key with a value: ``requests`` for ``memory: 1Gi``; else empty."""
    maps = [name for name, entry in known.fields.items() if entry.type.startswith(MAP)]
    if len(maps) == 1 and len(known.fields) <= 2 and may_have(value, item_type(known.fields[maps[0]].type)):
        return f"it belongs one level deeper: {maps[0]}.{key}"
    return ""


def level_to_remove(key: str, value: Any, known: SchemaType, level: Level) -> str:
    """Return what to do with a level that the API does not have, if the fields below it belong to its parent."""
    if not isinstance(value, Mapping) or not value or not value.keys() <= known.fields.keys():
        return ""
    text = f"remove this level: its fields belong directly to {level.path or 'the object'}"
    if key == "spec" and level.kind == "ResourceClaim":
        text += "; only a ResourceClaimTemplate has spec.spec"
    return text
