"""Health of GPUs: XIDs, lost GPUs, recovery."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import dra_kit as dra
import pytest

from gpu_driver.devices.gpu import Gpu
from gpu_driver.health import GpuHealth
from gpu_driver.nvml.backend import RecoveryAction
from gpu_driver.nvml.fake import injection
from gpu_driver.nvml.fake.profile import Fault
from tests.conftest import Node, discover
from tests.library_double import LibraryDouble

Found = dict[tuple[str, str], str]


class Watched:
    """A health source that is looked at step by step."""

    def __init__(self, node: Node, devices: Sequence[Gpu] = ()) -> None:
        self.source = GpuHealth()
        self.source.wait = 0.0
        self.source.hardware = node.hardware
        self.source.devices = devices or list(node.devices.values())
        self._reports = self.source.watch()
        self.ill: Found = {}
        self.look()

    @property
    def names(self) -> list[str]:
        return [device.name for device in self.source.devices]

    def look(self, *, times: int = 1) -> Found:
        """What is wrong with which device now, by device and reason, after every GPU has been looked at."""
        last = self.source.devices[-1]
        for _ in range(times):
            for report in self._until(last):
                if isinstance(report, dra.Unhealthy):
                    self.ill[report.device.name, report.reason] = report.value or ""
                elif isinstance(report, dra.Healthy):
                    self.ill.pop((report.device.name, report.reason), None)
        return self.ill

    def _until(self, last: dra.Device) -> Iterator[object]:
        for report in self._reports:
            yield report
            if report.device is last and getattr(report, "reason", "recovery") in {"recovery", "gpu-lost", ""}:
                return


@pytest.fixture
def watched(node: Node) -> Watched:
    return Watched(node)


def of_gpu_0(found: Found) -> set[tuple[str, str, str]]:
    return {(name, reason, value) for (name, reason), value in found.items() if name == "gpu-0"}


def test_a_healthy_node_reports_nothing(watched: Watched) -> None:
    assert watched.look() == {}


def test_a_fatal_xid_lasts_until_no_recovery_action_is_pending(node: Node, watched: Watched) -> None:
    injection.want_recovery(node.nvml.state, node.first, RecoveryAction.GPU_RESET)
    injection.xid(node.nvml.state, node.first, 79)
    found = of_gpu_0(watched.look(times=3))
    assert found == {("gpu-0", "xid", "79"), ("gpu-0", "recovery", "gpu_reset")}
    assert not watched.source.recovered(node.devices["gpu-0"], "xid")
    injection.want_recovery(node.nvml.state, node.first, RecoveryAction.NONE)
    assert watched.source.recovered(node.devices["gpu-0"], "xid")


def test_an_application_xid_adds_no_taint(node: Node, watched: Watched) -> None:
    injection.xid(node.nvml.state, node.first, 31)
    found = of_gpu_0(watched.look(times=2))
    assert found == {("gpu-0", "application-xid", "31")}
    assert GpuHealth.policy["application-xid"].taint == "None"


def test_problems_from_before_the_start_are_reported_first(node: Node) -> None:
    injection.want_recovery(node.nvml.state, node.first, RecoveryAction.NODE_REBOOT)
    assert of_gpu_0(Watched(node).ill) == {("gpu-0", "recovery", "node_reboot")}


def test_a_lost_gpu_is_reported_with_all_its_devices_and_no_other_is(node: Node, watched: Watched) -> None:
    injection.lose(node.nvml.state, node.first)
    found = watched.look(times=2)
    assert {name for name, reason in found if reason == "gpu-lost"} == {
        device.name for device in watched.source.devices if device.uuid == node.first
    }
    assert not watched.source.recovered(watched.source.devices[0], "gpu-lost")
    injection.find(node.nvml.state, node.first)
    assert watched.source.recovered(watched.source.devices[0], "gpu-lost")


def test_a_gpu_returned_by_a_virtual_machine_is_monitored(node: Node) -> None:
    devices = list(node.devices.values())
    node.change(driver="vfio-pci")
    watched = Watched(node, devices)
    assert of_gpu_0(watched.look()) == set()
    node.change(driver="nvidia")
    watched.look()
    injection.xid(node.nvml.state, node.first, 31)
    found = of_gpu_0(watched.look(times=2))
    assert found == {("gpu-0", "application-xid", "31")}


def test_an_xid_of_an_unknown_gpu_affects_all_gpus(node: Node, watched: Watched) -> None:
    injection.xid(node.nvml.state, "", 79)
    found = watched.look(times=2)
    assert {name for name, reason in found if reason == "xid"} == set(watched.names)


def test_an_xid_of_a_partition_is_reported_for_that_partition(node: Node) -> None:
    node.bench.prepare("train", [node.devices["gpu-0-mig-3g40gb-9-0"]])
    [instance] = node.nvml.gpu_instances(node.first)
    source = GpuHealth()
    source.wait = 0.0
    source.hardware = node.hardware
    own = [(node.first, instance.profile_id, instance.placement.start)]
    names = {"gpu-0", "gpu-0-mig-3g40gb-9-0", "gpu-0-mig-3g40gb-9-4", "gpu-0-mig-1g10gb-19-0"}
    devices = discover(node.hardware, node.settings, node.folder, own)
    source.devices = [device for name, device in devices.items() if name in names]
    injection.want_recovery(node.nvml.state, node.first, RecoveryAction.GPU_RESET)
    events = source.watch()
    next(events)
    injection.xid(node.nvml.state, node.first, 94, gpu_instance=instance.id)
    reported = {
        report.device.name
        for _, report in zip(range(30), events, strict=False)
        if getattr(report, "reason", "") == "xid"
    }
    assert reported == {"gpu-0-mig-3g40gb-9-0"}


def test_a_gpu_whose_events_cannot_be_registered_is_unmonitored(node: Node) -> None:
    node.fail(Fault(call="nvmlDeviceRegisterEvents", gpu=0, times=None, error="NOT_SUPPORTED"))
    assert ("gpu-0", "unmonitored", "") in of_gpu_0(Watched(node).ill)


@pytest.fixture
def old(node: Node) -> Node:
    """A node whose driver knows XIDs alone."""
    node.with_types(event_types=("xid",))
    return node


@pytest.mark.parametrize("profile", ["l4"])
def test_a_lost_gpu_without_uuid_does_not_affect_other_gpus(old: Node) -> None:
    watched = Watched(old)
    injection.lose(old.nvml.state, old.first)
    found = watched.look(times=3)
    assert {name for name, reason in found if reason == "gpu-lost"} == {"gpu-0", "gpu-0-monitor"}


@pytest.mark.parametrize("profile", ["l4"])
@pytest.mark.parametrize(("number", "reason"), [(31, "application-xid"), (79, "xid")])
def test_old_drivers_classify_xids_by_number(old: Node, number: int, reason: str) -> None:
    watched = Watched(old)
    injection.xid(old.nvml.state, old.first, number)
    found = of_gpu_0(watched.look(times=2))
    assert found == {("gpu-0", reason, str(number))}
    watched.source.forget_after = 0.0
    watched.look()
    assert bool(of_gpu_0(watched.look())) is (reason == "xid"), "what a program did is old news some time"


def test_a_failed_query_keeps_the_known_health(node: Node, watched: Watched) -> None:
    injection.want_recovery(node.nvml.state, node.first, RecoveryAction.GPU_RESET)
    watched.look(times=2)
    node.fail(Fault(call="nvmlDeviceGetFieldValues", times=None, error="TIMEOUT"))
    assert ("gpu-0", "recovery", "gpu_reset") in of_gpu_0(watched.look(times=2))
    with pytest.raises(Exception, match="TIMEOUT"):
        watched.source.recovered(node.devices["gpu-0"], "xid")


def test_an_xid_of_an_unknown_partition_affects_the_whole_gpu(node: Node, watched: Watched) -> None:
    node.fail(Fault(call="nvmlDeviceGetGpuInstances", times=None, error="GPU_IS_LOST"))
    injection.want_recovery(node.nvml.state, node.first, RecoveryAction.GPU_RESET)
    injection.xid(node.nvml.state, node.first, 79, gpu_instance=3)
    assert ("gpu-0", "xid", "79") in of_gpu_0(watched.look(times=3))


def test_monitoring_continues_after_nvml_was_closed_for_a_driver_change(
    node: Node, nvml_library: Path, tmp_path: Path
) -> None:
    from gpu_driver.nvml.library import NvmlLibrary

    below = LibraryDouble(nvml_library, node.nvml.profile, tmp_path / "profile")
    nvml = NvmlLibrary(nvml_library)
    watched = Watched(replace(node, hardware=replace(node.hardware, nvml=nvml)))
    nvml.close()
    watched.look()
    below.xid(node.first, 31)
    found = of_gpu_0(watched.look(times=2))
    assert found == {("gpu-0", "application-xid", "31")}
    nvml.close()
