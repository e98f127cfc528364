"""Lists: Kubernetes' library and cel-go's extension, version 3."""

from __future__ import annotations

import itertools
from typing import Any, Final

from dra_kit.cel.cost.meter import Frame, check_cost, spend
from dra_kit.cel.declarations import Library
from dra_kit.cel.equality import equal, holds
from dra_kit.cel.failure import Failure, no_such_overload
from dra_kit.cel.functions.arithmetic import add
from dra_kit.cel.functions.comparison import compare, has_order
from dra_kit.cel.values import Duration, Uint

LIBRARY: Final = Library()

COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_ZEROS: Final = {"int": 0, "uint": Uint(0), "double": 0.0, "duration": Duration(0)}
# No evaluation can afford a longer one; Kubernetes would build it before it notices that.
_MAX_RANGE: Final = 1_000_000


def _is_sorted(frame: Frame, values: list[Any]) -> bool:
    spend(frame, len(values))
    for value in values:
        if not has_order(value):
            raise no_such_overload()
    for one, other in itertools.pairwise(values):
        try:
            if compare(one, other) > 0:
                return False
        except Failure:
            continue
    return True


def _extreme(name: str, sign: int) -> Any:
    def compute(frame: Frame, values: list[Any]) -> Any:
        spend(frame, len(values))
        if not values:
            raise Failure(f"{name} called on empty list")
        for value in values:
            if not has_order(value):
                raise no_such_overload()
        best = values[0]
        for value in values[1:]:
            try:
                if compare(value, best) == sign:
                    best = value
            except Failure:
                continue
        return best

    return compute


def _sum(zero: Any) -> Any:
    def compute(frame: Frame, values: list[Any]) -> Any:
        total = zero
        spend(frame, len(values))
        for value in values:
            total = add(frame, total, value)
        return total

    return compute


for _type in COMPARABLE:
    LIBRARY.method(f"list_{_type}_is_sorted_bool", f"isSorted(list({_type})) -> bool", metered=True)(_is_sorted)
    LIBRARY.method(f"list_{_type}_max_{_type}", f"max(list({_type})) -> {_type}", metered=True)(_extreme("max", 1))
    LIBRARY.method(f"list_{_type}_min_{_type}", f"min(list({_type})) -> {_type}", metered=True)(_extreme("min", -1))
for _type, _zero in _ZEROS.items():
    LIBRARY.method(f"list_{_type}_sum_{_type}", f"sum(list({_type})) -> {_type}", metered=True)(_sum(_zero))


def _position(frame: Frame, values: list[Any], item: Any, positions: range) -> int:
    spend(frame, len(values))
    for position in positions:
        try:
            if equal(frame, values[position], item):
                return position
        except Failure:
            continue
    return -1


@LIBRARY.method("list_a_index_of_int", "indexOf(list(A), A) -> int", metered=True)
def _index_of(frame: Frame, values: list[Any], item: Any) -> int:
    return _position(frame, values, item, range(len(values)))


@LIBRARY.method("list_a_last_index_of_int", "lastIndexOf(list(A), A) -> int", metered=True)
def _last_index_of(frame: Frame, values: list[Any], item: Any) -> int:
    return _position(frame, values, item, range(len(values) - 1, -1, -1))


@LIBRARY.method("list_includes_dyn_dyn", "includes(dyn, dyn) -> bool", metered=True)
def _includes(frame: Frame, values: Any, item: Any) -> bool:
    candidates = values if type(values) is list else [values]
    return _position(frame, candidates, item, range(len(candidates))) >= 0


@LIBRARY.method("list_slice", "slice(list(T), int, int) -> list(T)", metered=True)
def _slice(frame: Frame, values: list[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise Failure(f"cannot slice({start}, {end}), negative indexes not supported", "index")
    if start > end:
        raise Failure(f"cannot slice({start}, {end}), start index must be less than or equal to end index", "index")
    if len(values) < end:
        raise Failure(f"cannot slice({start}, {end}), list is length {len(values)}", "index")
    spend(frame, end - start)
    return values[start:end]


@LIBRARY.method("list_flatten_int", "flatten(list(dyn), int) -> list(dyn)", metered=True)
@LIBRARY.method("list_flatten", "flatten(list(list(T))) -> list(T)", metered=True)
def _flatten(frame: Frame, values: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise Failure("level must be non-negative")
    made: list[Any] = []
    for value in values:
        if type(value) is list and depth > 0:
            made += _flatten(frame, value, depth - 1)
        else:
            made.append(value)
    spend(frame, len(made) + len(values))
    return made


@LIBRARY.function("lists_range", "lists.range(int) -> list(int)", metered=True)
def _range(frame: Frame, count: int) -> list[int]:
    if count < 0:
        raise Failure(f"lists.range: size must be non-negative, got {count}")
    if count > _MAX_RANGE:
        frame[0] += count
        check_cost(frame)
    return list(range(count))


@LIBRARY.method("list_reverse", "reverse(list(T)) -> list(T)")
def _reverse(values: list[Any]) -> list[Any]:
    return values[::-1]


@LIBRARY.method("list_distinct", "distinct(list(T)) -> list(T)", metered=True)
def _distinct(frame: Frame, values: list[Any]) -> list[Any]:
    made: list[Any] = []
    for value in values:
        if not holds(frame, value, made):
            made.append(value)
    return made
