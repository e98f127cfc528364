"""Checks of fields: unknown, misspelt, at the wrong place, of the wrong type; and the remedies for them.

Paths are those of :class:`~dra_kit.kubernetes.manifests.positions.Positions`. A rule has a remedy only if the
intention is certain; all remedies of a finding are applied together, or none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from dra_kit.author.config_problems import short_json
from dra_kit.kubernetes.release import SUPPORTED, KubernetesVersion, Release
from dra_kit.kubernetes.resource.conversion import GATED_FIELDS
from dra_kit.kubernetes.resource.schema.types import (
    LIST,
    MAP,
    SCALARS,
    SchemaType,
    TypeMismatch,
    item_type,
    read_scalar,
    struct,
    zero,
)
from dra_kit.kubernetes.values.semver import Version
from dra_kit.text import probable_names, suggest_names, unambiguous_correction

_ELSEWHERE: Final = {
    "basic": "since v1beta2 a device has these fields itself",
    "source": "since Kubernetes 1.31 its fields are in the entry itself",
}
_PLAIN: Final = re.compile(r"[A-Za-z][\w./-]*")
_MANY: Final = 20
"""Fields of a type from which on they are listed only if nothing else can be said."""
_TRUTH: Final = {"true": True, "false": False}
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_WANTED: Final = {
    "string": "a string",
    "bool": "a boolean",
    "int32": "an integer of 32 bits",
    "int64": "an integer of 64 bits",
    "double": "a number",
    "bytes": "a string of base64",
    "Time": "a time",
    "MicroTime": "a time",
    "Quantity": "a quantity",
    "IntOrString": "an integer or a string",
}
_WRITTEN: Final = frozenset({"bytes", "Time", "MicroTime", "Quantity"})
"""Scalars that are strings in a specific format."""


class Rename(Struct, frozen=True):
    """Rename the field at a path."""

    path: str
    name: str


class Rewrite(Struct, frozen=True):
    """Replace the scalar at a path; the value None puts the existing text in quotes."""

    path: str
    value: str | int | bool | None


class Replace(Struct, frozen=True):
    """Replace the characters from ``start`` to ``end`` (exclusive) of the string at a path."""

    path: str
    start: int
    end: int
    text: str


class Enclose(Struct, frozen=True):
    """Move the fields ``keys`` of the object at a path into its field ``under``, which may exist already."""

    path: str
    keys: tuple[str, ...]
    under: str


class Unwrap(Struct, frozen=True):
    """Replace the field ``key`` of the object at a path by the fields in it."""

    path: str
    key: str


class Enlist(Struct, frozen=True):
    """Make the value at a path the only item of a list."""

    path: str


Remedy: TypeAlias = Rename | Rewrite | Replace | Enclose | Unwrap | Enlist


class FieldProblem(msgspec.Struct, frozen=True):
    """A problem with a field.

    Attributes:
        message: what is wrong.
        help: what to write instead; may be empty.
        key: whether the problem is the field's name rather than its value.
        instead: the path of the field that was probably intended; may be empty.
        quoted: whether the remedy is to write the value in quotes.
        remedies: certain fixes; may be empty.
    """

    path: str
    rule: str
    message: str
    help: str = ""
    key: bool = False
    instead: str = ""
    quoted: bool = False
    remedies: tuple[Remedy, ...] = ()


def correction(path: str, value: object, accepted: Iterable[object]) -> tuple[Remedy, ...]:
    """Return the remedy for a misspelt value at a path; empty unless exactly one accepted value can be intended."""
    intended = unambiguous_correction(value, accepted)
    return (Rewrite(path, intended),) if intended else ()


def check_structure(
    value: Any, type_name: str, version: KubernetesVersion, path: str = ""
) -> tuple[Any, list[FieldProblem]]:
    """Return an object, or the part of it at a path, without nulls and invalid parts, and its structural problems.

    Names of types are those of :mod:`dra_kit.kubernetes.resource.schema.types`. ``status`` is ignored.
    """
    check = _Check(version, [])
    return _cleaned(value, type_name, path, check, None), check.problems


class _Check(Struct, frozen=True):
    """A check by the fields of a release, and the problems that it has found so far."""

    version: KubernetesVersion
    problems: list[FieldProblem]


def is_misspelt(problems: Iterable[FieldProblem], path: str) -> bool:
    """Return whether a missing field is probably misspelt, or it or its parent has a wrong type."""
    for problem in problems:
        wrong = problem.rule == "wrong-type"
        intended = problem.path if wrong else problem.instead
        if intended.startswith(path) or (wrong and path.startswith(f"{intended}.")):
            return True
    return False


def _cleaned(value: Any, type_name: str, path: str, check: _Check, above: Level | None) -> Any:
    """Return the valid parts of a value; None if the value does not fit its type."""
    version, problems = check.version, check.problems
    if type_name in SCALARS:
        problem = _misfit(value, type_name, version, path)
        if problem is not None:
            problems.append(problem)
            return None
        return value
    if type_name.startswith(LIST):
        if not isinstance(value, list):
            sure = (Enlist(path),) if _may_be(value, item_type(type_name), version) else ()
            text = f"must be a list, not {short_json(value)}"
            problems.append(
                FieldProblem(path, "wrong-type", text, as_list(value, type_name, version), key=True, remedies=sure)
            )
            return None
        below = item_type(type_name)
        return [_item(item, below, f"{path}[{index}]", check, above) for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        wanted = "a map" if type_name.startswith(MAP) else "an object"
        text = f"must be {wanted}, not {short_json(value)}"
        problems.append(FieldProblem(path, "wrong-type", text, as_object(value, type_name, version), key=True))
        return None
    if type_name.startswith(MAP):
        below = item_type(type_name)
        return {key: _item(item, below, f"{path}[{key}]", check, above) for key, item in value.items()}
    return _fields(value, Level(path, type_name, version, above), check)


def _item(value: Any, type_name: str, path: str, check: _Check, above: Level | None) -> Any:
    """Return an item of a list or map; an invalid item becomes a zero value, so that others retain their positions."""
    cleaned = None if value is None else _cleaned(value, type_name, path, check, above)
    return zero(type_name, check.version) if cleaned is None else cleaned


def _fields(value: Mapping[str, Any], level: Level, check: _Check) -> dict[str, Any]:
    made = {}
    known = level.known
    for key, item in value.items():
        where = level.field(key)
        if where == STATUS:
            continue
        name: str | None = key
        if key not in known.fields:
            name = in_right_case(key, value, known.fields)  # its value is checked under the right name
            found = _unknown(key, value, level) if name is None else in_another_case(where, name, key)
            check.problems.append(found)
        if name is not None and item is not None:
            cleaned = _cleaned(item, known.fields[name].type, where, check, level)
            if cleaned is not None:
                made[name] = cleaned
    return made


def in_another_case(path: str, right: str, key: str) -> FieldProblem:
    """Return the problem of a field whose name has another case than the API's."""
    wish = f'did you mean "{right}"?'
    text = f"unknown field {key}"
    return FieldProblem(path, "unknown-field", text, wish, key=True, remedies=(Rename(path, right),))


def in_right_case(key: str, holder: Iterable[str], fields: Iterable[str]) -> str | None:
    """Return the only field that a key means in another case; None if there is none or the object has it already."""
    folded = key.casefold()
    same = [name for name in fields if name.casefold() == folded]
    if len(same) != 1 or sum(other.casefold() == folded for other in holder) > 1:
        return None
    return same[0]


_RESOURCES: Final = re.compile(r"(.*\.resources)\.(limits|requests)\[(\w*[cC]laims)\]$")
"""Claims among the quantities of a container."""


def _misfit(value: Any, type_name: str, version: KubernetesVersion, path: str) -> FieldProblem | None:
    try:
        read_scalar(value, type_name, version)
    except TypeMismatch as error:
        wanted = _WANTED[type_name]
        if isinstance(value, str) and type_name in _WRITTEN:
            return FieldProblem(path, "wrong-type", str(error))
        plain = _plain(value) if type_name != "string" else None
        wish = f"write it without quotes: {value}" if plain is not None and _is_valid(plain, type_name, version) else ""
        quoted = type_name == "string" and isinstance(value, bool | int | float)
        sure = (Rewrite(path, plain),) if wish else (Rewrite(path, None),) if quoted else ()
        inner = _inner_scalar(value)
        if inner is not None and _is_valid(inner, type_name, version):
            wish = f"write the value itself: {_shown(inner)}"
        if isinstance(value, list) and (resources := _RESOURCES.match(path)):
            wish = f"write the names of claims at {resources[1]}.claims: [{{name: <claim>}}]"
        text = f"must be {wanted}, not {short_json(value)}"
        return FieldProblem(path, "wrong-type", text, wish, quoted=quoted, remedies=sure)
    return None


def _is_valid(value: Any, type_name: str, version: KubernetesVersion) -> bool:
    return not check_structure(value, type_name, version)[1]


def _inner_scalar(value: Any) -> Any:
    """Return the only scalar in an object or list: ``{value: 1}``, ``[{name: x}]``; None for any other value."""
    inner = value
    while isinstance(inner, list | Mapping) and len(inner) == 1:
        inner = inner[0] if isinstance(inner, list) else next(iter(inner.values()))
    return None if inner is value or isinstance(inner, list | Mapping) else inner


def _shown(value: Any) -> str:
    """Return a value as YAML in one line; strings without quotes if they need none."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


def as_object(value: Any, type_name: str, version: KubernetesVersion) -> str:
    """Return how to write a scalar or list as the object or map of a type; empty if that is unknown."""
    if isinstance(value, list):
        return _list_as_object(value, type_name, version)
    if isinstance(value, Mapping) or type_name.startswith(MAP):
        return ""
    match type_name.rpartition(".")[2]:
        case "DeviceAttribute":
            return f"write {{{_attribute_type(value)}: {_shown(value)}}}"
        case "PodResourceClaim":
            claim = f"{{name: {_shown(value)}, resourceClaimName: <claim>}}"
            return f"write {claim}, or resourceClaimTemplateName: <template>"
        case "DeviceRequest":
            return f"write {{name: {_shown(value)}, exactly: {{deviceClassName: <class>}}}}"
        case "DeviceSelector":
            return "write {cel: {expression: …}}"
        case "CELDeviceSelector":
            return "write {expression: …}"
        case "ExactDeviceRequest":
            return f"write {{deviceClassName: {_shown(value)}}}"
        case "ResourcePool":
            return f"write {{name: {_shown(value)}, generation: 1, resourceSliceCount: 1}}"
        case "Taint" | "DeviceTaint":
            return f"write {{key: {_shown(value)}, effect: NoSchedule}}"
        case "Toleration" | "DeviceToleration":
            return f"write {{key: {_shown(value)}, operator: Exists}}"
    known = struct(type_name, version)
    fields = known.fields if known is not None else {}
    # the fields that an object of this type is mostly written for
    written = (name for name in ("name", "value") if name in fields and _is_valid(value, fields[name].type, version))
    name = next(written, None)
    return f"write {{{name}: {_shown(value)}}}" if name is not None else ""


def _list_as_object(value: list[Any], type_name: str, version: KubernetesVersion) -> str:
    known = None if type_name.startswith(MAP) else struct(type_name, version)
    if known is None:
        named = bool(value) and all(isinstance(item, Mapping) and "name" in item for item in value)
        return "write each item as <name>: {…}" if named else ""
    if len(value) == 1 and isinstance(value[0], Mapping) and value[0] and value[0].keys() <= known.fields.keys():
        return "write the object without '- '"
    fields = [name for name, entry in known.fields.items() if value and may_have(value, entry.type, version)]
    return f"write the list in the field {fields[0]}" if len(fields) == 1 else ""


def _attribute_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    try:
        Version(str(value))
    except ValueError:
        return "string"
    return "version"


def as_list(value: Any, type_name: str, version: KubernetesVersion) -> str:
    """Return how to write an object or scalar as the list of a type; empty if that is unknown."""
    below = struct(item_type(type_name), version) if not item_type(type_name).startswith((LIST, MAP)) else None
    if isinstance(value, Mapping):
        names = below is not None and "name" in below.fields and value and not value.keys() & below.fields.keys()
        if names and all(isinstance(item, Mapping) for item in value.values()):
            return f"write the names as items: [{{name: {_shown(next(iter(value)))}, …}}]"
        if names and not any(isinstance(item, list | Mapping) for item in value.values()):
            return f"write the names as items: [{{name: {_shown(next(iter(value)))}}}]"
        return "begin each item with '- '"
    if below is None:
        return f"write [{_shown(value)}]" if _is_valid(value, item_type(type_name), version) else ""
    item = as_object(value, below.name, version).removeprefix("write ")
    return f"write [{item}]" if item.startswith("{") and item.endswith("}") else ""


def _plain(value: Any) -> int | bool | None:
    """Return the integer or boolean that a string contains."""
    if not isinstance(value, str):
        return None
    if value in _TRUTH:
        return _TRUTH[value]
    return int(value) if _INTEGER.fullmatch(value) else None


def _may_be(value: Any, type_name: str, version: KubernetesVersion) -> bool:
    """Return whether a value fits a type once its certain mistakes are fixed."""
    return all(problem.remedies for problem in check_structure(value, type_name, version)[1])


def _unknown(key: str, holder: Mapping[str, Any], level: Level) -> FieldProblem:
    path, known = level.field(key), level.known
    parent = path.removesuffix(key)
    # a field one level too high is more likely than a similar name
    below = _below(key, level)
    near = probable_names(key, known.fields)
    instead = ""
    sure: tuple[Remedy, ...] = ()
    if old := replacement(key, holder[key], level):
        wish = old
    elif other := _of_another_release(key, level):
        wish = other
    elif len(below) == 1:
        wish, instead = f"it belongs one level deeper: {below[0]}.{key}", f"{parent}{below[0]}.{key}"
        sure = _enclosed(parent.removesuffix("."), below[0], level, holder)
    elif key in _ELSEWHERE:
        wish = _ELSEWHERE[key]
        if isinstance(holder[key], Mapping) and holder[key].keys() <= known.fields.keys():
            sure = (Unwrap(parent.removesuffix("."), key),)
    elif near:
        wish, instead = suggest_names(key, known.fields), parent + near[0]
        name = unambiguous_correction(key, known.fields)
        if name and name not in holder and not _is_of_wrong_type(holder[key], known.fields[name].type, level.version):
            sure = (Rename(path, name),)
    elif _may_be_value(key, holder, level):
        wish, instead = 'did you mean "value"?', f"{parent}value"
    elif key == "value" and level.type.endswith(".DeviceAttribute"):
        wish = f"write {_attribute_type(holder[key])}: {_shown(holder[key])}"
    else:
        wish, instead = _placed(key, holder, level), f"{parent}name" if _is_named(key, holder, known) else ""
    return FieldProblem(path, "unknown-field", f"unknown field {key}", wish, key=True, instead=instead, remedies=sure)


def _of_another_release(key: str, level: Level) -> str:
    """Return which releases have a field that this one does not have; empty if none has."""
    types = ((version, struct(level.type, version)) for version in SUPPORTED)
    having = [version for version, known in types if known is not None and key in known.fields]
    if not having:
        return ""
    if having[-1] != SUPPORTED[-1]:
        return f"it exists in Kubernetes {' to '.join(sorted({str(having[0]), str(having[-1])}))} only; remove it"
    needed = (gates for gates, paths in GATED_FIELDS if level.kind and any(p.endswith(f".{key}") for p in paths))
    flags = "".join(f" with --feature-gates={one}=true" for one in next(needed, ()) if one not in Release.of(having[0]))
    return f"it exists since Kubernetes {having[0]}; remove it, or upgrade the cluster{flags}"


def _placed(key: str, holder: Mapping[str, Any], level: Level) -> str:
    """Return where a field belongs that is not similar to another one, or which fields are known."""
    value, known = holder[key], level.known
    if _is_named(key, holder, known):
        return f"write name: {key}, and its fields beside it"
    if wish := level_to_add(key, value, level) or level_to_remove(key, value, level):
        return wish
    if wish := other_place(key, value, level):
        return wish
    elsewhere = other_kind(key, value, level)
    if len(known.fields) > _MANY and elsewhere:
        return elsewhere
    return "; ".join(filter(None, (f"known here: {', '.join(sorted(known.fields))}", elsewhere)))


def _is_named(key: str, holder: Mapping[str, Any], known: SchemaType) -> bool:
    """Return whether a key is the missing ``name`` of an item: ``gpu: {resourceClaimName: a}``."""
    value = holder[key]
    has_fields = isinstance(value, Mapping) and bool(value) and value.keys() <= known.fields.keys()
    return has_fields and "name" in known.fields and "name" not in {*holder, *value}


def _may_be_value(key: str, holder: Mapping[str, Any], level: Level) -> bool:
    """Return whether a field is probably the misnamed ``value`` of an object that has little else."""
    known = level.known
    if "value" not in known.fields or "value" in holder or len(known.fields) > 2:
        return False
    return not isinstance(holder[key], Mapping) and _is_valid(holder[key], known.fields["value"].type, level.version)


def _below(key: str, level: Level) -> list[str]:
    """Return the fields that contain a field of that name."""
    fields = level.known.fields.items()
    inner = {name: struct(entry.type, level.version) for name, entry in fields if name != STATUS}
    return [name for name, found in inner.items() if found is not None and key in found.fields]


def _enclosed(path: str, under: str, level: Level, holder: Mapping[str, Any]) -> tuple[Remedy, ...]:
    """Return the remedy that moves all misplaced fields into the field they belong to, if they fit there."""
    known, version = level.known, level.version
    moved = [key for key in holder if key not in known.fields and _below(key, level) == [under]]
    if any(unambiguous_correction(key, known.fields) == under for key in holder):
        return ()  # that field is renamed first
    whole = holder.get(under)
    inner = whole if isinstance(whole, Mapping) else {}
    found = struct(known.fields[under].type, version)
    fits = found is not None and all(
        holder[key] is not None and key not in inner and _may_be(holder[key], found.fields[key].type, version)
        for key in moved
    )
    return (Enclose(path, tuple(moved), under),) if fits and (whole is None or inner) else ()


def _is_of_wrong_type(value: Any, type_name: str, version: KubernetesVersion) -> bool:
    return any(problem.rule == "wrong-type" for problem in check_structure(value, type_name, version)[1])


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
        version: the release whose fields are known.
        above: the object that contains it; None for the whole document or the known part of it.
    """

    path: str
    type: str
    version: KubernetesVersion
    above: Level | None = None

    @property
    def known(self) -> SchemaType:
        """Its type, with the fields that the release has."""
        known = struct(self.type, self.version)
        assert known is not None  # noqa: S101 - the table has no other types
        return known

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
    return _deeper(key, value, level) or _higher(key, value, level) or _deeper(key, value, level.root)


def other_kind(key: str, value: Any, level: Level) -> str:
    """Return which other kind has a field, and where; empty if none has it."""
    folded = _folded(key)
    if folded in _USUAL or folded in fields_below(level.root.type, level.version):
        return ""
    found = [
        (not may_have(value, places[0].type, level.version), f"{places[0].name} is a field of {noun}: {places[0].path}")
        for noun, type_name in _OTHER_KINDS.items()
        if (places := fields_below(type_name, level.version).get(folded))
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
def fields_below(type_name: str, version: KubernetesVersion) -> Mapping[str, tuple[FieldPlace, ...]]:
    """Return the fields of a type and of the types in it, by lower-case name, the usual and least deep ones first."""
    found: dict[str, list[FieldPlace]] = {}
    for place in _walk(type_name, version, "", ()):
        found.setdefault(_folded(place.name), []).append(place)
    return {name: tuple(sorted(places, key=lambda one: (one.is_rare, one.depth))) for name, places in found.items()}


def _walk(type_name: str, version: KubernetesVersion, path: str, above: tuple[str, ...]) -> Iterator[FieldPlace]:
    known = struct(type_name, version)
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
        if below not in SCALARS and below != "meta/v1.ObjectMeta":
            yield from _walk(below, version, f"{where}{marks}", (*above, type_name))


def _folded(key: str) -> str:
    return key.casefold().replace("_", "").replace("-", "")


def _deeper(key: str, value: Any, level: Level) -> str:
    return _at(level, _candidates(key, value, level))


def _higher(key: str, value: Any, level: Level) -> str:
    above = level.above
    while above is not None:
        for name, entry in above.known.fields.items():
            if _folded(name) == _folded(key) and may_have(value, entry.type, above.version):
                return f"it belongs higher: {above.field(name)}"
        above = above.above
    return ""


def _candidates(key: str, value: Any, level: Level) -> Sequence[FieldPlace]:
    places = fields_below(level.type, level.version).get(_folded(key), ())
    found = [place for place in places if may_have(value, place.type, level.version)]
    return [place for place in found if (place.is_rare, place.depth) == (found[0].is_rare, found[0].depth)]


def _at(level: Level, places: Sequence[FieldPlace]) -> str:
    if not 1 <= len(places) <= 2:
        return ""
    return f"it belongs deeper: {' or '.join(level.field(place.path) for place in places)}"


def may_have(value: Any, type_name: str, version: KubernetesVersion) -> bool:
    """Return whether a value has the form of a type: a list, an object with some of its fields, or a scalar."""
    if type_name.startswith(LIST):
        return isinstance(value, list) and all(may_have(item, item_type(type_name), version) for item in value[:1])
    if type_name.startswith(MAP):
        return isinstance(value, Mapping) and all(
            may_have(item, item_type(type_name), version) for item in list(value.values())[:1]
        )
    known = struct(type_name, version) if type_name not in SCALARS else None
    if known is None:
        return not isinstance(value, list | Mapping)
    return isinstance(value, Mapping) and (not value or any(key in known.fields for key in value))


def _replacements(level: Level) -> Mapping[str, str]:
    """Return what replaces old and frequent wrong names in an object, by lower-case name."""
    root = level.root
    if level.kind in _CLAIMS:
        of_class, parameters = (
            fields_below(root.type, level.version)[name][0].path for name in ("deviceclassname", "parameters")
        )
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


def level_to_add(key: str, value: Any, level: Level) -> str:
    """Return the only map of a type that may have a key with a value: ``requests`` for ``memory: 1Gi``; else empty."""
    known = level.known
    maps = [name for name, entry in known.fields.items() if entry.type.startswith(MAP)]
    if (
        len(maps) == 1
        and len(known.fields) <= 2
        and may_have(value, item_type(known.fields[maps[0]].type), level.version)
    ):
        return f"it belongs one level deeper: {maps[0]}.{key}"
    return ""


def level_to_remove(key: str, value: Any, level: Level) -> str:
    """Return what to do with a level that the API does not have, if the fields below it belong to its parent."""
    if not isinstance(value, Mapping) or not value or not value.keys() <= level.known.fields.keys():
        return ""
    text = f"remove this level: its fields belong directly to {level.path or 'the object'}"
    if key == "spec" and level.kind == "ResourceClaim":
        text += "; only a ResourceClaimTemplate has spec.spec"
    return text
