from __future__ import annotations

from typing import Any

import pytest

from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import DEFAULT, KubernetesVersion, Release


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
def test_default_gates_of_release(version: str, on: set[str]) -> None:
    release = Release.parse(version)
    expected: dict[str, Any] = dict.fromkeys(on | {"device_status"}, True)
    assert AllocatorRules.of(release) == AllocatorRules(version=release.version, **expected)


def test_release_1_37_applies_taint_rules() -> None:
    assert AllocatorRules.of(Release.parse("1.37")).device_taint_rules
    assert not AllocatorRules.of(Release.parse("1.36")).device_taint_rules


@pytest.mark.parametrize(("version", "applied"), [("1.34", True), ("1.35", False)])
def test_release_1_34_applies_taint_rules_with_device_taints(version: str, applied: bool) -> None:
    release = Release.parse(version)

    assert AllocatorRules.of(release.also("DRADeviceTaints")).device_taint_rules is applied
    assert not AllocatorRules.of(release).device_taint_rules


def test_fractional_ranges_are_on_by_default_since_1_38() -> None:
    assert not AllocatorRules.of(Release.parse("1.37")).fractional_capacity_range
    assert AllocatorRules.of(
        Release.parse("1.37").switched("DRAFractionalCapacityRange=true")
    ).fractional_capacity_range
    assert AllocatorRules.of(Release.parse("1.38")).fractional_capacity_range


@pytest.mark.parametrize("version", ["", "1", "1.33", "2.1", "1.x", "latest"])
def test_release_without_v1_is_rejected(version: str) -> None:
    with pytest.raises(ValueError, match=r"1\.38"):
        AllocatorRules.of(Release.parse(version))


@pytest.mark.parametrize(
    ("gates", "variant"),
    [
        (AllocatorRules(version=DEFAULT), "stable"),
        (AllocatorRules.of(Release.parse("1.34")), "experimental"),
        (AllocatorRules.of(Release.parse("1.34").without("DRAResourceClaimDeviceStatus")), "incubating"),
        (AllocatorRules.of(Release.parse("1.35")), "incubating"),
        (AllocatorRules(version=KubernetesVersion(1, 35), consumable_capacity=True), "experimental"),
        (AllocatorRules(device_taint_rules=True, version=DEFAULT), "stable"),
        (AllocatorRules.of(Release.parse("1.36")), "incubating"),
        (AllocatorRules.of(Release.parse("1.37")), "incubating"),
        (AllocatorRules(derived_attributes=True, version=DEFAULT), "experimental"),
        (AllocatorRules.of(Release.parse("1.38")), "stable"),
        (AllocatorRules.of(Release.alpha(KubernetesVersion(1, 38))), "incubating"),
        (AllocatorRules.alpha(DEFAULT), "experimental"),
    ],
)
def test_gates_select_allocator_variant(gates: AllocatorRules, variant: str) -> None:
    assert gates.variant.name == variant


def test_scheduler_gates_match_api_server_gates() -> None:
    assert AllocatorRules.of(Release.of()) == AllocatorRules.of(Release.parse("1.37"))
    assert AllocatorRules.of(Release.alpha().switched("DRAFractionalCapacityRange=true")) == AllocatorRules.alpha(
        DEFAULT
    )
    assert not AllocatorRules.of(Release.of().switched("DRAConsumableCapacity=false")).consumable_capacity
