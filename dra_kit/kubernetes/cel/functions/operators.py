"""Operators: arithmetic, equality, order, membership, ``size``, ``type`` and ``dyn``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from dra_kit.kubernetes.cel.failures import EvaluationFailure, no_such_overload
from dra_kit.kubernetes.cel.functions.conversions import duration_in_range, timestamp_in_range
from dra_kit.kubernetes.cel.types import Library
from dra_kit.kubernetes.cel.values import (
    INT_MIN,
    MAPS,
    ComputedQuantity,
    Duration,
    Frame,
    MapValue,
    OptionalValue,
    Timestamp,
    TypeValue,
    Uint,
    charge_work,
    fit_int,
    fit_uint,
    overflow,
    type_name,
)
from dra_kit.kubernetes.values.quantity import Quantity

LIBRARY: Final = Library()
_Table: TypeAlias = dict[tuple[type, type], Callable[[Any, Any], Any]]


def _quotient(left: int, right: int) -> int:
    """Return the quotient, rounded towards zero."""
    if right == 0:
        raise EvaluationFailure("division by zero", "arithmetic")
    return left // right if (left < 0) == (right < 0) else -(-left // right)


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationFailure("modulus by zero", "arithmetic")
    if left == INT_MIN and right == -1:
        raise overflow("integer")
    return left - right * _quotient(left, right)


def _double_quotient(left: float, right: float) -> float:
    try:
        return left / right
    except ZeroDivisionError:
        if left == 0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)


_ADD: Final[_Table] = {
    (int, int): lambda a, b: fit_int(a + b),
    (Uint, Uint): lambda a, b: fit_uint(int(a) + int(b)),
    (float, float): lambda a, b: a + b,
    (str, str): lambda a, b: a + b,
    (bytes, bytes): lambda a, b: a + b,
    (Duration, Duration): lambda a, b: duration_in_range(a.nanoseconds + b.nanoseconds),
    (Duration, Timestamp): lambda a, b: timestamp_in_range(a.nanoseconds + b.nanoseconds, b.offset),
    (Timestamp, Duration): lambda a, b: timestamp_in_range(a.nanoseconds + b.nanoseconds, a.offset),
}
_SUBTRACT: Final[_Table] = {
    (int, int): lambda a, b: fit_int(a - b),
    (Uint, Uint): lambda a, b: fit_uint(int(a) - int(b)),
    (float, float): lambda a, b: a - b,
    (Duration, Duration): lambda a, b: duration_in_range(a.nanoseconds - b.nanoseconds),
    (Timestamp, Duration): lambda a, b: timestamp_in_range(a.nanoseconds - b.nanoseconds, a.offset),
    (Timestamp, Timestamp): lambda a, b: duration_in_range(a.nanoseconds - b.nanoseconds),
}
_MULTIPLY: Final[_Table] = {
    (int, int): lambda a, b: fit_int(a * b),
    (Uint, Uint): lambda a, b: fit_uint(int(a) * int(b)),
    (float, float): lambda a, b: a * b,
}
_DIVIDE: Final[_Table] = {
    (int, int): lambda a, b: fit_int(_quotient(a, b)),
    (Uint, Uint): lambda a, b: Uint(_quotient(int(a), int(b))),
    (float, float): _double_quotient,
}
_MODULO: Final[_Table] = {
    (int, int): _remainder,
    (Uint, Uint): lambda a, b: Uint(_remainder(int(a), int(b))),
}


def _dispatcher(table: _Table) -> Callable[[Any, Any], Any]:
    def compute(left: Any, right: Any) -> Any:
        operation = table.get((type(left), type(right)))
        if operation is None:
            raise no_such_overload()
        return operation(left, right)

    return compute


_add_scalars = _dispatcher(_ADD)


def add(frame: Frame, left: Any, right: Any) -> Any:
    """Return ``left + right``.

    Raises:
        EvaluationFailure: the values cannot be added, or the sum does not fit its type.
    """
    if type(left) is list and type(right) is list:
        charge_work(frame, len(left) + len(right))
        return left + right
    made = _add_scalars(left, right)
    if type(made) is str or type(made) is bytes:
        charge_work(frame, len(made) // 10)
    return made


def _negate(value: Any) -> Any:
    if type(value) is int:
        return fit_int(-value)
    if type(value) is float:
        return -value
    raise no_such_overload("-_")


for _identifier, _types in {
    "add_bytes": "bytes, bytes) -> bytes",
    "add_double": "double, double) -> double",
    "add_duration_duration": "duration, duration) -> duration",
    "add_duration_timestamp": "duration, timestamp) -> timestamp",
    "add_timestamp_duration": "timestamp, duration) -> timestamp",
    "add_int64": "int, int) -> int",
    "add_list": "list(A), list(A)) -> list(A)",
    "add_string": "string, string) -> string",
    "add_uint64": "uint, uint) -> uint",
}.items():
    LIBRARY.function(_identifier, f"_+_({_types}", metered=True)(add)
for _identifier, _types in {
    "subtract_double": "double, double) -> double",
    "subtract_duration_duration": "duration, duration) -> duration",
    "subtract_int64": "int, int) -> int",
    "subtract_timestamp_duration": "timestamp, duration) -> timestamp",
    "subtract_timestamp_timestamp": "timestamp, timestamp) -> duration",
    "subtract_uint64": "uint, uint) -> uint",
}.items():
    LIBRARY.declare(_identifier, f"_-_({_types}", _dispatcher(_SUBTRACT))
for _name, _operator, _table, _numbers in (
    ("multiply", "*", _MULTIPLY, ("double", "int64", "uint64")),
    ("divide", "/", _DIVIDE, ("double", "int64", "uint64")),
    ("modulo", "%", _MODULO, ("int64", "uint64")),
):
    for _number in _numbers:
        _type = _number.removesuffix("64")
        LIBRARY.declare(f"{_name}_{_number}", f"_{_operator}_({_type}, {_type}) -> {_type}", _dispatcher(_table))
LIBRARY.declare("negate_double", "-_(double) -> double", _negate)
LIBRARY.declare("negate_int64", "-_(int) -> int", _negate)
# Comparing two containers costs as much as comparing this many numbers, in addition to their elements.
_CONTAINER_WORK: Final = 10
_NUMBERS: Final = frozenset({int, Uint, float})
_PLAIN: Final = frozenset({str, bytes, bool, TypeValue})


def equal(frame: Frame, left: Any, right: Any) -> bool:
    """Return ``left == right``.

    Raises:
        EvaluationFailure: the left value has a type of Kubernetes (quantity, semver, url, format, ip, cidr), and the
            right value has another type.
        CostLimitExceeded: the values are too large to be compared.
    """
    one, other = type(left), type(right)
    if left is None or right is None:
        return left is right
    if one in _NUMBERS:
        return other in _NUMBERS and numbers_equal(left, right)
    if one in _PLAIN:
        return one is other and bool(left == right)
    if one is list:
        return other is list and _lists_equal(frame, left, right)
    if one in MAPS:
        return other in MAPS and _maps_equal(frame, left, right)
    if one is OptionalValue:
        return other is OptionalValue and _optionals_equal(frame, left, right)
    if one is Duration or one is Timestamp:
        return one is other and bool(left.nanoseconds == right.nanoseconds)
    if other is not (Quantity if one is ComputedQuantity else one):
        raise no_such_overload()
    return bool(left == right)


def numbers_equal(left: float, right: float) -> bool:
    """Return whether two numbers of any type are equal; next to a double, integers lose their precision."""
    if type(left) is float or type(right) is float:
        return float(left) == float(right)
    return left == right


def contains_equal(frame: Frame, element: Any, values: list[Any]) -> bool:
    """Return whether a list has an element that equals ``element``; elements that cannot be compared differ."""
    charge_work(frame, len(values))
    for value in values:
        try:
            if equal(frame, element, value):
                return True
        except EvaluationFailure:
            continue
    return False


def _lists_equal(frame: Frame, left: list[Any], right: list[Any]) -> bool:
    if len(left) != len(right):
        return False
    charge_work(frame, _CONTAINER_WORK + len(left))
    return all(_not_different(frame, one, other) for one, other in zip(left, right, strict=True))


def _maps_equal(frame: Frame, left: MapValue, right: MapValue) -> bool:
    if len(left) != len(right):
        return False
    charge_work(frame, _CONTAINER_WORK + len(left))
    for key in left:
        mine, _ = left.find(key)
        theirs, found = right.find(key)
        if not found or not _not_different(frame, mine, theirs):
            return False
    return True


def _optionals_equal(frame: Frame, left: OptionalValue, right: OptionalValue) -> bool:
    if not left.present or not right.present:
        return left.present is right.present
    return equal(frame, left.value, right.value)


def _not_different(frame: Frame, left: Any, right: Any) -> bool:
    """Return whether values in containers are equal; values that cannot be compared are (Kubernetes 1.37.1)."""
    try:
        return equal(frame, left, right)
    except EvaluationFailure:
        return True


_ORDERED: Final = frozenset({str, bytes, bool})


def compare(left: Any, right: Any) -> int:
    """Return -1, 0 or 1.

    Raises:
        EvaluationFailure: the values have no order.
    """
    one, other = type(left), type(right)
    if one in _NUMBERS and other in _NUMBERS:
        if one is float or other is float:
            left, right = float(left), float(right)
            if left != left or right != right:  # noqa: PLR0124 - NaN
                raise EvaluationFailure("NaN values cannot be ordered", "arithmetic")
    elif one is Duration or one is Timestamp:
        if other is not one:
            raise no_such_overload()
        left, right = left.nanoseconds, right.nanoseconds
    elif one is not other or one not in _ORDERED:
        raise no_such_overload()
    return int(left > right) - int(left < right)


def has_order(value: Any) -> bool:
    """Return whether values of this type can be compared with each other."""
    kind = type(value)
    return kind in _NUMBERS or kind in _ORDERED or kind is Duration or kind is Timestamp


def _comparison(holds: Callable[[int, int], bool]) -> Callable[[Any, Any], bool]:
    def compute(left: Any, right: Any) -> bool:
        return holds(compare(left, right), 0)

    return compute


_SIGNATURES: Final = {
    "bool": "bool, bool", "int64": "int, int", "int64_double": "int, double", "int64_uint64": "int, uint",
    "uint64": "uint, uint", "uint64_double": "uint, double", "uint64_int64": "uint, int", "double": "double, double",
    "double_int64": "double, int", "double_uint64": "double, uint", "string": "string, string",
    "bytes": "bytes, bytes", "timestamp": "timestamp, timestamp", "duration": "duration, duration",
}  # fmt: skip
for _name, _symbol, _holds in (
    ("less", "<", operator.lt),
    ("less_equals", "<=", operator.le),
    ("greater", ">", operator.gt),
    ("greater_equals", ">=", operator.ge),
):
    for _suffix, _types in _SIGNATURES.items():
        LIBRARY.declare(f"{_name}_{_suffix}", f"_{_symbol}_({_types}) -> bool", _comparison(_holds))
for _identifier, _signature in {
    "equals": "_==_(A, A) -> bool",
    "not_equals": "_!=_(A, A) -> bool",
    "logical_not": "!_(bool) -> bool",
    "not_strictly_false": "@not_strictly_false(bool) -> bool",
    "logical_and": "_&&_(bool, bool) -> bool",
    "logical_or": "_||_(bool, bool) -> bool",
    "conditional": "_?_:_(bool, A, A) -> A",
    "index_list": "_[_](list(A), int) -> A",
    "index_map": "_[_](map(A, B), A) -> B",
    "optional_list_index_int": "_[_](optional(list(V)), int) -> optional(V)",
    "optional_map_index_value": "_[_](optional(map(K, V)), K) -> optional(V)",
    "list_optindex_optional_int": "_[?_](list(V), int) -> optional(V)",
    "optional_list_optindex_optional_int": "_[?_](optional(list(V)), int) -> optional(V)",
    "map_optindex_optional_value": "_[?_](map(K, V), K) -> optional(V)",
    "optional_map_optindex_optional_value": "_[?_](optional(map(K, V)), K) -> optional(V)",
    "@mapInsert_map_key_value": "cel.@mapInsert(map(K, V), K, V) -> map(K, V)",
    "@mapInsert_map_map": "cel.@mapInsert(map(K, V), map(K, V)) -> map(K, V)",
}.items():
    LIBRARY.declare(_identifier, _signature, None)
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
        return contains_equal(frame, element, container)
    if isinstance(container, MapValue):
        return container.has(element)
    raise no_such_overload()


for _function in ("@in", "_in_", "in"):
    LIBRARY.function("in_list", f"{_function}(A, list(A)) -> bool", metered=True)(contains)
    LIBRARY.function("in_map", f"{_function}(A, map(A, B)) -> bool", metered=True)(contains)


LIBRARY.functions(
    {
        "type": ("type(A) -> type(A)", lambda value: TypeValue(type_name(value))),
        "to_dyn": ("dyn(A) -> dyn", lambda value: value),
    }
)
