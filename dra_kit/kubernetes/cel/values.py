"""What expressions compute with.

Most values are Python's own: None, bool, int (64 bits), float, str, bytes, and list, which nothing changes once it is
made. The others are here, and ``dra_kit.values.quantity.Quantity``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from typing_extensions import override

from dra_kit.cel import types
from dra_kit.cel.failure import Failure, Panic
from dra_kit.cel.types import Type
from dra_kit.values.quantity import Quantity

INT_MAX: Final = 2**63 - 1
INT_MIN: Final = -(2**63)
UINT_MAX: Final = 2**64 - 1


class Uint(int):
    """An unsigned integer of 64 bits."""

    __slots__ = ()


class Computed(Quantity):
    """What ``add()`` and ``sub()`` return.

    Kubernetes 1.37 makes a pointer of it where other quantities are none, so that no quantity is comparable with one
    on the right of ``==``.
    """

    __slots__ = ()


class TypeValue:
    """A type as a value: what ``type(x)`` returns."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name: str = name

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, TypeValue) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)


class Optional:
    """A value that may be absent; ``NONE`` is the absent one."""

    __slots__ = ("present", "value")

    def __init__(self, value: Any, *, present: bool = True) -> None:
        self.value: Any = value
        self.present: bool = present


NONE: Final = Optional(None, present=False)


class Duration:
    """A length of time in nanoseconds."""

    __slots__ = ("nanoseconds",)

    def __init__(self, nanoseconds: int) -> None:
        self.nanoseconds: int = nanoseconds


class Timestamp:
    """A moment, in nanoseconds since 1970 in UTC; written with the offset from UTC in minutes that it was read with."""

    __slots__ = ("nanoseconds", "offset")

    def __init__(self, nanoseconds: int, offset: int = 0) -> None:
        self.nanoseconds: int = nanoseconds
        self.offset: int = offset


class Map:
    """A map of CEL. Numbers that are equal are one key; lists and other objects equal nothing but themselves.

    Args:
        items: values by what ``key_of`` makes of the keys.
    """

    __slots__ = ("items",)

    def __init__(self, items: dict[Any, Any]) -> None:
        self.items: dict[Any, Any] = items

    def find(self, key: object) -> tuple[Any, bool]:
        """Return the value, and whether there is one.

        Raises:
            Panic: values of this type are never keys.
        """
        try:
            return self.items[key_of(key)], True
        except KeyError:
            return None, False

    def has(self, key: object) -> bool:
        """Return ``key in map``.

        Raises:
            Panic: values of this type are never keys.
        """
        return key_of(key) in self.items

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys in the order in which they were inserted."""
        for key in self.items:
            yield key.value if type(key) is _WrappedKey else key

    def __len__(self) -> int:
        return len(self.items)


class StringMap(Map):
    """A map that is none of CEL's own, like ``device`` and what is in it: its keys are strings, nothing else is one."""

    __slots__ = ()

    @override
    def find(self, key: object) -> tuple[Any, bool]:
        """Return the value, and whether there is one."""
        if type(key) is str and key in self.items:
            return self.items[key], True
        return None, False

    @override
    def has(self, key: object) -> bool:
        """Return ``key in map``."""
        return type(key) is str and key in self.items


class DomainMap(StringMap):
    """``device.attributes`` or ``device.capacity``: an unknown domain is found, as an empty map."""

    __slots__ = ()

    @override
    def find(self, key: object) -> tuple[Any, bool]:
        """Return the domain's map; an empty one if there is none."""
        found = self.items.get(key) if type(key) is str else None
        return StringMap(found or {}), True


class LazyMap(StringMap):
    """A map whose values are computed when they are first looked for.

    Args:
        computations: for each key what computes its value; a Failure is stored as a value is.
    """

    __slots__ = ("_computations",)

    def __init__(self, computations: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__({})
        self._computations = computations

    @override
    def find(self, key: object) -> tuple[Any, bool]:
        """Return the value, and whether there is one."""
        if type(key) is not str or key not in self._computations:
            return None, False
        if key not in self.items:
            try:
                self.items[key] = self._computations[key]()
            except Failure as failure:
                self.items[key] = failure
        value = self.items[key]
        if type(value) is Failure:
            raise Failure(value.message, value.kind, key=value.key)
        return value, True

    @override
    def has(self, key: object) -> bool:
        """Return ``key in map``."""
        return type(key) is str and key in self._computations

    @override
    def __iter__(self) -> Iterator[Any]:
        return iter(self._computations)

    @override
    def __len__(self) -> int:
        return len(self._computations)


MAPS: Final = frozenset({Map, StringMap, DomainMap, LazyMap})
"""The classes of maps."""


class _WrappedKey:
    """A key that Python would take for another one, or not at all."""

    __slots__ = ("identity", "value")

    def __init__(self, value: object, identity: object) -> None:
        self.value = value
        self.identity = identity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WrappedKey) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


_TRUE: Final = _WrappedKey(value=True, identity="true")
_FALSE: Final = _WrappedKey(value=False, identity="false")
_PLAIN_KEYS: Final = frozenset({str, int, Uint, float, type(None)})
_NO_KEYS: Final = frozenset({"bytes", "kubernetes.Semver", "kubernetes.NamedFormat"})


def key_of(value: Any) -> Any:
    """Return the key that stands for a value in ``Map.items``.

    Raises:
        Panic: values of this type are never keys.
    """
    kind = type(value)
    if kind in _PLAIN_KEYS:
        return value
    if kind is bool:
        return _TRUE if value else _FALSE
    if type_name(value) in _NO_KEYS:
        raise Panic(f"hash of unhashable type {type_name(value)}")
    if kind is Duration or kind is Timestamp:
        return _WrappedKey(value, (kind, value.nanoseconds))
    return _WrappedKey(value, id(value))


RUNTIME_TYPES: Final[dict[type, Type]] = {
    bool: types.BOOL, int: types.INT, Uint: types.UINT, float: types.DOUBLE, str: types.STRING, bytes: types.BYTES,
    type(None): types.NULL, list: types.list_of(types.DYN), Map: types.map_of(types.DYN, types.DYN),
    StringMap: types.map_of(types.DYN, types.DYN), DomainMap: types.map_of(types.DYN, types.DYN),
    LazyMap: types.map_of(types.DYN, types.DYN),
    TypeValue: types.type_of_type(types.DYN), Optional: types.optional_of(types.DYN), Duration: types.DURATION,
    Timestamp: types.TIMESTAMP, Quantity: types.QUANTITY, Computed: types.QUANTITY,
}  # fmt: skip
"""The type of a value by its Python class; modules that define more classes of values add theirs."""


def type_name(value: object) -> str:
    """Return the name of a value's type at run time."""
    return RUNTIME_TYPES[type(value)].name


def size_of(value: Any) -> int:
    """Return the size of a value in costs: the length of what has one, 1 for the rest."""
    kind = type(value)
    if kind is str or kind is list or kind is bytes or kind in MAPS:
        return len(value)
    if kind is Optional and value.present:
        return size_of(value.value)
    size = getattr(value, "cost_size", None)
    return 1 if size is None else int(size)
