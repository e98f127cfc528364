"""Server-side apply: who owns which field, sets of fields, conflicts, and updates of managedFields.

A path is a tuple of elements as FieldsV1 spells them: ``f:<field>``, ``k:<keys as JSON>`` for an item of a list with
keys, ``v:<JSON>`` for an item of a set.

Sources: sigs.k8s.io/structured-merge-diff 6, ``typed`` and ``fieldpath``; k8s.io/apimachinery 0.37
``pkg/util/managedfields`` and sigs.k8s.io/structured-merge-diff 6 ``merge``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource.schema.types import (
    LIST,
    MAP,
    SchemaField,
    item_type,
    prune,
    struct,
    struct_of_all,
    written_zero,
)
from dra_kit.kubernetes.values.json import Object

Path: TypeAlias = tuple[str, ...]
FieldSet: TypeAlias = frozenset[Path]
Shape: TypeAlias = Literal["scalar", "atomic", "struct", "map", "set", "keyed"]
EMPTY: Final[FieldSet] = frozenset()
_MISSING: Final = object()


class FieldNode(Struct, frozen=True):
    """How a value of some type is split into its parts.

    Attributes:
        shape: ``struct``, ``map``, ``set`` and ``keyed`` have parts; ``scalar`` and ``atomic`` are one thing.
        keys: for ``keyed``: the fields that identify an item.
    """

    shape: Shape
    type: str
    keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, described: SchemaField) -> FieldNode:
        """Return the node of a field's value."""
        type_name = described.type
        if type_name.startswith(LIST):
            shape: Shape = "keyed" if described.list == "map" else "set" if described.list == "set" else "atomic"
            return cls(shape, type_name, described.keys)
        if type_name.startswith(MAP):
            return cls("atomic" if described.map == "atomic" else "map", type_name)
        known = struct_of_all(type_name)
        if known is None:
            return cls("atomic" if type_name == "RawExtension" else "scalar", type_name)
        return cls("atomic" if "atomic" in {known.map, described.map} else "struct", type_name)

    def shape_for(self, value: Any) -> Shape:
        """Return the shape of a value: JSON of no known type is split like a map."""
        if self.type == "JSON" and isinstance(value, dict):
            return "map"
        return "atomic" if self.type == "JSON" and isinstance(value, list) else self.shape

    def parts(self, value: Any) -> Iterator[tuple[str, Any, FieldNode]]:
        """Yield the elements, values and nodes of a value's parts."""
        if value is None:
            return
        match self.shape_for(value):
            case "struct" | "map":
                for name, item in value.items():
                    yield f"f:{name}", item, self._part(name)
            case "keyed":
                below = FieldNode.of(SchemaField(item_type(self.type)))
                for item in value:
                    yield self._key(item), item, below
            case "set":
                for item in value:
                    yield f"v:{_json(item)}", item, FieldNode("scalar", item_type(self.type))

    def _part(self, name: str) -> FieldNode:
        if self.type.startswith(MAP):
            return FieldNode.of(SchemaField(item_type(self.type)))
        known = struct_of_all(self.type)
        described = known.fields.get(name) if known else None
        return FieldNode("scalar", "JSON") if described is None else FieldNode.of(described)

    def _key(self, item: dict[str, Any]) -> str:
        known = struct_of_all(item_type(self.type))
        found = {}
        for key in sorted(self.keys):
            value = item.get(key, known.fields[key].default if known else None)
            if value is not None:
                found[key] = value
        return f"k:{_json(found)}"

    def whole(self, value: Any) -> bool:
        """Return whether a value is atomic."""
        return self.shape_for(value) in {"scalar", "atomic"}

    def is_field(self, name: str) -> bool:
        """Return whether a part is a field of a struct, not an entry of a map."""
        known = struct_of_all(self.type) if self.shape == "struct" else None
        return known is not None and name.removeprefix("f:") in known.fields


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def root(type_name: str) -> FieldNode:
    """Return the node of whole objects of a type."""
    return FieldNode.of(SchemaField(type_name))


def field_set(value: Any, type_name: str) -> FieldSet:
    """Return all fields that an applied object mentions."""
    found: set[Path] = set()

    def walk(value: Any, node: FieldNode, path: Path) -> None:
        if node.whole(value) or value is None:
            found.add(path)
            return
        for element, item, part in node.parts(value):
            below = (*path, element)
            walk(item, part, below)
            empty = item is None or item == {}
            if empty or not node.is_field(element):
                found.add(below)

    walk(value, root(type_name), ())
    return frozenset(found - {()})


def repetitions(value: Any, type_name: str) -> Iterator[Path]:
    """Yield the repeated items of keyed lists and sets, in the order of the value."""

    def walk(value: Any, node: FieldNode, path: Path) -> Iterator[Path]:
        seen: set[str] = set()
        for element, item, part in () if node.whole(value) else node.parts(value):
            if element in seen:
                yield (*path, element)
            seen.add(element)
            yield from walk(item, part, (*path, element))

    return walk(value, root(type_name), ())


def undeclared_fields(value: Any, entry: SchemaField, version: KubernetesVersion, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that a release does not have in a type, as it prints them: one of each object.

    Kubernetes stops at the first unknown field of an object, and its order is random.
    """
    if isinstance(value, list) and entry.type.startswith(LIST):
        inner = SchemaField(item_type(entry.type))
        for i, item in enumerate(value):
            keys = {key: item[key] for key in entry.keys if isinstance(item, dict) and key in item}
            element = format_path((f"k:{_json(keys)}",)) if keys else f"[{i}]"
            yield from undeclared_fields(item, inner, version, path + element)
    elif isinstance(value, dict) and entry.type.startswith(MAP):
        for key, item in value.items():
            yield from undeclared_fields(item, SchemaField(item_type(entry.type)), version, f"{path}.{key}")
    elif isinstance(value, dict) and (known := struct(entry.type, version)) is not None:
        for key, item in value.items():
            if key in known.fields:
                yield from undeclared_fields(item, known.fields[key], version, f"{path}.{key}")
        unknown = next((key for key in value if key not in known.fields), None)
        if unknown is not None and not known.open:
            yield f"{path}.{unknown}"


class FieldComparison(Struct):
    """What differs between two objects.

    Attributes:
        added: fields, structs and items that only the new one has.
        modified: fields whose values differ.
        removed: what only the old one has.
    """

    added: set[Path] = field(default_factory=set)
    modified: set[Path] = field(default_factory=set)
    removed: set[Path] = field(default_factory=set)

    @property
    def changed(self) -> FieldSet:
        """Added and modified."""
        return frozenset(self.added | self.modified)


def compare_fields(old: Any, new: Any, type_name: str) -> FieldComparison:
    """Return what differs between two objects of a type."""
    comparison = FieldComparison()

    def everything(value: Any, node: FieldNode, path: Path, found: set[Path]) -> None:
        found.add(path)
        if not node.whole(value):
            for element, item, part in node.parts(value):
                everything(item, part, (*path, element), found)

    def walk(old: Any, new: Any, node: FieldNode, path: Path) -> None:
        if node.whole(new if new is not None else old):
            if old != new:
                comparison.modified.add(path)
            return
        before = {element: (item, part) for element, item, part in node.parts(old)}
        for element, item, part in node.parts(new):
            below = (*path, element)
            previous = before.pop(element, _MISSING)
            if previous is _MISSING:
                everything(item, part, below, comparison.added)
            else:
                walk(previous[0], item, part, below)  # type: ignore[index]
        for element, (item, part) in before.items():
            everything(item, part, (*path, element), comparison.removed)

    walk(old, new, root(type_name), ())
    return comparison


def to_fields_v1(fields: Iterable[Path]) -> dict[str, Any]:
    """Return a set as FieldsV1."""
    tree: dict[str, Any] = {}
    members = set(fields)
    for path in sorted(members):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
    for path in members:
        node = tree
        for element in path:
            node = node[element]
        if node:
            node["."] = {}
    return _sorted(tree)


def _sorted(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: _sorted(tree[key]) for key in sorted(tree)}


def from_fields_v1(tree: dict[str, Any]) -> FieldSet:
    """Return a set from FieldsV1."""
    found: set[Path] = set()

    def walk(tree: dict[str, Any], path: Path) -> None:
        if "." in tree or not tree:
            found.add(path)
        for element, below in tree.items():
            if element != ".":
                walk(below, (*path, element))

    for element, below in tree.items():
        walk(below, (element,))
    return frozenset(found)


def format_path(path: Path) -> str:
    """Return a path as the API server prints it: ``.spec.containers[name="main"].image``."""
    text = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            text += f"[{','.join(f'{key}={_json(value)}' for key, value in json.loads(rest).items())}]"
        else:
            text += f"[={rest}]"
    return text


def merge(live: Any, applied: Any, node: FieldNode) -> Any:
    """Return the live object with the fields of an applied one; items keep their place, new ones come last."""
    if applied is None or live is None or node.whole(applied):
        return applied
    parts = {element: (item, part) for element, item, part in node.parts(applied)}
    if node.shape_for(applied) in {"struct", "map"}:
        merged = dict(live)
        for element, (item, part) in parts.items():
            name = element.removeprefix("f:")
            merged[name] = merge(live.get(name), item, part)
        return merged
    items = []
    for element, item, part in node.parts(live):
        other = parts.pop(element, None)
        items.append(item if other is None else merge(item, other[0], part))
    return items + [item for item, _ in parts.values()]


def without(value: Any, node: FieldNode, gone: Callable[[Path], bool], path: Path = ()) -> Any:
    """Return a value without the fields and items of the removed paths."""
    if node.whole(value) or value is None:
        return value
    remaining = [
        (element, without(item, part, gone, (*path, element)))
        for element, item, part in node.parts(value)
        if not gone((*path, element))
    ]
    if node.shape_for(value) in {"struct", "map"}:
        return {element.removeprefix("f:"): item for element, item in remaining}
    return [item for _, item in remaining]


Operation: TypeAlias = Literal["Apply", "Update"]
BEFORE_FIRST_APPLY: Final = "before-first-apply"
_UNOWNED: Final[frozenset[Path]] = frozenset({
    ("f:apiVersion",), ("f:kind",), ("f:metadata",),
    *(("f:metadata", f"f:{name}") for name in (
        "name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields", "resourceVersion")),
})  # fmt: skip


class FieldManager(Struct, frozen=True):
    """One entry of ``managedFields``.

    Attributes:
        api_version: the version in which its fields are spelled.
        subresource: through which it wrote, empty for none.
        time: of its last change, empty when unknown.
    """

    name: str
    operation: Operation
    api_version: str
    subresource: str
    fields: FieldSet
    time: str = ""

    def same(self, other: FieldManager) -> bool:
        """Return whether both are one manager: an applier may change its version."""
        return (self.name, self.operation, self.subresource) == (other.name, other.operation, other.subresource) and (
            self.operation == "Apply" or self.api_version == other.api_version
        )

    def entry(self) -> Object:
        """Return the entry as JSON."""
        entry: Object = {"manager": self.name, "operation": self.operation, "apiVersion": self.api_version}
        if self.time:
            entry["time"] = self.time
        entry |= {"fieldsType": "FieldsV1", "fieldsV1": to_fields_v1(self.fields)}
        return entry | ({"subresource": self.subresource} if self.subresource else {})


class ApplyConflict(Exception):
    """Fields of an applied object that other managers own with other values."""

    def __init__(self, conflicts: Sequence[tuple[FieldManager, Sequence[Path]]]) -> None:
        self.conflicts = conflicts
        count = sum(len(paths) for _, paths in conflicts)
        text = self._who(conflicts[0][0]) + f": {format_path(conflicts[0][1][0])}"
        if count > 1:
            lines: list[str] = []
            for manager, paths in conflicts:
                lines += [f"{self._who(manager, 's')}:", *(f"- {format_path(path)}" for path in paths)]
            text = "\n".join(lines)
        super().__init__(f"Apply failed with {count} conflict{'' if count == 1 else 's'}: {text}")

    @staticmethod
    def _who(manager: FieldManager, plural: str = "") -> str:
        subresource = f' with subresource "{manager.subresource}"' if manager.subresource else ""
        using = f" using {manager.api_version}" if manager.operation == "Update" else ""
        return f'conflict{plural} with "{manager.name}"{subresource}{using}'

    def causes(self) -> list[Object]:
        """Return causes for the details of a Status."""
        return [
            {"reason": "FieldManagerConflict", "message": self._who(manager), "field": format_path(path)}
            for manager, paths in self.conflicts
            for path in paths
        ]


def managers_of(obj: Mapping[str, Any]) -> list[FieldManager]:
    """Return the managers of an object; the last of several entries for one manager counts."""
    found: list[FieldManager] = []
    for entry in obj["metadata"].get("managedFields") or ():
        manager = FieldManager(
            entry.get("manager", ""), entry.get("operation", "Update"), entry.get("apiVersion", ""),
            entry.get("subresource", ""), from_fields_v1(entry.get("fieldsV1") or {}), entry.get("time", ""),
        )  # fmt: skip
        found = [*(other for other in found if not other.same(manager)), manager]
    return found


def entries(managers: Iterable[FieldManager]) -> list[Object]:
    """Return ``managedFields`` of managers: appliers first, then by time and name; leave out those without fields."""
    retained = [manager for manager in managers if manager.fields]
    retained.sort(key=lambda m: (m.operation, m.time, m.name, m.api_version, m.subresource))
    return [manager.entry() for manager in retained]


def after_update(
    old: Object, new: Object, type_name: str, writer: FieldManager, managers: list[FieldManager]
) -> list[FieldManager]:
    """Return the managers after a write other than apply: only the writer owns the fields that it changed.

    ``old`` is in the writer's version, and the zero object for a creation. The fields of ``writer`` are ignored.
    """
    comparison = compare_fields(old, new, type_name)
    changed, removed = comparison.changed - _UNOWNED, frozenset(comparison.removed)
    if not changed and not removed:
        return managers
    others = [
        replace(manager, fields=manager.fields - changed - removed) for manager in managers if not manager.same(writer)
    ]
    before = next((manager for manager in managers if manager.same(writer)), None)
    mine = replace(writer, fields=((before.fields if before else EMPTY) | changed) - removed)
    if before is not None and before.fields == mine.fields and not changed:
        mine = before
    return [*others, mine]


class ApplyResult(Struct, frozen=True):
    """The outcome of an apply: the merged object and its managers."""

    obj: Object
    managers: list[FieldManager]


def after_apply(
    live: Object,
    config: Object,
    type_name: str,
    writer: FieldManager,
    managers: list[FieldManager],
    *,
    version: KubernetesVersion,
    force: bool,
) -> ApplyResult:
    """Merge an applied configuration into an object of a release.

    Fields that the writer applied before and no longer mentions are removed, unless another manager owns them too.

    Raises:
        ApplyConflict: another manager owns a field that would change, and ``force`` is not set.
    """
    mine = field_set(config, type_name) - _UNOWNED
    others = [manager for manager in managers if not manager.same(writer)]
    before = next((manager for manager in managers if manager.same(writer)), None)
    if not managers and live:
        everything = frozenset(
            path
            for path in compare_fields(written_zero(type_name, version), live, type_name).changed - _UNOWNED
            if (path[0] == "f:status") is (writer.subresource == "status")
        )
        others = [FieldManager(BEFORE_FIRST_APPLY, "Update", writer.api_version, "", everything, "")]
    node = root(type_name)
    merged = merge(live, config, node)
    changed = compare_fields(live, merged, type_name).changed
    conflicts = [
        (manager, sorted(manager.fields & changed & mine)) for manager in others if manager.fields & changed & mine
    ]
    if conflicts and not force:
        raise ApplyConflict(conflicts)
    others = [replace(manager, fields=manager.fields - (changed & mine)) for manager in others]
    dropped = (before.fields if before else EMPTY) - mine
    if dropped:
        retained = frozenset(
            prefix
            for fields in (mine, *(manager.fields for manager in others))
            for path in fields
            for prefix in (path[:i] for i in range(1, len(path) + 1))
        )
        merged = without(merged, node, lambda path: path in dropped and path not in retained)
    removed = frozenset(compare_fields(live, merged, type_name).removed)
    others = [replace(manager, fields=manager.fields - removed) for manager in others]
    same = before is not None and before.fields == mine and before.api_version == writer.api_version
    # if the object does not change, an existing time is retained
    time = writer.time if merged != live else before.time if before else ""
    current = before if before is not None and same else replace(writer, fields=mine, time=time)
    return ApplyResult(merged, [*others, current])


def tracked_fields(
    old: Object | None, new: Object, type_name: str, writer: FieldManager, version: KubernetesVersion
) -> list[Object] | None:
    """Return ``managedFields`` after a write in a release.

    Both objects are in the writer's version: ``old`` is None when it is created, ``new`` is as the writer wants it,
    before admission. None is for none: an object that lost its managers gets new ones only by an apply.
    """
    managers: list[FieldManager] = []
    if old is not None:
        given: list[Any] | None = new["metadata"].get("managedFields")
        if given is not None and (not given or given == [{}]):
            return None  # asked to forget
        # a writer may hand fields over, as kubectl's server-side apply does
        managers = managers_of(new) or managers_of(old)
        if not managers:
            return None
    before = written_zero(type_name, version) if old is None else old
    written = prune(new, type_name, version, stored=False)
    return entries(after_update(before, written, type_name, writer, managers)) or None
