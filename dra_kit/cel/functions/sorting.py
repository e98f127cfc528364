"""``sort`` and what ``sortBy`` is expanded to."""

from __future__ import annotations

import functools
from typing import Any, Final

from dra_kit.cel.cost.meter import Frame, spend
from dra_kit.cel.declarations import Library
from dra_kit.cel.failure import Failure, no_such_overload
from dra_kit.cel.functions.comparison import compare, has_order
from dra_kit.cel.functions.lists import COMPARABLE
from dra_kit.cel.types import parse_type

LIBRARY: Final = Library()


def _sort(frame: Frame, values: Any, keys: Any) -> list[Any]:
    if type(values) is not list or type(keys) is not list:
        raise no_such_overload()
    if len(values) != len(keys):
        raise Failure(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got "
            f"{len(values)} and {len(keys)} elements respectively"
        )
    if not keys:
        return []
    if not has_order(keys[0]):
        raise Failure("list elements must be comparable")
    if any(type(key) is not type(keys[0]) for key in keys):
        raise Failure("list elements must have the same type")
    spend(frame, len(keys) * len(keys).bit_length())
    pairs = sorted(zip(keys, values, strict=True), key=functools.cmp_to_key(_order))
    return [value for _, value in pairs]


def _order(one: tuple[Any, Any], other: tuple[Any, Any]) -> int:
    try:
        return compare(one[0], other[0])
    except Failure:  # NaN is sorted nowhere
        return 0


def _sort_plain(frame: Frame, values: Any) -> list[Any]:
    return _sort(frame, values, values)


for _type in COMPARABLE:
    _name = parse_type(_type).name
    LIBRARY.method(f"list_{_name}_sort", f"sort(list({_type})) -> list({_type})", metered=True)(_sort_plain)
    LIBRARY.method(
        f"list_{_name}_sortByAssociatedKeys",
        f"@sortByAssociatedKeys(list(T), list({_type})) -> list(T)",
        metered=True,
    )(_sort)
