"""Pruning never changes the result of Kubernetes' full search."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.search import DeviceSearch, FeasibilityCheck
from tests.unit.kubernetes.allocator.cluster import (
    DRIVER,
    Document,
    allocate,
    claim,
    device,
    holder,
    names,
    request,
    result,
    slice_of,
    snapshot,
    way,
)

SLOT = f"{DRIVER}/slot"
SELECTORS = [
    "true",
    "false",
    f'device.attributes["{DRIVER}"].slot == 0',  # an error for devices without a slot
    f'device.attributes["{DRIVER}"].?slot.orValue(0) == 0',
]
DERIVED = [{"name": SLOT, "expression": f'device.attributes["{DRIVER}"].slot'}]


@st.composite
def devices(draw: st.DrawFn, name: str) -> Document:
    slot = draw(st.sampled_from([None, 0, 0, 1]))
    fields: dict[str, Any] = {} if slot is None else {"attributes": {"slot": {"int": slot}}}
    if draw(st.integers(0, 3)) == 0:
        fields |= {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "2"}}}
    return device(name, **fields)


@st.composite
def ways(draw: st.DrawFn) -> Document:
    count = draw(st.sampled_from([1, 1, 2, 3, None]))
    more: dict[str, Any] = {"derivedAttributes": DERIVED} if draw(st.integers(0, 4)) == 0 else {}
    if draw(st.integers(0, 4)) == 0:
        more["capacity"] = {"requests": {"memory": draw(st.sampled_from(["1", "-1"]))}}
    return way(count, draw(st.sampled_from(SELECTORS)), **more)


@st.composite
def requests(draw: st.DrawFn, name: str) -> Document:
    if draw(st.integers(0, 3)) == 0:
        return {"name": name, "firstAvailable": [{"name": sub} | draw(ways()) for sub in ("x", "y")]}
    return {"name": name, "exactly": draw(ways()) | ({"adminAccess": True} if draw(st.integers(0, 5)) == 0 else {})}


@st.composite
def claims(draw: st.DrawFn, name: str) -> Document:
    constraints: list[Document] = draw(
        st.sampled_from([[], [], [{"matchAttribute": SLOT}], [{"distinctAttribute": SLOT}]])
    )
    asked = [draw(requests(f"r{number}")) for number in range(draw(st.integers(1, 3)))]
    return claim(*asked, name=name, constraints=constraints)


def verdict(inventory: list[Document], pod: list[Document]) -> object:
    world = snapshot(slice_of(*inventory), claims=[holder(result("d0"))])
    try:
        return names(allocate(world, *pod))
    except AllocationError as error:
        return error.kind


@given(
    st.integers(0, 6).flatmap(lambda count: st.tuples(*[devices(f"d{number}") for number in range(count)])),
    st.integers(1, 2).flatmap(lambda count: st.tuples(*[claims(f"c{number}") for number in range(count)])),
)
@example(
    inventory=tuple(device(name) for name in ("d0", "d1", "d2", "d3")),
    pod=(claim(request("a", 2), request("b", 2)),),
)
def test_pruned_search_has_verdict_of_full_search(inventory: tuple[Document, ...], pod: tuple[Document, ...]) -> None:
    found = verdict(list(inventory), list(pod))
    with (
        patch.object(FeasibilityCheck, "is_dead_end", lambda self, claim, request: False),
        patch.object(DeviceSearch, "_left", lambda self, choice, start: 1_000),
    ):
        assert verdict(list(inventory), list(pod)) == found
