from __future__ import annotations

import pytest

from dra_kit.resource.gates import FeatureGates


def test_the_defaults_are_those_of_kubernetes_1_37() -> None:
    gates = FeatureGates.default()

    assert "DRAConsumableCapacity" in gates
    assert "DRAListTypeAttributes" not in gates
    assert "DRAFractionalCapacityRange" not in gates


def test_single_gates_are_switched_by_flags() -> None:
    gates = FeatureGates.default().switched("DRAListTypeAttributes=true, DRAConsumableCapacity=False")

    assert gates.enabled - FeatureGates.default().enabled == {"DRAListTypeAttributes"}
    assert FeatureGates.default().enabled - gates.enabled == {"DRAConsumableCapacity"}


def test_no_flags_change_nothing() -> None:
    assert FeatureGates.alpha().switched("") == FeatureGates.alpha()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("DRANothing=true", "DRANothing is no feature gate"),
        ("DRADeviceTaints", "write DRADeviceTaints=true"),
        ("DRADeviceTaints=yes", "write DRADeviceTaints=true"),
        ("DRAAdminAccess=false", "cannot be switched off"),
        ("DRADeviceTaints=false", "DRADeviceTaintRules is on but needs DRADeviceTaints"),
        ("DRAPartitionableDevicesType=true", "needs DRAResourcePoolStatus"),
    ],
)
def test_flags_that_kubernetes_would_refuse_are_refused(flags: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        FeatureGates.default().switched(flags)


def test_gates_that_need_each_other_are_switched_together() -> None:
    gates = FeatureGates.default().switched("DRADeviceTaints=false,DRADeviceTaintRules=false")

    assert gates == FeatureGates.default().without("DRADeviceTaints", "DRADeviceTaintRules")
