"""Sizes, membership, and what macros build maps with."""

from __future__ import annotations

from typing import Any, Final

from dra_kit.cel.cost.meter import Frame, spend
from dra_kit.cel.declarations import Library
from dra_kit.cel.equality import holds
from dra_kit.cel.failure import Failure, no_such_overload
from dra_kit.cel.values import MAPS, Map, TypeValue, key_of, type_name

LIBRARY: Final = Library()

_SIZED: Final = frozenset({str, bytes, list}) | MAPS


def _size(value: Any) -> int:
    if type(value) not in _SIZED:
        raise no_such_overload("size")
    return len(value)


for _type, _name in {"bytes": "bytes", "list(A)": "list", "map(A, B)": "map", "string": "string"}.items():
    LIBRARY.declare(f"size_{_name}", f"size({_type}) -> int", _size)
    LIBRARY.declare(f"{_name}_size", f"size({_type}) -> int", _size, member=True)


def contains(frame: Frame, element: Any, container: Any) -> bool:
    """Return ``element in container``."""
    if type(container) is list:
        return holds(frame, element, container)
    if isinstance(container, Map):
        return container.has(element)
    raise no_such_overload()


for _function in ("@in", "_in_", "in"):
    LIBRARY.function("in_list", f"{_function}(A, list(A)) -> bool", metered=True)(contains)
    LIBRARY.function("in_map", f"{_function}(A, map(A, B)) -> bool", metered=True)(contains)


@LIBRARY.function("type", "type(A) -> type(A)")
def _type_of(value: Any) -> TypeValue:
    return TypeValue(type_name(value))


@LIBRARY.function("to_dyn", "dyn(A) -> dyn")
def _dyn(value: Any) -> Any:
    return value


def insert(frame: Frame, into: Map, key: Any, value: Any) -> Map:
    """Return a map with one entry more.

    Raises:
        Failure: the key is there already, or cannot be one.
    """
    spend(frame, len(into) + 1)
    if key_of(key) in into.items:
        raise Failure(f"insert failed: key '{key}' already exists")
    return Map({**into.items, key_of(key): value})


@LIBRARY.function("@mapInsert_map_key_value", "cel.@mapInsert(map(K, V), K, V) -> map(K, V)", metered=True)
def _insert_entry(frame: Frame, into: Map, key: Any, value: Any) -> Map:
    return insert(frame, into, key, value)


@LIBRARY.function("@mapInsert_map_map", "cel.@mapInsert(map(K, V), map(K, V)) -> map(K, V)", metered=True)
def _insert_all(frame: Frame, into: Map, other: Map) -> Map:
    for key in other:
        into = insert(frame, into, key, other.find(key)[0])
    return into
