from __future__ import annotations

import pytest

from dra_kit.allocator import Gates
from dra_kit.resource.gates import FeatureGates


@pytest.mark.parametrize(
    ("version", "on"),
    [
        ("1.34", {"admin_access", "prioritized_list"}),
        ("v1.35.2", {"admin_access", "prioritized_list"}),
        (
            "1.36",
            {
                "admin_access",
                "prioritized_list",
                "device_taints",
                "partitionable_devices",
                "device_binding_and_status",
                "consumable_capacity",
            },
        ),
    ],
)
def test_the_defaults_of_a_release(version: str, on: set[str]) -> None:
    assert Gates.of(version) == Gates(**dict.fromkeys(on, True))


def test_1_37_applies_taint_rules() -> None:
    assert Gates.of("1.37").device_taint_rules
    assert not Gates.of("1.36").device_taint_rules


def test_fractional_ranges_need_the_whole_cluster_to_be_new() -> None:
    assert not Gates.of("1.37").fractional_capacity_range
    assert Gates.of("1.37", minimum_compatibility="1.37").fractional_capacity_range
    assert Gates.of("1.38").fractional_capacity_range


@pytest.mark.parametrize("version", ["", "1", "1.33", "2.1", "1.x", "latest"])
def test_a_version_without_this_api_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"1\.37"):
        Gates.of(version)


@pytest.mark.parametrize(
    ("gates", "variant"),
    [
        (Gates(), "stable"),
        (Gates.of("1.34"), "stable"),
        (Gates(device_taint_rules=True), "stable"),
        (Gates.of("1.36"), "incubating"),
        (Gates.of("1.37"), "incubating"),
        (Gates(derived_attributes=True), "experimental"),
        (Gates.alpha(), "experimental"),
    ],
)
def test_the_gates_choose_the_allocator(gates: Gates, variant: str) -> None:
    assert gates.variant.name == variant


def test_the_gates_of_a_cluster_are_those_of_its_scheduler() -> None:
    assert Gates.matching(FeatureGates.default()) == Gates.of("1.37")
    assert Gates.matching(FeatureGates.alpha().switched("DRAFractionalCapacityRange=true")) == Gates.alpha()
    assert not Gates.matching(FeatureGates.default().switched("DRAConsumableCapacity=false")).consumable_capacity
