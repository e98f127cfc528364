from __future__ import annotations

import pytest

from dra_kit.kubernetes.release import FeatureGates


def test_default_gates_are_those_of_kubernetes_1_37() -> None:
    gates = FeatureGates.default()

    assert "DRAConsumableCapacity" in gates
    assert "DRAListTypeAttributes" not in gates
    assert "DRAFractionalCapacityRange" not in gates


def test_flags_switch_single_gates() -> None:
    gates = FeatureGates.default().switched("DRAListTypeAttributes=true, DRAConsumableCapacity=False")

    assert gates.enabled - FeatureGates.default().enabled == {"DRAListTypeAttributes"}
    assert FeatureGates.default().enabled - gates.enabled == {"DRAConsumableCapacity"}


def test_empty_flags_change_nothing() -> None:
    assert FeatureGates.alpha().switched("") == FeatureGates.alpha()


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
        FeatureGates.default().switched(flags)


def test_dependent_gates_can_be_switched_off_together() -> None:
    gates = FeatureGates.default().switched("DRADeviceTaints=false,DRADeviceTaintRules=false")

    assert gates == FeatureGates.default().without("DRADeviceTaints", "DRADeviceTaintRules")


@pytest.mark.parametrize("value", ["true", "false"])
@pytest.mark.parametrize("gate", ["ResourceHealthStatus", "PodsAPI"])
def test_gate_without_effect_is_rejected_with_list_of_known_gates(gate: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{gate} is a feature gate of Kubernetes without effect") as refusal:
        FeatureGates.alpha().switched(f"{gate}={value}")

    known = str(refusal.value).split("; known gates are ")[1].split(", ")
    assert gate not in known
    for name in set(known) - {"DRAFractionalCapacityRange"}:
        assert name in FeatureGates.alpha()


def test_alpha_gates_are_implemented() -> None:
    gates = FeatureGates.alpha()

    assert {"DRAResourcePoolStatus", "DRAWorkloadResourceClaims", "GenericWorkload"} <= gates.enabled
    assert gates.declared_by_nodes == ("DRANodeAllocatableResources", "DRAOptionalNodeOperations")
    assert FeatureGates.default().declared_by_nodes == ()
