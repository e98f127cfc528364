from __future__ import annotations

import pytest

from dra_kit.kubernetes.release import KubernetesVersion, Release


def test_default_gates_are_those_of_kubernetes_1_37() -> None:
    gates = Release.of()

    assert "DRAConsumableCapacity" in gates
    assert "DRAListTypeAttributes" not in gates
    assert "DRAFractionalCapacityRange" not in gates


def test_flags_switch_single_gates() -> None:
    gates = Release.of().switched("DRAListTypeAttributes=true, DRAConsumableCapacity=False")

    assert gates.enabled - Release.of().enabled == {"DRAListTypeAttributes"}
    assert Release.of().enabled - gates.enabled == {"DRAConsumableCapacity"}


def test_empty_flags_change_nothing() -> None:
    assert Release.alpha().switched("") == Release.alpha()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("DRANothing=true", "DRANothing is not a feature gate"),
        ("DRADeviceTaints", "write DRADeviceTaints=true"),
        ("DRADeviceTaints=yes", "write DRADeviceTaints=true"),
        ("DRAAdminAccess=false", "cannot be switched off"),
        (
            "DRADeviceTaints=false",
            "DRADeviceTaintRules is on but needs DRADeviceTaints, which is off; add DRADeviceTaintRules=false",
        ),
        ("DRADeviceCompatibilityGroups=true,DRAPartitionableDevices=false", "needs DRAPartitionableDevices"),
    ],
)
def test_invalid_flags_are_rejected(flags: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Release.of().switched(flags)


def test_dependent_gates_can_be_switched_off_together() -> None:
    gates = Release.of().switched("DRADeviceTaints=false,DRADeviceTaintRules=false")

    assert gates == Release.of().without("DRADeviceTaints", "DRADeviceTaintRules")


@pytest.mark.parametrize("value", ["true", "false"])
@pytest.mark.parametrize("gate", ["SchedulerPreQueueingHints", "PodsAPI"])
def test_gate_without_effect_is_rejected_with_list_of_known_gates(gate: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{gate} is a feature gate of Kubernetes without effect") as refusal:
        Release.alpha().switched(f"{gate}={value}")

    known = str(refusal.value).split("; known gates are ")[1].split(", ")
    assert gate not in known
    for name in set(known) - {"DRAFractionalCapacityRange"}:
        assert name in Release.alpha()


def test_alpha_gates_are_implemented() -> None:
    gates = Release.alpha()

    assert {"DRAResourcePoolStatus", "DRAWorkloadResourceClaims", "GenericWorkload"} <= gates.enabled
    assert gates.declared_by_nodes == ("DRANodeAllocatableResources", "DRAOptionalNodeOperations")
    assert Release.of().declared_by_nodes == ()


@pytest.mark.parametrize(
    ("version", "flags", "problem"),
    [
        ("1.34", "DRADeviceTaintRules=true", r"not a feature gate of Kubernetes 1\.34: it came with 1\.35"),
        ("1.38", "DynamicResourceAllocation=true", r"removed in 1\.38, and what it switched is always on; remove it"),
        ("1.38", "DRAPartitionableDevices=false", r"generally available in 1\.38"),
    ],
)
def test_gates_of_other_releases_are_rejected(version: str, flags: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Release.parse(version).switched(flags)


def test_gate_is_switched_where_its_release_permits_it() -> None:
    assert "DRAPartitionableDevices" not in Release.parse("1.37").switched(
        "DRAPartitionableDevices=false,DRADeviceCompatibilityGroups=false"
    )
    assert "DynamicResourceAllocation" in Release.parse("1.38")


def test_alpha_gates_are_those_that_the_release_knows() -> None:
    alpha = Release.alpha(KubernetesVersion(1, 34))

    assert "DRAConsumableCapacity" in alpha
    assert "DRAListTypeAttributes" not in alpha


@pytest.mark.parametrize("version", ["v1.34.2", "1.34", "1.34+", "v1.34.1-gke.5"])
def test_versions_of_providers_are_read(version: str) -> None:
    assert KubernetesVersion.parse(version) == (1, 34)
