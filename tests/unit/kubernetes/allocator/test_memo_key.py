"""Each part of what outcomes are remembered by is needed: without it, some pod gets what another one got.

The parts are found in the source: the items of the tuples that a key is made of. One that no case needs fails a test,
so that none is there in vain, and none can be lost unseen.
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
from dra_kit.kubernetes.allocator.selectors import SliceLikeness
from dra_kit.kubernetes.allocator.state import DeviceUsage
from dra_kit.kubernetes.resource.matching import Node
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
"""What makes keys."""

NOT_COUNTED: Final = "self._changes[device.driver, device.pool] += 1", ""

MORE: Final[dict[str, tuple[Callable[..., Any], str, str]]] = {
    "reach of an invalid selector": (memo.PodShape.key, "pools.reach is None", "False"),
    "each pool": (memo.PodShape.key, "pools.ordered", "pools.ordered[:1]"),
    "changes of what is held": (memo._PoolUsages.number, "stock.changes != changes", "stock.changes < 0"),
    "a device is taken": (DeviceUsage.add, *NOT_COUNTED),
    "a device is given back": (DeviceUsage.remove, *NOT_COUNTED),
    "held as a whole": (DeviceUsage.held, "device in self._exclusive", "False"),
    "held in shares": (DeviceUsage.held, "device in self._shares", "False"),
    "unknown reads": (_reads, "return None", "continue"),
    "driver that an expression reads": (AttributeReads._of_device, "return (likeness", "return (likeness[1:]"),
    "attributes that any expression stumbles over": (
        AttributeReads._of_device,
        "device.has_plain_attributes",
        "True",
    ),
    "usual devices by their forms": (traits_of, "slice_.forms", "len(slice_)"),
    "driver of usual devices": (SliceLikeness.of, "repeat(driver)", "repeat(None)"),
    "attribute of usual devices": (SliceLikeness.of, "self.names(driver)", "()"),
    "attribute of usual devices that must match": (
        SliceLikeness.__init__,
        "for attribute in attributes",
        "for attribute in ()",
    ),
    "attribute that must match": (AttributeReads.__init__, "item.match_attribute or", ""),
    "attribute that must differ": (AttributeReads.__init__, "or item.distinct_attribute", ""),
}  # fmt: skip
"""What else can be taken from them: a text of the source, and what it becomes."""

MUTANTS: Final[dict[str, tuple[Callable[..., Any], CodeType]]] = {
    **{name: (function, code) for function in OF_KEYS for name, code in without_each_item(function)},
    **{name: (function, with_text(function, text, instead)) for name, (function, text, instead) in MORE.items()},
}

CASES: Final = [*OF_NODES, *OF_PODS]


def outcome(attempt: AllocationAttempt, node: Node) -> object:
    """What came of an attempt, with share ids left out; an error must be met by the attempt itself."""
    try:
        found = attempt.on(node)
    except AllocationError as error:
        return str(error)
    if found is None:
        return None
    try:
        shown = [item.to_json() for item in found]
    except AllocationError as error:
        return f"too late: {error}"
    for item in shown:
        for one in item["devices"]["results"]:
            one.pop("shareID", None)
    return shown


def outcomes(case: Case, *, knows: bool) -> list[object]:
    """Those of both attempts, the second of which may know of the first."""
    world, (first, second) = world_of(case)
    allocator = Allocator(world, case.gates)
    found = [outcome(allocator.attempt(case.halves[0].claims), first)]
    if case.between is not None:
        case.between(world)
        second = first
    if not knows:
        allocator = Allocator(world, case.gates)
    return [*found, outcome(allocator.attempt(case.halves[1].claims), second)]


def test_each_part_has_a_case() -> None:
    assert sorted({part for case in CASES for part in case.parts}) == sorted(MUTANTS)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.parts[0]) for case in CASES])
def test_the_outcomes_of_a_case_are_the_same_where_usual_devices_are_no_models(case: Case) -> None:
    assert outcomes(case._replace(lazy=True), knows=True) == outcomes(case._replace(lazy=False), knows=False)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.parts[0]) for case in CASES])
def test_the_outcomes_of_a_case_are_found_one_by_one(case: Case) -> None:
    expected = outcomes(case, knows=False)

    assert outcomes(case, knows=True) == expected
    assert expected[0] != expected[1]


@pytest.mark.parametrize(("case", "part"), [pytest.param(case, part, id=part) for case in CASES for part in case.parts])
def test_without_a_part_an_outcome_is_another(case: Case, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = outcomes(case, knows=False)
    function, code = MUTANTS[part]

    monkeypatch.setattr(function, "__code__", code)

    assert outcomes(case, knows=True) != expected
