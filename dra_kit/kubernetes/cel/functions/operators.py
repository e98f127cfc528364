"""``+ - * / %`` and the minus sign: integers of 64 bits do not wrap around."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from dra_kit.cel.cost.meter import Frame, spend
from dra_kit.cel.declarations import Library
from dra_kit.cel.failure import Failure, no_such_overload
from dra_kit.cel.functions.time import duration_in_range, timestamp_in_range
from dra_kit.cel.values import INT_MAX, INT_MIN, UINT_MAX, Duration, Timestamp, Uint

LIBRARY: Final = Library()

_Table: TypeAlias = dict[tuple[type, type], Callable[[Any, Any], Any]]


def overflow(what: str = "integer") -> Failure:
    """Return the failure: a result does not fit its type."""
    return Failure(f"{what} overflow", "arithmetic")


def _int(number: int) -> int:
    if INT_MIN <= number <= INT_MAX:
        return number
    raise overflow()


def _uint(number: int) -> Uint:
    if 0 <= number <= UINT_MAX:
        return Uint(number)
    raise overflow("unsigned integer")


def _quotient(left: int, right: int) -> int:
    """Return the quotient, rounded towards zero as processors do it."""
    if right == 0:
        raise Failure("division by zero", "arithmetic")
    return left // right if (left < 0) == (right < 0) else -(-left // right)


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise Failure("modulus by zero", "arithmetic")
    if left == INT_MIN and right == -1:
        raise overflow()
    return left - right * _quotient(left, right)


def _double_quotient(left: float, right: float) -> float:
    try:
        return left / right
    except ZeroDivisionError:
        if left == 0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)


_ADD: Final[_Table] = {
    (int, int): lambda a, b: _int(a + b),
    (Uint, Uint): lambda a, b: _uint(int(a) + int(b)),
    (float, float): lambda a, b: a + b,
    (str, str): lambda a, b: a + b,
    (bytes, bytes): lambda a, b: a + b,
    (Duration, Duration): lambda a, b: duration_in_range(a.nanoseconds + b.nanoseconds),
    (Duration, Timestamp): lambda a, b: timestamp_in_range(a.nanoseconds + b.nanoseconds, b.offset),
    (Timestamp, Duration): lambda a, b: timestamp_in_range(a.nanoseconds + b.nanoseconds, a.offset),
}
_SUBTRACT: Final[_Table] = {
    (int, int): lambda a, b: _int(a - b),
    (Uint, Uint): lambda a, b: _uint(int(a) - int(b)),
    (float, float): lambda a, b: a - b,
    (Duration, Duration): lambda a, b: duration_in_range(a.nanoseconds - b.nanoseconds),
    (Timestamp, Duration): lambda a, b: timestamp_in_range(a.nanoseconds - b.nanoseconds, a.offset),
    (Timestamp, Timestamp): lambda a, b: duration_in_range(a.nanoseconds - b.nanoseconds),
}
_MULTIPLY: Final[_Table] = {
    (int, int): lambda a, b: _int(a * b),
    (Uint, Uint): lambda a, b: _uint(int(a) * int(b)),
    (float, float): lambda a, b: a * b,
}
_DIVIDE: Final[_Table] = {
    (int, int): lambda a, b: _int(_quotient(a, b)),
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
        Failure: there is no sum, or it does not fit its type.
    """
    if type(left) is list and type(right) is list:
        spend(frame, len(left) + len(right))
        return left + right
    made = _add_scalars(left, right)
    if type(made) is str or type(made) is bytes:
        spend(frame, len(made) // 10)
    return made


def _negate(value: Any) -> Any:
    if type(value) is int:
        return _int(-value)
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
