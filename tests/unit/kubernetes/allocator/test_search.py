from __future__ import annotations

from typing import Any

import pytest

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import UNMODIFIED, Release
from tests.unit.kubernetes.allocator.cluster import (
    ALL,
    NODE,
    allocate,
    claim,
    counters,
    device,
    drawing,
    holder,
    names,
    request,
    result,
    slice_of,
    snapshot,
    way,
    zones,
)

NUMA = 'device.attributes["gpu.example.com"].numa'


def numbered(count: int, **fields: object) -> list[dict[str, object]]:
    return [device(f"d{number:03}", **fields) for number in range(count)]


def test_attempt_runs_on_several_nodes() -> None:
    world = snapshot(slice_of(device("a"), nodeName="node-2"))
    attempt = Allocator(world, ALL).attempt([claim(request())])

    assert attempt.on(NODE) is None
    found = attempt.on(type(NODE)("node-2"))
    assert names(found) == [["a"]]


def test_many_devices_do_not_exceed_recursion_limit() -> None:
    world = snapshot(*[slice_of(*numbered(128), name=f"s{n}", pool=f"p{n}") for n in range(16)])

    allocations = allocate(world, *[claim(request(count=32), name=f"c{n}") for n in range(64)])

    assert allocations is not None
    assert {len(allocation.devices.results) for allocation in allocations} == {32}


def test_step_limit_error_names_request() -> None:
    # each later request is possible alone; only the search finds that they cannot be combined
    sides = [device(f"d{n}", attributes={"numa": {"int": n % 2}, "odd": {"int": n // 2}}) for n in range(24)]
    world = snapshot(slice_of(*sides))
    wanted = claim(
        request("first", 8),
        request("second", 4),
        constraints=[
            {"requests": ["second"], "matchAttribute": "gpu.example.com/odd"},
        ],
    )

    with pytest.raises(AllocationError, match=r"default/claim, request .*: the search for devices exceeded") as caught:
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
def test_impossible_request_ends_search(later: dict[str, object]) -> None:
    world = snapshot(slice_of(*numbered(30, capacity={"memory": {"value": "1Gi"}})))
    used = claim(request("first", 24), later)

    assert allocate(world, used, max_steps=20_000) is None


def test_missing_device_ends_search_early() -> None:
    assert allocate(snapshot(slice_of(*numbered(31))), claim(request(count=32)), max_steps=5_000) is None


def test_error_of_other_combination_is_raised() -> None:
    # the first request must take d1 before the second evaluates d0, which fails
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


def test_devices_with_rare_values_are_skipped() -> None:
    pairs = [device(f"d{n}", attributes={"numa": {"int": n // 2}}) for n in range(600)]
    triple = [device(f"e{n}", attributes={"numa": {"int": 999}}) for n in range(3)]
    wanted = claim(request(count=3), constraints=[{"matchAttribute": "gpu.example.com/numa"}])

    found = allocate(snapshot(slice_of(*pairs, *triple)), wanted, max_steps=2_000)

    assert names(found) == [["e0", "e1", "e2"]]


def test_too_few_distinct_values_end_search() -> None:
    four_kinds = [device(f"d{n}", attributes={"numa": {"int": n % 4}}) for n in range(100)]
    wanted = claim(request(count=5), constraints=[{"distinctAttribute": "gpu.example.com/numa"}])

    assert allocate(snapshot(slice_of(*four_kinds)), wanted, max_steps=1_000) is None


def test_equal_devices_are_tried_once() -> None:
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": 2}
    drawers = [device(f"d{n}", attributes={"id": {"int": n}}, **drawing(3)) for n in range(40)]
    world = snapshot(slice_of(*drawers, pool=pool), slice_of(name="s", pool=pool, **counters(32)))

    assert names(allocate(world, claim(request(count=10)), max_steps=2_000)) == [[f"d{n}" for n in range(10)]]
    assert allocate(world, claim(request(count=11)), max_steps=2_000) is None


def test_aborted_search_ends() -> None:
    shares = [device(f"d{n}", allowMultipleAllocations=True, capacity={"memory": {"value": "10Gi"}}) for n in range(32)]
    asked = [
        claim(request(count=16, capacity={"requests": {"memory": "6Gi"}}), name=f"c{number}") for number in range(3)
    ]
    attempt = Allocator(snapshot(slice_of(*shares)), AllocatorRules.of(UNMODIFIED)).attempt(
        asked, is_aborted=lambda: True
    )

    with pytest.raises(AllocationError, match="filter operation aborted") as caught:
        attempt.on(NODE)

    assert caught.value.kind == "aborted"


def test_device_without_attribute_differs_from_device_with_list() -> None:
    # before KEP-5491 the first device of a constraint may have a list
    world = snapshot(slice_of(device("list", attributes={"numa": {"ints": []}}), device("none")))
    wanted = claim(
        request("a"), request("b"), constraints=[{"requests": ["b"], "matchAttribute": "gpu.example.com/numa"}]
    )

    assert names(allocate(world, wanted, gates=AllocatorRules.of(Release.parse("1.37")))) == [["none", "list"]]


def test_second_device_with_list_is_tried() -> None:
    lists = {"numa": {"ints": [1]}}
    world = snapshot(
        slice_of(
            device("a", attributes=lists), device("b", attributes={"numa": {"int": 0}}), device("c", attributes=lists)
        )
    )
    wanted = claim(
        request("r"),
        request("s", count=2),
        constraints=[{"requests": ["s"], "distinctAttribute": "gpu.example.com/numa"}],
    )

    assert names(allocate(world, wanted, gates=AllocatorRules.of(Release.parse("1.37")))) == [["c", "a", "b"]]


PARTITIONS_OF_1_34 = AllocatorRules.of(Release.parse("1.34").also("DRAPartitionableDevices"))


@pytest.mark.parametrize("announced", [1, 2])
def test_devices_of_1_34_consume_counters_of_their_slice_also_if_the_pool_is_incomplete(announced: int) -> None:
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": announced}
    world = snapshot(slice_of(device("a", **drawing(6)), device("b", **drawing(6)), pool=pool, **counters(10)))

    assert names(allocate(world, claim(request()), gates=PARTITIONS_OF_1_34)) == [["a"]]
    assert allocate(world, claim(request(count=2)), gates=PARTITIONS_OF_1_34) is None


def test_slices_of_1_34_have_counters_of_the_same_name_for_themselves() -> None:
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": 2}
    world = snapshot(
        slice_of(device("a", **drawing(6)), device("b", **drawing(6)), pool=pool, **counters(10)),
        slice_of(device("c", **drawing(6)), name="slice-2", pool=pool, **counters(10)),
    )

    assert names(allocate(world, claim(request(count=2)), gates=PARTITIONS_OF_1_34)) == [["a", "c"]]
    assert allocate(world, claim(request(count=3)), gates=PARTITIONS_OF_1_34) is None


def test_devices_of_1_34_in_different_slices_are_not_interchangeable() -> None:
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": 2}
    other, main = ({"attributes": {"numa": {"int": number}}, **drawing(6)} for number in range(2))
    world = snapshot(
        slice_of(*[device(f"a{n}", **other) for n in range(8)], device("main", **main), pool=pool, **counters(10)),
        slice_of(device("b", **other), name="slice-2", pool=pool, **counters(10)),
    )
    wanted = claim(request("other", 1, f"{NUMA} == 0"), request("main", 1, f"{NUMA} == 1"))

    assert names(allocate(world, wanted, gates=PARTITIONS_OF_1_34)) == [["b", "main"]]


def test_slices_of_1_34_with_counters_are_for_the_nodes_that_they_select() -> None:
    world = snapshot(slice_of(device("a"), nodeSelector=zones("elsewhere"), **counters(10)))

    assert allocate(world, claim(request()), gates=PARTITIONS_OF_1_34) is None


def test_incomplete_pool_of_1_34_with_one_name_twice_is_invalid() -> None:
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": 3}
    world = snapshot(slice_of(device("a"), pool=pool), slice_of(device("a"), name="slice-2", pool=pool))

    with pytest.raises(AllocationError, match="pool pool-a is invalid: duplicate device name a"):
        allocate(world, claim(request()), gates=AllocatorRules.of(Release.parse("1.34")))


@pytest.mark.parametrize(
    ("first", "before"),
    [
        pytest.param(way(4, name="few"), None, id="the others are three of its four"),
        pytest.param(way(1, "false", name="few"), [["a"]], id="it has no others"),
        pytest.param(way(None, "false", name="few"), None, id="its answers are known"),
    ],
)
def test_mode_all_in_a_later_alternative_of_1_35_goes_on_with_the_first(
    first: dict[str, object], before: list[list[str]] | None
) -> None:
    world = snapshot(slice_of(device("a"), device("b"), device("c")))
    asked = claim({"name": "r", "firstAvailable": [first, way(None, name="all")]})

    assert names(allocate(world, asked, gates=AllocatorRules.of(Release.parse("1.35")))) == before
    assert names(allocate(world, asked, gates=AllocatorRules.of(Release.parse("1.36")))) == [["a", "b", "c"]]


def _with(version: str, *gates: str) -> AllocatorRules:
    return AllocatorRules.of(Release.parse(version).also(*gates))


HOT = {"taints": [{"key": "hot", "effect": "NoSchedule"}]}


@pytest.mark.parametrize(("version", "expected"), [("1.35", None), ("1.36", None), ("1.37", [["b"]])])
def test_counters_of_a_tainted_device_stay_in_use_before_1_37(version: str, expected: list[list[str]] | None) -> None:
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": 2}
    world = snapshot(
        slice_of(device("a", **drawing(6), **HOT), device("b", **drawing(6)), pool=pool),
        slice_of(name="slice-2", pool=pool, **counters(10)),
    )
    gates = _with(version, "DRADeviceTaints", "DRAPartitionableDevices")

    assert names(allocate(world, claim(request()), gates=gates)) == expected


def test_counters_of_a_device_that_a_constraint_rejects_stay_in_use_before_1_37() -> None:
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": 2}
    numas = [device(name, attributes={"numa": {"int": n}}, **drawing(4)) for name, n in (("a", 0), ("b", 1), ("c", 0))]
    world = snapshot(slice_of(*numas, pool=pool), slice_of(name="slice-2", pool=pool, **counters(10)))
    wanted = claim(request(count=2), constraints=[{"matchAttribute": "gpu.example.com/numa"}])

    assert allocate(world, wanted, gates=_with("1.36")) is None
    assert names(allocate(world, wanted, gates=_with("1.37"))) == [["a", "c"]]


SHARED = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "8"}}}
SHARE: dict[str, Any] = {"capacity": {"requests": {"memory": "2"}}}


@pytest.mark.parametrize(("version", "fits"), [("1.35", True), ("1.36", False)])
def test_counters_of_a_device_in_shares_are_in_use_since_1_36(version: str, fits: bool) -> None:
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": 2}
    world = snapshot(
        slice_of(device("a", **drawing(6), **SHARED), device("b", **drawing(6)), pool=pool),
        slice_of(name="slice-2", pool=pool, **counters(10)),
        claims=[holder(result("a", shareID="1", consumedCapacity={"memory": "8"}))],
    )
    gates = _with(version, "DRAConsumableCapacity", "DRAPartitionableDevices")

    assert (allocate(world, claim(request()), gates=gates) is not None) is fits


@pytest.mark.parametrize(("version", "expected"), [("1.34", None), ("1.35", [["a"], ["a"]])])
def test_each_share_uses_the_counters_of_its_device_in_1_34(version: str, expected: list[list[str]] | None) -> None:
    beside = version == "1.34"
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": 1 if beside else 2}
    world = snapshot(
        slice_of(device("a", **drawing(6), **SHARED), pool=pool, **(counters(10) if beside else {})),
        *([] if beside else [slice_of(name="slice-2", pool=pool, **counters(10))]),
    )
    claims = [claim(request(**SHARE), name=name) for name in ("one", "two")]
    gates = _with(version, "DRAConsumableCapacity", "DRAPartitionableDevices")

    assert names(allocate(world, *claims, gates=gates)) == expected


@pytest.mark.parametrize(("version", "fits"), [("1.36", True), ("1.37", False)])
def test_pools_of_one_name_share_counters_before_1_37(version: str, fits: bool) -> None:
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": 2}
    first = [slice_of(device("a", **drawing(1)), pool=pool), slice_of(name="slice-2", pool=pool, **counters(10))]
    second = [
        slice_of(
            device("b", **drawing(5)), device("c", **drawing(4)), name="slice-3", pool=pool, driver="z.example.com"
        ),
        slice_of(name="slice-4", pool=pool, driver="z.example.com", **counters(5)),
    ]
    world = snapshot(*first, *second)

    assert (allocate(world, claim(request(count=3)), gates=_with(version)) is not None) is fits


@pytest.mark.parametrize(("version", "expected"), [("1.34", None), ("1.35", [["b"]])])
def test_capacity_of_another_device_decides_in_1_34(version: str, expected: list[list[str]] | None) -> None:
    small, large = ({"capacity": {"memory": {"value": value}}} for value in ("1", "8"))
    world = snapshot(slice_of(device("a", **small), device("b", **large)))

    found = allocate(world, claim(request(**SHARE)), gates=_with(version, "DRAConsumableCapacity"))

    assert names(found) == expected


def test_scheduler_of_1_34_ends_if_a_slice_has_no_device_of_the_number_in_the_request() -> None:
    pool = {"name": "pool-a", "generation": 1, "resourceSliceCount": 2}
    world = snapshot(slice_of(device("a"), pool=pool), slice_of(device("b"), name="slice-2", pool=pool))
    wanted = claim(request(count=2))

    with pytest.raises(
        AllocationError, match=r"kube-scheduler 1\.34 ends with a panic: .*slice-2.* has 1 device"
    ) as caught:
        allocate(world, wanted, gates=_with("1.34", "DRAConsumableCapacity"))

    assert caught.value.kind == "scheduler-stops"
    assert names(allocate(world, wanted, gates=_with("1.35", "DRAConsumableCapacity"))) == [["a", "b"]]


@pytest.mark.parametrize(("version", "expected"), [("1.35", [["a", "c", "b"]]), ("1.36", None)])
def test_devices_are_tried_in_every_order_before_1_36(version: str, expected: list[list[str]] | None) -> None:
    values = [device(name, attributes={"numa": {"int": n}}) for name, n in (("a", 0), ("b", 0), ("c", 1))]
    wanted = claim(request(count=3), constraints=[{"distinctAttribute": "gpu.example.com/numa"}])

    found = allocate(snapshot(slice_of(*values)), wanted, gates=_with(version, "DRAConsumableCapacity"))

    assert names(found) == expected


def test_mode_all_of_1_34_takes_a_share_of_a_device_that_has_no_room_left() -> None:
    """It compares the capacity of the second device, which is free."""
    share = {"requestPolicy": {"default": "4", "validValues": ["4", "8"]}, "value": "8"}
    whole = {"capacity": {"memory": {"value": "8"}}}
    shared = {"allowMultipleAllocations": True, "capacity": {"memory": share}}
    world = snapshot(slice_of(device("a", **whole), device("b", **whole), device("c", **shared)))
    is_shared = "device.allowMultipleAllocations == true"
    wanted = [
        claim(request("one", 1, is_shared), request("two", 1, is_shared)),
        claim(request("all", None, is_shared), name="all"),
    ]

    assert names(allocate(world, *wanted, gates=_with("1.34", "DRAConsumableCapacity"))) == [["c", "c"], ["c"]]
    assert allocate(world, *wanted, gates=_with("1.35", "DRAConsumableCapacity")) is None
