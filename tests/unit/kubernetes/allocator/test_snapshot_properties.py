"""An updated snapshot gives the same results as a new one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.devices import DeviceID
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.state import AllocatorState, DeviceUsage
from dra_kit.kubernetes.release import DEFAULT, Release
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult
from dra_kit.kubernetes.values.quantity import Quantity
from tests.unit.kubernetes.allocator.cluster import (
    Document,
    claim,
    counters,
    device,
    device_class,
    drawing,
    names,
    request,
    slice_of,
    zones,
)

DEVICE = DeviceID("oven", "p", "a")
NODES = [Node("node-1"), Node("node-2", {"zone": "a"}), Node("node-2", {"zone": "b"})]
PODS = [[claim(request())], [claim(request("r", 2)), claim(request("s"))], [claim(request("r", None))]]
SCOPES: list[Document] = [
    {"nodeName": "node-1"},
    {"nodeName": "node-2"},
    {"allNodes": True},
    {"nodeSelector": zones("a")},
]


@st.composite
def slices(draw: st.DrawFn) -> Document:
    pool = {
        "name": draw(st.sampled_from(["pool-a", "pool-b"])),
        "generation": draw(st.integers(1, 2)),
        "resourceSliceCount": draw(st.integers(1, 2)),
    }
    content: dict[str, Any]
    if draw(st.booleans()):
        content = counters(1)
    else:
        content = {
            "devices": [
                device(name, **(drawing(1) if draw(st.booleans()) else {"consumesCounters": []}))
                for name in draw(st.lists(st.sampled_from("abcd"), max_size=3))
            ]
        }
    scope = draw(st.sampled_from(SCOPES))
    return slice_of(name=draw(st.sampled_from(["slice-1", "slice-2", "slice-3"])), pool=pool, **content, **scope)


def answers(world: AllocatorState, gates: AllocatorRules) -> list[object]:
    """Return the allocation or the error of each pod on each node."""
    found: list[object] = []
    allocator = Allocator(world, gates)
    for pod in PODS:
        for node in NODES:
            try:
                found.append(names(allocator.allocate(node, pod)))
            except AllocationError as error:
                found.append(error.kind)
    return found


@given(
    st.lists(st.tuples(st.lists(slices(), max_size=2), st.sets(st.sampled_from(["slice-1", "slice-2"]))), max_size=5),
    st.sampled_from(
        [
            AllocatorRules.of(Release.parse("1.34")),
            AllocatorRules(partitionable_devices=True, version=DEFAULT),
            AllocatorRules.of(Release.parse("1.37")),
            AllocatorRules.of(Release.parse("1.38")),
        ]
    ),
)
def test_incremental_state_equals_new_state(
    publications: list[tuple[list[Document], set[str]]], gates: AllocatorRules
) -> None:
    classes = [device_class()]
    kept = AllocatorState(classes=classes, version=DEFAULT)
    listed: list[Document] = []
    for new, removed in publications:
        gone = removed | {one["metadata"]["name"] for one in new}
        listed = [one for one in listed if one["metadata"]["name"] not in gone] + new
        kept.publish(new, remove=removed)

        assert answers(kept, gates) == answers(AllocatorState(slices=listed, classes=classes, version=DEFAULT), gates)


@pytest.mark.parametrize(
    ("version", "equal"),
    [("1.37", True), ("1.38", False)],  # by 1.38, both names of one share stand for one amount
)
def test_usage_is_equal_if_equally_much_is_consumed(version: str, *, equal: bool) -> None:
    rules = AllocatorRules.of(Release.parse(version))

    def share(number: int, **amounts: str) -> DeviceRequestAllocationResult:
        found = {name.replace("_", "/"): Quantity(amount) for name, amount in amounts.items()}
        return DeviceRequestAllocationResult(
            request="r", driver="oven", pool="p", device="a", shareID=f"share-{number}", consumed_capacity=found
        )

    together = DeviceUsage([share(0, mem="1", oven_mem="2")])
    apart = DeviceUsage([share(0, mem="1"), share(1, oven_mem="2")])

    assert (together.held(DEVICE, rules) == apart.held(DEVICE, rules)) is equal
