"""Values in an evaluation, messages that expressions can create, and the state and cost of an evaluation."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct
from typing_extensions import override

from dra_kit.kubernetes.cel import types
from dra_kit.kubernetes.cel.failures import CostLimitExceeded, EvaluationFailure, EvaluatorPanic, unusable_attribute
from dra_kit.kubernetes.cel.types import Type
from dra_kit.kubernetes.values.quantity import Quantity

INT_MAX: Final = 2**63 - 1
INT_MIN: Final = -(2**63)
UINT_MAX: Final = 2**64 - 1
SECOND: Final = 1_000_000_000
"""Nanoseconds of a second."""


class Uint(int):
    """An unsigned integer of 64 bits."""

    __slots__ = ()


def overflow(what: str) -> EvaluationFailure:
    """Return the failure: a result does not fit its type."""
    return EvaluationFailure(f"{what} overflow", "arithmetic")


def fit_int(number: int) -> int:
    """Return the number, if it fits the type int.

    Raises:
        EvaluationFailure: it does not.
    """
    if INT_MIN <= number <= INT_MAX:
        return number
    raise overflow("integer")


def fit_uint(number: int) -> Uint:
    """Return the number as an unsigned one; raises EvaluationFailure like ``fit_int``."""
    if 0 <= number <= UINT_MAX:
        return Uint(number)
    raise overflow("unsigned integer")


class ComputedQuantity(Quantity):
    """The result of ``add()`` and ``sub()``.

    Kubernetes 1.37 returns a pointer here, but other quantities are values. Therefore no quantity can be compared with
    one on the right side of ``==``.
    """

    __slots__ = ()


class TypeValue(Struct, frozen=True):
    """A type as a value: what ``type(x)`` returns."""

    name: str


class OptionalValue(Struct, frozen=True):
    """A value that may be absent; ``NONE`` is the absent one."""

    value: Any
    present: bool = True


NONE: Final = OptionalValue(None, present=False)


class Duration(Struct, frozen=True):
    """A length of time in nanoseconds."""

    nanoseconds: int


class Timestamp(Struct, frozen=True):
    """A time in nanoseconds since 1970 UTC, and the UTC offset in minutes with which it was read and is written."""

    nanoseconds: int
    offset: int = 0


class MapValue:
    """A map of CEL. Equal numbers are the same key; lists and other objects are equal only to themselves.

    Args:
        items: values by the results of ``map_key`` for the keys.
    """

    __slots__ = ("items",)

    def __init__(self, items: dict[Any, Any]) -> None:
        self.items: dict[Any, Any] = items

    def find(self, key: object) -> tuple[Any, bool]:
        """Return the value, and whether there is one.

        Raises:
            EvaluatorPanic: values of this type are never keys.
        """
        try:
            return self.items[map_key(key)], True
        except KeyError:
            return None, False

    def has(self, key: object) -> bool:
        """Return ``key in map``.

        Raises:
            EvaluatorPanic: values of this type are never keys.
        """
        return map_key(key) in self.items

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys in the order in which they were inserted."""
        for key in self.items:
            yield key.value if type(key) is _WrappedKey else key

    def __len__(self) -> int:
        return len(self.items)


class StringMapValue(MapValue):
    """A map that no expression creates, like ``device`` and its parts: all keys are strings."""

    __slots__ = ()

    @override
    def find(self, key: object) -> tuple[Any, bool]:
        if type(key) is str and key in self.items:
            return self.items[key], True
        return None, False

    @override
    def has(self, key: object) -> bool:
        return type(key) is str and key in self.items


class DomainMapValue(StringMapValue):
    """``device.attributes`` or ``device.capacity``: an unknown domain has an empty map.

    Args:
        items: the values of each domain by name.
        unusable: the names without meaning to CEL in each domain.
    """

    __slots__ = ("_unusable",)

    def __init__(self, items: dict[Any, Any], unusable: Mapping[str, frozenset[str]]) -> None:
        super().__init__(items)
        self._unusable = unusable

    @override
    def find(self, key: object) -> tuple[Any, bool]:
        found = self.items.get(key) if type(key) is str else None
        if unusable := self._unusable.get(str(key)):
            return AttributeMapValue(found or {}, unusable), True
        return StringMapValue(found or {}), True


class AttributeMapValue(StringMapValue):
    """The attributes of one domain, some of which have no meaning to CEL: they exist, and cannot be read.

    Args:
        items: the values of the others.
        unusable: the names without meaning.
    """

    __slots__ = ("_unusable",)

    def __init__(self, items: dict[str, Any], unusable: frozenset[str]) -> None:
        super().__init__(items)
        self._unusable = unusable

    @override
    def find(self, key: object) -> tuple[Any, bool]:
        if key in self._unusable:
            raise unusable_attribute(str(key))
        return super().find(key)

    @override
    def __iter__(self) -> Iterator[Any]:
        yield from self.items
        yield from sorted(self._unusable)

    @override
    def __len__(self) -> int:
        return len(self.items) + len(self._unusable)


class LazyMapValue(StringMapValue):
    """A map whose values are computed on first access.

    Args:
        computations: for each key the function that computes its value; an EvaluationFailure is cached like a value.
    """

    __slots__ = ("_computations",)

    def __init__(self, computations: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__({})
        self._computations = computations

    @override
    def find(self, key: object) -> tuple[Any, bool]:
        if type(key) is not str or key not in self._computations:
            return None, False
        if key not in self.items:
            try:
                self.items[key] = self._computations[key]()
            except EvaluationFailure as failure:
                self.items[key] = failure
        value = self.items[key]
        if type(value) is EvaluationFailure:
            raise EvaluationFailure(value.message, value.kind, key=value.key)
        return value, True

    @override
    def has(self, key: object) -> bool:
        return type(key) is str and key in self._computations

    @override
    def __iter__(self) -> Iterator[Any]:
        return iter(self._computations)

    @override
    def __len__(self) -> int:
        return len(self._computations)


MAPS: Final = frozenset({MapValue, StringMapValue, DomainMapValue, AttributeMapValue, LazyMapValue})
"""The classes of maps."""


class _WrappedKey(Struct, frozen=True, eq=False):
    """A key that Python would confuse with another key or would not accept."""

    value: object
    identity: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WrappedKey) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


_TRUE: Final = _WrappedKey(value=True, identity="true")
_FALSE: Final = _WrappedKey(value=False, identity="false")
_PLAIN_KEYS: Final = frozenset({str, int, Uint, float, type(None)})
_NO_KEYS: Final = frozenset({"bytes", "kubernetes.Semver", "kubernetes.NamedFormat"})


def map_key(value: Any) -> Any:
    """Return the key for a value in ``MapValue.items``.

    Raises:
        EvaluatorPanic: values of this type are never keys.
    """
    kind = type(value)
    if kind in _PLAIN_KEYS:
        return value
    if kind is bool:
        return _TRUE if value else _FALSE
    if type_name(value) in _NO_KEYS:
        raise EvaluatorPanic(f"hash of unhashable type {type_name(value)}")
    if kind is Duration or kind is Timestamp:
        return _WrappedKey(value, (kind, value.nanoseconds))
    return _WrappedKey(value, id(value))


RUNTIME_TYPES: Final[dict[type, Type]] = {
    bool: types.BOOL, int: types.INT, Uint: types.UINT, float: types.DOUBLE, str: types.STRING, bytes: types.BYTES,
    type(None): types.NULL, list: types.list_of(types.DYN), MapValue: types.map_of(types.DYN, types.DYN),
    StringMapValue: types.map_of(types.DYN, types.DYN), DomainMapValue: types.map_of(types.DYN, types.DYN),
    LazyMapValue: types.map_of(types.DYN, types.DYN),
    TypeValue: types.type_of_type(types.DYN), OptionalValue: types.optional_of(types.DYN), Duration: types.DURATION,
    Timestamp: types.TIMESTAMP, Quantity: types.QUANTITY, ComputedQuantity: types.QUANTITY,
}  # fmt: skip
"""The type of a value by its Python class; modules that define more classes of values add theirs."""


def type_name(value: object) -> str:
    """Return the name of a value's type at run time."""
    return RUNTIME_TYPES[type(value)].name


def size_of(value: Any) -> int:
    """Return the size of a value for costs: its length; 1 if it has none."""
    kind = type(value)
    if kind is str or kind is list or kind is bytes or kind in MAPS:
        return len(value)
    if kind is OptionalValue and value.present:
        return size_of(value.value)
    size = getattr(value, "cost_size", None)
    return 1 if size is None else int(size)


RUNTIME_LIMIT: Final = 1_000_000
"""Kubernetes' limit of the actual cost of one evaluation (CELSelectorExpressionMaxCost, resource.k8s.io/v1)."""
# Limits operations for which Kubernetes charges too little, like comparing nested lists, to about one second of work.
_WORK_LIMIT: Final = 3_000_000
Frame: TypeAlias = list[Any]
"""State of one evaluation: the cost so far, the work so far, the input (a device, or variables by name), and then the
value of each macro variable."""
Meter: TypeAlias = Callable[[int], None]
"""Receives the cost of each evaluation, in Kubernetes' units: up to about a million for one evaluation."""
COST: Final = 0
WORK: Final = 1
INPUT: Final = 2
VARIABLES: Final = 3


def charge_work(frame: Frame, work: int) -> None:
    """Count work that the cost does not cover.

    Raises:
        CostLimitExceeded: the limit is exceeded.
    """
    frame[WORK] += work
    if frame[WORK] > _WORK_LIMIT:
        raise CostLimitExceeded


def check_cost(frame: Frame) -> None:
    """Stop an evaluation whose cost exceeds the limit.

    Raises:
        CostLimitExceeded: the limit is exceeded.
    """
    if frame[COST] > RUNTIME_LIMIT:
        raise CostLimitExceeded


_INT32: Final = range(-(2**31), 2**31)
_UINT32: Final = range(2**32)


class MessageField(Struct, frozen=True):
    """A field of a message.

    Attributes:
        type: the declared type.
        default: the value if none is given.
        range: the numbers that fit; None if all of the type do.
    """

    type: Type
    default: Any
    range: range | None = None

    def accept(self, name: str, value: Any) -> Any:
        """Return the value of the field.

        Raises:
            EvaluationFailure: the value is of another type, or does not fit.
        """
        if type(value) is not type(self.default):
            raise EvaluationFailure(
                f"field type conversion error for {name}: {type_name(value)} is not {self.type}", "conversion"
            )
        # for a value that is not exactly an int, Python would iterate over the whole range
        if self.range is not None and int(value) not in self.range:
            raise EvaluationFailure(f"field type conversion error for {name}: integer overflow", "conversion")
        return value


class MessageType(Struct, frozen=True):
    """A type of messages.

    Attributes:
        type: the type in expressions.
        fields: by name.
        build: creates the value from the values of the fields, in their order.
    """

    type: Type
    fields: Mapping[str, MessageField]
    build: Callable[..., Any]

    def make(self, given: Mapping[str, Any]) -> Any:
        """Return the value of a message with the ``given`` values by field name.

        Raises:
            EvaluationFailure: a value does not fit its field.
        """
        accepted = {name: self.fields[name].accept(name, value) for name, value in given.items()}
        return self.build(*(accepted.get(name, field.default) for name, field in self.fields.items()))


def _duration(seconds: int, nanos: int) -> Duration:
    return Duration(min(max(seconds * SECOND + nanos, INT_MIN), INT_MAX))


def _timestamp(seconds: int, nanos: int) -> Timestamp:
    return Timestamp(seconds * SECOND + nanos)


def _single(value: float) -> float:
    """Return the number rounded to a 32-bit float."""
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(rounded)


def _time(of: Type, build: Callable[[int, int], Any]) -> MessageType:
    return MessageType(of, {"seconds": MessageField(types.INT, 0), "nanos": MessageField(types.INT, 0, _INT32)}, build)


def _wrapper(
    of: Type, default: Any, fits: range | None = None, build: Callable[[Any], Any] = lambda value: value
) -> MessageType:
    return MessageType(Type(of.kind, of.name, nullable=True), {"value": MessageField(of, default, fits)}, build)


MESSAGES: Final[Mapping[str, MessageType]] = {
    "google.protobuf.Duration": _time(types.DURATION, _duration),
    "google.protobuf.Timestamp": _time(types.TIMESTAMP, _timestamp),
    "google.protobuf.BoolValue": _wrapper(types.BOOL, default=False),
    "google.protobuf.BytesValue": _wrapper(types.BYTES, b""),
    "google.protobuf.DoubleValue": _wrapper(types.DOUBLE, 0.0),
    "google.protobuf.FloatValue": _wrapper(types.DOUBLE, 0.0, build=_single),
    "google.protobuf.Int32Value": _wrapper(types.INT, 0, _INT32),
    "google.protobuf.Int64Value": _wrapper(types.INT, 0),
    "google.protobuf.StringValue": _wrapper(types.STRING, ""),
    "google.protobuf.UInt32Value": _wrapper(types.UINT, Uint(0), _UINT32),
    "google.protobuf.UInt64Value": _wrapper(types.UINT, Uint(0)),
}
"""Messages by name."""
OTHER_NAMES: Final = frozenset(
    f"google.protobuf.{name}" for name in ("Any", "Empty", "ListValue", "NullValue.NULL_VALUE", "Struct", "Value")
)
"""Other names that Kubernetes knows."""
