"""Sets of fields of typed objects: who owns what, and what a write changed.

A path is a tuple of elements as FieldsV1 spells them: ``f:<field>``, ``k:<keys as JSON>`` for an item of a list with
keys, ``v:<JSON>`` for an item of a set. Source: sigs.k8s.io/structured-merge-diff 6, ``typed`` and ``fieldpath``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from dra_kit.kubernetes.resource.schema.table import LIST, MAP, SchemaField, item_type, struct

Path: TypeAlias = tuple[str, ...]
FieldSet: TypeAlias = frozenset[Path]
Shape: TypeAlias = Literal["scalar", "atomic", "struct", "map", "set", "keyed"]

EMPTY: Final[FieldSet] = frozenset()
_MISSING: Final = object()


class Node(Struct, frozen=True):
    """How a value of some type is split into its parts.

    Attributes:
        shape: ``struct``, ``map``, ``set`` and ``keyed`` have parts; ``scalar`` and ``atomic`` are one thing.
        type: the value's type.
        keys: for ``keyed``: the fields that identify an item.
    """

    shape: Shape
    type: str
    keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, described: SchemaField) -> Node:
        """Return the node of a field's value."""
        type_name = described.type
        if type_name.startswith(LIST):
            shape: Shape = "keyed" if described.list == "map" else "set" if described.list == "set" else "atomic"
            return cls(shape, type_name, described.keys)
        if type_name.startswith(MAP):
            return cls("atomic" if described.map == "atomic" else "map", type_name)
        known = struct(type_name)
        if known is None:
            return cls("atomic" if type_name == "RawExtension" else "scalar", type_name)
        return cls("atomic" if "atomic" in {known.map, described.map} else "struct", type_name)

    def shape_for(self, value: Any) -> Shape:
        """Return the shape of a value: JSON of no known type is split like a map."""
        if self.type == "JSON" and isinstance(value, dict):
            return "map"
        return "atomic" if self.type == "JSON" and isinstance(value, list) else self.shape

    def parts(self, value: Any) -> Iterator[tuple[str, Any, Node]]:
        """Yield the elements, values and nodes of a value's parts."""
        if value is None:
            return
        match self.shape_for(value):
            case "struct" | "map":
                for name, item in value.items():
                    yield f"f:{name}", item, self._part(name)
            case "keyed":
                below = Node.of(SchemaField(item_type(self.type)))
                for item in value:
                    yield self._key(item), item, below
            case "set":
                for item in value:
                    yield f"v:{_json(item)}", item, Node("scalar", item_type(self.type))

    def _part(self, name: str) -> Node:
        if self.type.startswith(MAP):
            return Node.of(SchemaField(item_type(self.type)))
        known = struct(self.type)
        described = known.fields.get(name) if known else None
        return Node("scalar", "JSON") if described is None else Node.of(described)

    def _key(self, item: dict[str, Any]) -> str:
        known = struct(item_type(self.type))
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
        known = struct(self.type) if self.shape == "struct" else None
        return known is not None and name.removeprefix("f:") in known.fields


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def root(type_name: str) -> Node:
    """Return the node of whole objects of a type."""
    return Node.of(SchemaField(type_name))


def field_set(value: Any, type_name: str) -> FieldSet:
    """Return all fields that an applied object mentions."""
    found: set[Path] = set()

    def walk(value: Any, node: Node, path: Path) -> None:
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
    """Yield the items of lists with keys and of sets that are there before; their order is that of the value."""

    def walk(value: Any, node: Node, path: Path) -> Iterator[Path]:
        seen: set[str] = set()
        for element, item, part in () if node.whole(value) else node.parts(value):
            if element in seen:
                yield (*path, element)
            seen.add(element)
            yield from walk(item, part, (*path, element))

    return walk(value, root(type_name), ())


class Comparison(Struct):
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


def compare(old: Any, new: Any, type_name: str) -> Comparison:
    """Return what differs between two objects of a type."""
    comparison = Comparison()

    def everything(value: Any, node: Node, path: Path, found: set[Path]) -> None:
        found.add(path)
        if not node.whole(value):
            for element, item, part in node.parts(value):
                everything(item, part, (*path, element), found)

    def walk(old: Any, new: Any, node: Node, path: Path) -> None:
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


def shown(path: Path) -> str:
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


def merge(live: Any, applied: Any, node: Node) -> Any:
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


def without(value: Any, node: Node, gone: Callable[[Path], bool], path: Path = ()) -> Any:
    """Return a value without the fields and items whose paths are gone."""
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
