"""Values that may be absent."""

from __future__ import annotations

from typing import Any, Final

from dra_kit.cel.declarations import Library
from dra_kit.cel.failure import Failure
from dra_kit.cel.values import NONE, Duration, Map, Optional, Timestamp

LIBRARY: Final = Library()


def _is_zero(value: Any) -> bool:
    if isinstance(value, Optional):
        return not value.present
    if isinstance(value, (Duration, Timestamp)):
        return value.nanoseconds == (0 if isinstance(value, Duration) else -62_135_596_800_000_000_000)
    if isinstance(value, Map):
        return not len(value)
    return value is None or (isinstance(value, (bool, int, float, str, bytes, list)) and not value)


@LIBRARY.function("optional_of", "optional.of(V) -> optional(V)")
def _of(value: Any) -> Optional:
    return Optional(value)


@LIBRARY.function("optional_ofNonZeroValue", "optional.ofNonZeroValue(V) -> optional(V)")
def _of_non_zero(value: Any) -> Optional:
    return NONE if _is_zero(value) else Optional(value)


@LIBRARY.function("optional_none", "optional.none() -> optional(V)")
def _none() -> Optional:
    return NONE


@LIBRARY.method("optional_value", "value(optional(V)) -> V")
def _value(optional: Optional) -> Any:
    if not optional.present:
        raise Failure("optional.none() dereference")
    return optional.value


@LIBRARY.method("optional_hasValue", "hasValue(optional(V)) -> bool")
def _has_value(optional: Optional) -> bool:
    return optional.present


LIBRARY.declare("optional_or_optional", "or(optional(V), optional(V)) -> optional(V)", None, member=True)
LIBRARY.declare("optional_orValue_value", "orValue(optional(V), V) -> V", None, member=True)


@LIBRARY.method("list_first", "first(list(V)) -> optional(V)")
def _first(values: list[Any]) -> Optional:
    return Optional(values[0]) if values else NONE


@LIBRARY.method("list_last", "last(list(V)) -> optional(V)")
def _last(values: list[Any]) -> Optional:
    return Optional(values[-1]) if values else NONE


@LIBRARY.function("optional_unwrap", "optional.unwrap(list(optional(V))) -> list(V)")
@LIBRARY.method("optional_unwrapOpt", "unwrapOpt(list(optional(V))) -> list(V)")
def _unwrap(values: list[Any]) -> list[Any]:
    for value in values:
        if type(value) is not Optional:
            raise Failure("a value of the list is not optional")
    return [value.value for value in values if value.present]
