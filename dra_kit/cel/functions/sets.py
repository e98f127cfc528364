"""Lists taken for sets."""

from __future__ import annotations

from typing import Any, Final

from dra_kit.cel.cost.meter import Frame
from dra_kit.cel.declarations import Library
from dra_kit.cel.equality import holds

LIBRARY: Final = Library()


@LIBRARY.function("list_sets_contains_list", "sets.contains(list(T), list(T)) -> bool", metered=True)
def _contains(frame: Frame, values: list[Any], others: list[Any]) -> bool:
    return all(holds(frame, other, values) for other in others)


@LIBRARY.function("list_sets_equivalent_list", "sets.equivalent(list(T), list(T)) -> bool", metered=True)
def _equivalent(frame: Frame, values: list[Any], others: list[Any]) -> bool:
    return all(holds(frame, other, values) for other in others) and all(holds(frame, value, others) for value in values)


@LIBRARY.function("list_sets_intersects_list", "sets.intersects(list(T), list(T)) -> bool", metered=True)
def _intersects(frame: Frame, values: list[Any], others: list[Any]) -> bool:
    return any(holds(frame, value, others) for value in values)
