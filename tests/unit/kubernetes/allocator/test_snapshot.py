from __future__ import annotations

from collections.abc import Mapping

import pytest

from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import Release
from tests.unit.kubernetes.allocator.cluster import (
    allocate,
    claim,
    device,
    device_class,
    holder,
    names,
    request,
    result,
    slice_of,
    snapshot,
)

TAINT = {"key": "example.com/broken", "effect": "NoSchedule"}


def rule(selector: Mapping[str, object] | None) -> dict[str, object]:
    spec = {"taint": TAINT} if selector is None else {"taint": TAINT, "deviceSelector": selector}
    return {"metadata": {"name": "rule"}, "spec": spec}


def test_allocated_claim_holds_its_devices() -> None:
    world = snapshot(slice_of(device("a"), device("b")), claims=[holder(result("a")), claim(request())])

    assert names(allocate(world, claim(request()))) == [["b"]]


def test_attempt_does_not_change_snapshot() -> None:
    world = snapshot(slice_of(device("a")))
    allocate(world, claim(request()))

    assert names(allocate(world, claim(request()))) == [["a"]]


def test_allocated_device_is_free_after_deallocation() -> None:
    world = snapshot(slice_of(device("a")))
    allocations = allocate(world, claim(request()))
    assert allocations is not None

    world.allocate(allocations[0])
    assert allocate(world, claim(request())) is None

    world.deallocate(allocations[0])
    assert names(allocate(world, claim(request()))) == [["a"]]


def test_admin_access_holds_nothing() -> None:
    world = snapshot(slice_of(device("a")), claims=[holder(result("a", adminAccess=True))])

    assert names(allocate(world, claim(request()))) == [["a"]]


@pytest.mark.parametrize("share", [{}, {"shareID": "x"}])
def test_free_device_cannot_be_deallocated(share: dict[str, str]) -> None:
    with pytest.raises(KeyError):
        snapshot().deallocate({"devices": {"results": [result("a", **share)]}})


def test_shares_are_summed_by_device() -> None:
    shares = [result("a", shareID=share, consumedCapacity={"memory": "1Gi"}) for share in ("x", "y")]
    world = snapshot(claims=[holder(*shares)])
    assert [str(sums["memory"]) for sums in world.usage.shared.values()] == ["2Gi"]

    world.deallocate({"devices": {"results": shares[:1]}})

    assert [str(sums["memory"]) for sums in world.usage.shared.values()] == ["1Gi"]


def test_republished_slice_replaces_old_one() -> None:
    world = snapshot(slice_of(device("a")))

    world.publish([slice_of(device("b"))])

    assert names(allocate(world, claim(request()))) == [["b"]]


def test_slice_can_be_removed() -> None:
    world = snapshot(slice_of(device("a")), slice_of(device("b"), name="slice-2", pool="pool-b"))

    world.publish(remove=["slice-1", "never-there"])

    assert names(allocate(world, claim(request()))) == [["b"]]


def test_slice_can_move_to_another_pool_and_node() -> None:
    world = snapshot(slice_of(device("a"), nodeName="node-2"))
    assert allocate(world, claim(request())) is None

    world.publish([slice_of(device("a"), pool="pool-b")])

    allocations = allocate(world, claim(request()))
    assert allocations is not None
    assert allocations[0].devices.results[0].pool == "pool-b"


def test_device_stays_in_use_without_its_slice() -> None:
    world = snapshot(slice_of(device("a")), claims=[holder(result("a"))])
    world.publish(remove=["slice-1"])
    world.publish([slice_of(device("a"))])

    assert allocate(world, claim(request())) is None


def test_classes_can_be_defined_and_removed() -> None:
    world = snapshot(slice_of(device("a")), classes=[])
    world.define([device_class("any", "false")])
    assert allocate(world, claim(request())) is None
    world.define([device_class("any")], remove=["any", "never-there"])

    assert names(allocate(world, claim(request()))) == [["a"]]


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        (None, ["a"]),
        ({}, None),
        ({"device": "a"}, ["b"]),
        ({"driver": "gpu.example.com", "pool": "pool-a", "device": "a"}, ["b"]),
        ({"driver": "other.example.com", "device": "a"}, ["a"]),
        ({"pool": "pool-b"}, ["a"]),
    ],
)
def test_taint_rule_taints_matching_devices(selector: dict[str, str] | None, left: list[str] | None) -> None:
    world = snapshot(slice_of(device("a"), device("b")), taint_rules=[rule(selector)])

    assert names(allocate(world, claim(request()))) == (None if left is None else [left])


def test_taint_of_rule_can_be_tolerated() -> None:
    world = snapshot(slice_of(device("a")), taint_rules=[rule({})])

    allocations = allocate(world, claim(request(tolerations=[{"key": TAINT["key"], "operator": "Exists"}])))

    assert names(allocations) == [["a"]]


def test_taint_replaces_all_rules() -> None:
    world = snapshot(slice_of(device("a")), taint_rules=[rule({})])
    world.taint([])
    assert names(allocate(world, claim(request()))) == [["a"]]
    world.taint([rule({})])
    assert allocate(world, claim(request())) is None


def test_taint_rules_need_their_gate() -> None:
    world = snapshot(slice_of(device("a")), taint_rules=[rule({})])

    assert names(allocate(world, claim(request()), gates=AllocatorRules.of(Release.parse("1.36")))) == [["a"]]
    assert allocate(world, claim(request()), gates=AllocatorRules.of(Release.parse("1.37"))) is None


LARGE = {"cel": {"expression": "device.attributes['gpu.example.com'].size > 1"}}


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        ({"selectors": [LARGE]}, ["a", "c"]),  # fails for c
        ({"selectors": [LARGE], "device": "a"}, ["a", "b", "c"]),
        ({"deviceClassName": "large"}, ["a", "c"]),
        ({"deviceClassName": "any", "selectors": [LARGE]}, ["a", "c"]),
        ({"deviceClassName": "missing"}, ["a", "b", "c"]),
    ],
)
def test_taint_rule_of_1_34_taints_the_devices_of_a_class_or_expression(
    selector: dict[str, object], left: list[str]
) -> None:
    sizes = [device(name, attributes={"size": {"int": size}}) for name, size in (("a", 1), ("b", 2))]
    large = {"metadata": {"name": "large"}, "spec": {"selectors": [LARGE]}}
    release = Release.parse("1.34").also("DRADeviceTaints")
    world = snapshot(slice_of(*sizes, device("c")), version=release.version, taint_rules=[rule(selector)])
    world.define([large])

    assert names(allocate(world, claim(request(count=len(left))), gates=AllocatorRules.of(release))) == [left]
    assert allocate(world, claim(request(count=len(left) + 1)), gates=AllocatorRules.of(release)) is None


def test_a_class_taints_the_devices_that_it_has_now() -> None:
    release = Release.parse("1.34").also("DRADeviceTaints")
    world = snapshot(slice_of(device("a")), version=release.version, taint_rules=[rule({"deviceClassName": "late"})])
    assert names(allocate(world, claim(request()), gates=AllocatorRules.of(release))) == [["a"]]

    world.define([{"metadata": {"name": "late"}, "spec": {}}])

    assert allocate(world, claim(request()), gates=AllocatorRules.of(release)) is None
