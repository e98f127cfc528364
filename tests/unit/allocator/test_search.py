from __future__ import annotations

import pytest

from dra_kit.allocator import Allocator
from dra_kit.errors import AllocationError
from tests.unit.allocator.cluster import (
    ALL,
    NODE,
    allocate,
    claim,
    device,
    names,
    request,
    slice_of,
    snapshot,
)

NUMA = 'device.attributes["gpu.example.com"].numa'


def numbered(count: int, **fields: object) -> list[dict[str, object]]:
    return [device(f"d{number:03}", **fields) for number in range(count)]


def test_an_attempt_is_made_on_one_node_after_the_other() -> None:
    world = snapshot(slice_of(device("a"), nodeName="node-2"))
    attempt = Allocator(world, ALL).attempt([claim(request())])

    assert attempt.on(NODE) is None
    found = attempt.on(type(NODE)("node-2"))
    assert names(found) == [["a"]]


def test_a_pod_with_many_devices_is_no_matter_of_recursion() -> None:
    world = snapshot(*[slice_of(*numbered(128), name=f"s{n}", pool=f"p{n}") for n in range(16)])

    allocations = allocate(world, *[claim(request(count=32), name=f"c{n}") for n in range(64)])

    assert allocations is not None
    assert {len(allocation.devices.results) for allocation in allocations} == {32}


def test_too_many_combinations_end_with_a_message_that_names_the_request() -> None:
    # each later request is possible by itself: only trying tells that they are not together
    sides = [device(f"d{n}", attributes={"numa": {"int": n % 2}, "odd": {"int": n // 2}}) for n in range(24)]
    world = snapshot(slice_of(*sides))
    wanted = claim(
        request("first", 8),
        request("second", 4),
        constraints=[
            {"requests": ["second"], "matchAttribute": "gpu.example.com/odd"},
        ],
    )

    with pytest.raises(AllocationError, match=r"default/claim, request .*: gave up") as caught:
        allocate(world, wanted, max_steps=20_000)

    assert caught.value.kind == "search-limit"


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(request("later", 1, "false"), id="no such device"),
        pytest.param(request("later", 8), id="not enough are left"),
        pytest.param(request("later", None, "false"), id="all of none"),
        pytest.param(request("later", 1, capacity={"requests": {"memory": "2Gi"}}), id="too large"),
        pytest.param({"name": "later", "firstAvailable": [
            {"name": "a"} | request("a", 33)["exactly"], {"name": "b"} | request("b", 1, "false")["exactly"],
        ]}, id="no choice"),
    ],
)  # fmt: skip
def test_a_request_that_is_impossible_by_itself_is_not_searched_for(later: dict[str, object]) -> None:
    world = snapshot(slice_of(*numbered(30, capacity={"memory": {"value": "1Gi"}})))
    used = claim(request("first", 24), later)

    assert allocate(world, used, max_steps=20_000) is None


def test_one_device_too_few_is_found_out_quickly() -> None:
    assert allocate(snapshot(slice_of(*numbered(31))), claim(request(count=32)), max_steps=5_000) is None


def test_an_error_that_only_another_combination_meets_is_met() -> None:
    # The first request must take d1 before the second looks at d0, whose attribute it cannot read.
    world = snapshot(
        slice_of(
            device("d0"),
            device("d1", attributes={"numa": {"int": 0}}),
            device("d2", attributes={"numa": {"int": 0}}),
        )
    )
    wanted = claim(request("first"), request("second", 1, f"{NUMA} == 0"), request("third", 1, "false"))

    with pytest.raises(AllocationError, match="no such key") as caught:
        allocate(world, wanted)

    assert caught.value.kind == "cel-runtime"
