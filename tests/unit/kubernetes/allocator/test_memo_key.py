"""Each part of a cache key is necessary: without it, a pod gets the outcome of a different pod.

The parts are read from the source: they are the items of the tuples that form a key. A test fails for a part without a
case, so that no part is redundant or lost unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, Final

import pytest

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator import memo
from dra_kit.kubernetes.allocator.allocation import AllocationAttempt, Allocator
from dra_kit.kubernetes.allocator.memo import (
    AttributeReads,
    _choice,
    _exact,
    _policy,
    _reads,
    _taints,
    _traits,
    _value,
    pod_shape,
    traits_of,
)
from dra_kit.kubernetes.allocator.state import DeviceUsage
from dra_kit.kubernetes.resource.matching import Node
from tests.unit.kubernetes.allocator.cluster import without_share_ids
from tests.unit.kubernetes.allocator.memo_case import Case, world_of
from tests.unit.kubernetes.allocator.memo_nodes import OF_NODES
from tests.unit.kubernetes.allocator.memo_pods import OF_PODS
from tests.unit.kubernetes.allocator.mutants import with_text, without_each_item

OF_KEYS: Final[list[Callable[..., Any]]] = [
    memo.PodShape.key,
    memo._PoolUsages.number,
    DeviceUsage.held,
    pod_shape,
    _choice,
    traits_of,
    _traits,
    _taints,
    _policy,
    _exact,
    AttributeReads._of_device,
    _reads,
    _value,
]
"""Functions that build keys."""

NOT_COUNTED: Final = "self._changes[device.driver, device.pool] += 1", ""

MORE: Final[dict[str, tuple[Callable[..., Any], str, str]]] = {
    "reach of an invalid selector": (memo.PodShape.key, "pools.reach is None", "False"),
    "each pool": (memo.PodShape.key, "pools.ordered", "pools.ordered[:1]"),
    "changes of usage": (memo._PoolUsages.number, "known.changes != changes", "known.changes < 0"),
    "device allocated": (DeviceUsage.add, *NOT_COUNTED),
    "device released": (DeviceUsage.remove, *NOT_COUNTED),
    "held exclusively": (DeviceUsage.held, "device in self._exclusive", "False"),
    "held in shares": (DeviceUsage.held, "device in self._shares", "False"),
    "unknown reads": (_reads, "return None", "continue"),
    "driver read by an expression": (AttributeReads._of_device, "return (likeness", "return (likeness[1:]"),
    "attribute that fails every expression": (
        AttributeReads._of_device,
        "device.has_plain_attributes",
        "True",
    ),
    "shapes of plain devices": (traits_of, "slice_.forms", "len(slice_)"),
    "matchAttribute": (AttributeReads.__init__, "item.match_attribute or", ""),
    "distinctAttribute": (AttributeReads.__init__, "or item.distinct_attribute", ""),
}  # fmt: skip
"""Other mutations of these functions: a text of the source and its replacement."""

MUTANTS: Final[dict[str, tuple[Callable[..., Any], CodeType]]] = {
    **{name: (function, code) for function in OF_KEYS for name, code in without_each_item(function)},
    **{name: (function, with_text(function, text, instead)) for name, (function, text, instead) in MORE.items()},
}

CASES: Final = [*OF_NODES, *OF_PODS]


def outcome(attempt: AllocationAttempt, node: Node) -> object:
    """The outcome of an attempt, without share ids; an error must occur in the attempt itself."""
    try:
        found = attempt.on(node)
    except AllocationError as error:
        return str(error)
    if found is None:
        return None
    try:
        return without_share_ids(found)
    except AllocationError as error:
        return f"too late: {error}"


def outcomes(case: Case, *, cached: bool) -> list[object]:
    """The outcomes of both attempts; with ``cached`` they share a cache."""
    world, (first, second) = world_of(case)
    allocator = Allocator(world, case.gates)
    found = [outcome(allocator.attempt(case.halves[0].claims), first)]
    if case.between is not None:
        case.between(world)
        second = first
    if not cached:
        allocator = Allocator(world, case.gates)
    return [*found, outcome(allocator.attempt(case.halves[1].claims), second)]


def test_every_key_part_has_a_case() -> None:
    assert sorted({part for case in CASES for part in case.parts}) == sorted(MUTANTS)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.parts[0]) for case in CASES])
def test_lazy_slices_have_the_same_outcomes(case: Case) -> None:
    assert outcomes(case._replace(lazy=True), cached=True) == outcomes(case._replace(lazy=False), cached=False)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.parts[0]) for case in CASES])
def test_cache_separates_the_attempts_of_a_case(case: Case) -> None:
    expected = outcomes(case, cached=False)

    assert outcomes(case, cached=True) == expected
    assert expected[0] != expected[1]


@pytest.mark.parametrize(("case", "part"), [pytest.param(case, part, id=part) for case in CASES for part in case.parts])
def test_outcome_is_wrong_without_a_key_part(case: Case, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = outcomes(case, cached=False)
    function, code = MUTANTS[part]

    monkeypatch.setattr(function, "__code__", code)

    assert outcomes(case, cached=True) != expected
