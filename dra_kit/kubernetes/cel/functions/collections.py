"""Functions of lists, sets and optional values; sorting."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Final

from dra_kit.kubernetes.cel.failures import EvaluationFailure, no_such_overload
from dra_kit.kubernetes.cel.functions.operators import add, compare, contains_equal, equal, has_order
from dra_kit.kubernetes.cel.types import Library, parse_type
from dra_kit.kubernetes.cel.values import (
    NONE,
    Duration,
    Frame,
    MapValue,
    OptionalValue,
    Timestamp,
    Uint,
    charge_work,
    check_cost,
)

LIBRARY: Final = Library()
COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_ZEROS: Final = {"int": 0, "uint": Uint(0), "double": 0.0, "duration": Duration(0)}
# A longer list exceeds the cost limit; Kubernetes builds it before it detects that.
_MAX_RANGE: Final = 1_000_000


def _is_sorted(frame: Frame, values: list[Any]) -> bool:
    charge_work(frame, len(values))
    for value in values:
        if not has_order(value):
            raise no_such_overload()
    for one, other in itertools.pairwise(values):
        try:
            if compare(one, other) > 0:
                return False
        except EvaluationFailure:
            continue
    return True


def _extreme(name: str, sign: int) -> Any:
    def compute(frame: Frame, values: list[Any]) -> Any:
        charge_work(frame, len(values))
        if not values:
            raise EvaluationFailure(f"{name} called on empty list")
        for value in values:
            if not has_order(value):
                raise no_such_overload()
        best = values[0]
        for value in values[1:]:
            try:
                if compare(value, best) == sign:
                    best = value
            except EvaluationFailure:
                continue
        return best

    return compute


def _sum(zero: Any) -> Any:
    def compute(frame: Frame, values: list[Any]) -> Any:
        total = zero
        charge_work(frame, len(values))
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
    charge_work(frame, len(values))
    for position in positions:
        try:
            if equal(frame, values[position], item):
                return position
        except EvaluationFailure:
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
        raise EvaluationFailure(f"cannot slice({start}, {end}), negative indexes not supported", "index")
    if start > end:
        raise EvaluationFailure(
            f"cannot slice({start}, {end}), start index must be less than or equal to end index", "index"
        )
    if len(values) < end:
        raise EvaluationFailure(f"cannot slice({start}, {end}), list is length {len(values)}", "index")
    charge_work(frame, end - start)
    return values[start:end]


@LIBRARY.method("list_flatten_int", "flatten(list(dyn), int) -> list(dyn)", metered=True)
@LIBRARY.method("list_flatten", "flatten(list(list(T))) -> list(T)", metered=True)
def _flatten(frame: Frame, values: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise EvaluationFailure("level must be non-negative")
    made: list[Any] = []
    for value in values:
        if type(value) is list and depth > 0:
            made += _flatten(frame, value, depth - 1)
        else:
            made.append(value)
    charge_work(frame, len(made) + len(values))
    return made


@LIBRARY.function("lists_range", "lists.range(int) -> list(int)", metered=True)
def _range(frame: Frame, count: int) -> list[int]:
    if count < 0:
        raise EvaluationFailure(f"lists.range: size must be non-negative, got {count}")
    if count > _MAX_RANGE:
        frame[0] += count
        check_cost(frame)
    return list(range(count))


LIBRARY.declare("list_reverse", "reverse(list(T)) -> list(T)", lambda values: values[::-1], member=True)


@LIBRARY.method("list_distinct", "distinct(list(T)) -> list(T)", metered=True)
def _distinct(frame: Frame, values: list[Any]) -> list[Any]:
    made: list[Any] = []
    for value in values:
        if not contains_equal(frame, value, made):
            made.append(value)
    return made


def _is_zero(value: Any) -> bool:
    if isinstance(value, OptionalValue):
        return not value.present
    if isinstance(value, (Duration, Timestamp)):
        return value.nanoseconds == (0 if isinstance(value, Duration) else -62_135_596_800_000_000_000)
    if isinstance(value, MapValue):
        return not len(value)
    return value is None or (isinstance(value, (bool, int, float, str, bytes, list)) and not value)


LIBRARY.functions({
    "optional_of": ("optional.of(V) -> optional(V)", OptionalValue),
    "optional_ofNonZeroValue": (
        "optional.ofNonZeroValue(V) -> optional(V)", lambda value: NONE if _is_zero(value) else OptionalValue(value)
    ),
    "optional_none": ("optional.none() -> optional(V)", lambda: NONE),
})  # fmt: skip


@LIBRARY.method("optional_value", "value(optional(V)) -> V")
def _value(optional: OptionalValue) -> Any:
    if not optional.present:
        raise EvaluationFailure("optional.none() dereference")
    return optional.value


LIBRARY.declare("optional_hasValue", "hasValue(optional(V)) -> bool", lambda optional: optional.present, member=True)
LIBRARY.declare("optional_or_optional", "or(optional(V), optional(V)) -> optional(V)", None, member=True)
LIBRARY.declare("optional_orValue_value", "orValue(optional(V), V) -> V", None, member=True)


LIBRARY.methods(
    {
        "list_first": ("first(list(V)) -> optional(V)", lambda values: OptionalValue(values[0]) if values else NONE),
        "list_last": ("last(list(V)) -> optional(V)", lambda values: OptionalValue(values[-1]) if values else NONE),
    }
)


@LIBRARY.function("optional_unwrap", "optional.unwrap(list(optional(V))) -> list(V)")
@LIBRARY.method("optional_unwrapOpt", "unwrapOpt(list(optional(V))) -> list(V)")
def _unwrap(values: list[Any]) -> list[Any]:
    for value in values:
        if type(value) is not OptionalValue:
            raise EvaluationFailure("a value of the list is not optional")
    return [value.value for value in values if value.present]


def _sort(frame: Frame, values: Any, keys: Any = None) -> list[Any]:
    keys = values if keys is None else keys
    if type(values) is not list or type(keys) is not list:
        raise no_such_overload()
    if len(values) != len(keys):
        raise EvaluationFailure(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got "
            f"{len(values)} and {len(keys)} elements respectively"
        )
    if not keys:
        return []
    if not has_order(keys[0]):
        raise EvaluationFailure("list elements must be comparable")
    if any(type(key) is not type(keys[0]) for key in keys):
        raise EvaluationFailure("list elements must have the same type")
    charge_work(frame, len(keys) * len(keys).bit_length())
    pairs = sorted(zip(keys, values, strict=True), key=functools.cmp_to_key(_order))
    return [value for _, value in pairs]


def _order(one: tuple[Any, Any], other: tuple[Any, Any]) -> int:
    try:
        return compare(one[0], other[0])
    except EvaluationFailure:  # NaN is sorted nowhere
        return 0


for _type in COMPARABLE:
    _name = parse_type(_type).name
    LIBRARY.method(f"list_{_name}_sort", f"sort(list({_type})) -> list({_type})", metered=True)(_sort)
    LIBRARY.method(
        f"list_{_name}_sortByAssociatedKeys",
        f"@sortByAssociatedKeys(list(T), list({_type})) -> list(T)",
        metered=True,
    )(_sort)


@LIBRARY.function("list_sets_contains_list", "sets.contains(list(T), list(T)) -> bool", metered=True)
def _contains(frame: Frame, values: list[Any], others: list[Any]) -> bool:
    return all(contains_equal(frame, other, values) for other in others)


@LIBRARY.function("list_sets_equivalent_list", "sets.equivalent(list(T), list(T)) -> bool", metered=True)
def _equivalent(frame: Frame, values: list[Any], others: list[Any]) -> bool:
    return _contains(frame, values, others) and _contains(frame, others, values)


@LIBRARY.function("list_sets_intersects_list", "sets.intersects(list(T), list(T)) -> bool", metered=True)
def _intersects(frame: Frame, values: list[Any], others: list[Any]) -> bool:
    return any(contains_equal(frame, value, others) for value in values)
