"""Time-slicing: set while a claim wants it, the default again afterwards."""

import dra_kit as dra
import pytest

from gpu_driver.effects.compute_mode import SetComputeMode
from gpu_driver.nvml.backend import ComputeMode
from gpu_driver.nvml.fake import injection
from tests.conftest import Node


def config(interval: str) -> dict[str, object]:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}},
    }


def time_slice(node: Node) -> int:
    return node.nvml.state.read().gpus[node.first].time_slice


def test_the_time_slice_is_set_while_the_claim_lives(node: Node) -> None:
    node.bench.prepare("jobs", [node.devices["gpu-0"]], config=config("Long"))
    assert time_slice(node) == 3
    node.bench.unprepare("jobs")
    assert time_slice(node) == 0


def test_a_claim_without_sharing_changes_nothing(node: Node) -> None:
    before = node.nvml.state.read()
    node.bench.prepare("alone", [node.devices["gpu-0"]])
    node.bench.unprepare("alone")
    assert node.nvml.state.read() == before


def test_the_compute_mode_of_an_administrator_is_restored(node: Node) -> None:
    node.nvml.set_compute_mode(node.first, ComputeMode.EXCLUSIVE_PROCESS)
    node.bench.prepare("jobs", [node.devices["gpu-0"]], config=config("Short"))
    assert node.nvml.compute_mode(node.first) is ComputeMode.DEFAULT
    node.bench.unprepare("jobs")
    assert node.nvml.compute_mode(node.first) is ComputeMode.EXCLUSIVE_PROCESS


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_compute_mode_is_restored_after_a_crash_before_storing_the_outcome(node: Node, goes_on: bool) -> None:
    node.nvml.set_compute_mode(node.first, ComputeMode.EXCLUSIVE_PROCESS)
    effect = SetComputeMode(uuid=node.first, mode=ComputeMode.DEFAULT).with_hardware(node.hardware)
    effect.apply(None)
    effect.revert(effect.apply(None) if goes_on else None)
    assert node.nvml.compute_mode(node.first) is ComputeMode.EXCLUSIVE_PROCESS
    node.nvml.set_compute_mode(node.first, ComputeMode.DEFAULT)
    effect.revert(effect.apply(None))
    assert node.nvml.compute_mode(node.first) is ComputeMode.DEFAULT, "what there was is looked at each time"


def test_a_claim_with_admin_access_does_not_set_it(node: Node) -> None:
    node.bench.prepare("look", [node.devices["gpu-0"]], config=config("Long"), admin_access=True)
    assert time_slice(node) == 0


@pytest.mark.parametrize("profile", ["gb200"])
def test_a_gpu_without_time_slices_is_reported_and_released(node: Node) -> None:
    kind = next(iter(node.nvml.profile.gpu_types))
    assert not node.nvml.profile.gpu_types[kind].time_slice
    with pytest.raises(dra.PermanentError, match="has no time slice to set"):
        node.bench.prepare("jobs", [node.devices["gpu-0"]], config=config("Long"))
    assert node.bench.effects == []


@pytest.mark.parametrize("profile", ["l4"])
def test_a_gpu_with_a_fixed_compute_mode_is_reported_and_released(node: Node) -> None:
    node.nvml.set_compute_mode(node.first, ComputeMode.EXCLUSIVE_PROCESS)
    node.with_types(compute_modes=("EXCLUSIVE_PROCESS",))
    with pytest.raises(dra.PermanentError, match="in compute mode EXCLUSIVE_PROCESS and does not take DEFAULT"):
        node.bench.prepare("jobs", [node.devices["gpu-0"]], config=config("Long"))
    assert node.bench.effects == []


@pytest.mark.parametrize("profile", ["l4"])
def test_a_compute_mode_that_cannot_be_restored_does_not_block_release(node: Node) -> None:
    node.nvml.set_compute_mode(node.first, ComputeMode.EXCLUSIVE_THREAD)
    node.bench.prepare("jobs", [node.devices["gpu-0"]], config=config("Long"))
    node.with_types(compute_modes=("DEFAULT", "EXCLUSIVE_PROCESS"))
    node.bench.unprepare("jobs")
    assert node.bench.effects == []
    assert node.nvml.compute_mode(node.first) is ComputeMode.DEFAULT


def test_the_error_of_a_lost_gpu_names_it(node: Node) -> None:
    device = node.devices["gpu-0"]
    injection.lose(node.nvml.state, node.first)
    with pytest.raises(dra.TransientError, match=r"^gpu-0: .*GPU_IS_LOST: it fell off the bus; delete the pod"):
        node.bench.prepare("jobs", [device], config=config("Long"))


@pytest.mark.parametrize("profile", ["l4"])
def test_a_gpu_lost_during_prepare_is_released(node: Node) -> None:
    node.bench.prepare("jobs", [node.devices["gpu-0"]], config=config("Long"))
    injection.lose(node.nvml.state, node.first)
    node.bench.unprepare("jobs")
    assert node.bench.effects == []
