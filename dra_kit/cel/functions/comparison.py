"""Order: ``< <= > >=``, within a type and between types of numbers; the declarations of ``==``, ``&&`` and others."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from dra_kit.cel.declarations import Library
from dra_kit.cel.failure import Failure, no_such_overload
from dra_kit.cel.values import Duration, Timestamp, Uint

LIBRARY: Final = Library()

_NUMBERS: Final = frozenset({int, Uint, float})
_ORDERED: Final = frozenset({str, bytes, bool})


def compare(left: Any, right: Any) -> int:
    """Return -1, 0 or 1.

    Raises:
        Failure: the two have no order.
    """
    one, other = type(left), type(right)
    if one in _NUMBERS and other in _NUMBERS:
        if one is float or other is float:
            left, right = float(left), float(right)
            if left != left or right != right:  # noqa: PLR0124 - NaN
                raise Failure("NaN values cannot be ordered", "arithmetic")
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
}.items():
    LIBRARY.declare(_identifier, _signature, None)
