"""Passthrough: a GPU goes to vfio-pci for a claim and comes back, and is offered all the while."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import dra_kit as dra
import pytest
import yaml
from dra_kit.testing import unit

from gpu_driver.config.kinds import VfioDeviceConfig
from gpu_driver.driver import driver
from gpu_driver.effects.vfio import BindVfio
from gpu_driver.host.pci import PciBus, SysfsBus, bound_driver
from gpu_driver.nvml.fake import injection
from gpu_driver.nvml.fake.hardware import fake_hardware
from gpu_driver.prepare import passthrough
from gpu_driver.settings import Settings
from tests.conftest import Node, discover, two_gpus
from tests.library_double import LibraryDouble


@pytest.fixture
def profile() -> str:
    return "l4"


@pytest.fixture
def settings() -> Settings:
    return Settings(passthrough=True)


def prepare(node: Node, **iommu: object) -> dra.Prepared:
    """Prepare a claim of the first GPU for a virtual machine; without ``iommu`` it has no config."""
    config = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig", "iommu": iommu}
    [prepared] = node.bench.prepare("machine", [node.devices["gpu-vfio-0"]], config=config if iommu else None)
    return prepared


def driver_of(node: Node, minor: int = 0) -> str:
    return bound_driver(node.hardware.host, node.nvml.profile.gpus[minor].pci)


def hold(node: Node, device: str, pid: int = 4711) -> Path:
    """A process of the host that has the device open."""
    fd = node.hardware.host / f"proc/{pid}/fd"
    fd.mkdir(parents=True)
    (fd / "5").symlink_to(device)
    (fd.parent / "comm").write_text("python\n")
    return fd / "5"


def paths(prepared: dra.Prepared) -> list[str]:
    return [node.path for node in prepared.device_nodes]


def api(prepared: dra.Prepared) -> list[str]:
    assert prepared.claim_edits is not None
    return [node.path for node in prepared.claim_edits.device_nodes]


def test_the_gpu_is_bound_to_vfio_and_back(node: Node) -> None:
    before = node.nvml.state.read()
    prepared = prepare(node)
    assert driver_of(node) == "vfio-pci"
    assert paths(prepared) == ["/dev/vfio/30"]
    assert api(prepared) == []
    assert prepared.metadata is not None
    assert prepared.metadata.attributes == {"resource.kubernetes.io/pciBusID": "0000:07:00.0"}
    node.bench.unprepare("machine")
    assert driver_of(node) == "nvidia"
    assert node.nvml.state.read() == before


@pytest.mark.parametrize(
    ("iommu", "own", "common"),
    [
        ({"enableAPIDevice": True}, "/dev/vfio/30", ["/dev/vfio/vfio"]),
        ({"backendPolicy": "PreferIommuFD"}, "/dev/vfio/devices/vfio0", []),
        ({"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}, "/dev/vfio/devices/vfio0", ["/dev/iommu"]),
    ],
)
def test_the_container_gets_the_device_nodes_of_the_config(
    node: Node, iommu: dict[str, object], own: str, common: list[str]
) -> None:
    prepared = prepare(node, **iommu)
    assert paths(prepared) == [own]
    assert api(prepared) == common


def test_without_iommufd_the_group_is_used(node: Node) -> None:
    prepare(node)
    (node.hardware.host / "dev/iommu").unlink()
    prepared = prepare(node, backendPolicy="PreferIommuFD")
    assert paths(prepared) == ["/dev/vfio/30"]


def test_published_attributes_do_not_change_during_the_claim(node: Node) -> None:
    before = node.devices
    node.bench.prepare("machine", [before["gpu-vfio-0"]])
    assert len(node.nvml.gpus()) == 1  # NVML sees it no more
    assert node.devices == before


def test_a_gpu_in_use_is_not_unbound_and_its_holder_is_named(node: Node) -> None:
    held = hold(node, "/dev/nvidia0")
    with pytest.raises(dra.TransientError, match=r"/dev/nvidia0 is held by python \(4711\)"):
        prepare(node)
    assert driver_of(node) == "nvidia"
    held.unlink()
    prepare(node)
    assert driver_of(node) == "vfio-pci"


def test_a_running_virtual_machine_keeps_its_gpu(node: Node) -> None:
    prepare(node)
    held = hold(node, "/dev/vfio/30")
    with pytest.raises(dra.TransientError, match="/dev/vfio/30 is held by"):
        node.bench.unprepare("machine")
    held.unlink()
    node.bench.unprepare("machine")
    assert driver_of(node) == "nvidia"


def test_persistence_mode_is_off_during_the_claim_and_restored(node: Node) -> None:
    node.change(persistence=True)
    prepare(node)
    assert not node.nvml.state.read().gpus[node.first].persistence
    node.bench.unprepare("machine")
    assert node.nvml.state.read().gpus[node.first].persistence


@pytest.mark.parametrize("tried", ["again", "never again"])
def test_persistence_mode_is_restored_if_the_gpu_was_in_use_first(node: Node, tried: str) -> None:
    node.change(persistence=True)
    held = hold(node, "/dev/nvidia0")
    with pytest.raises(dra.TransientError, match="is held by"):
        prepare(node)
    if tried == "again":
        held.unlink()
        prepare(node)
    node.bench.unprepare("machine")
    assert driver_of(node) == "nvidia"
    assert node.nvml.state.read().gpus[node.first].persistence


def test_persistence_mode_is_restored_after_a_crash_before_storing_the_outcome(node: Node) -> None:
    node.change(persistence=True)
    effect = bind(node)
    effect.apply(None)
    assert effect.apply(None)
    effect.revert(None)
    assert node.nvml.state.read().gpus[node.first].persistence
    effect.revert(effect.apply(None))
    node.change(persistence=False)
    effect.revert(effect.apply(None))
    assert not node.nvml.state.read().gpus[node.first].persistence, "it was off before"


def test_a_gpu_unbound_by_an_administrator_is_bound_again(node: Node) -> None:
    prepare(node)
    node.hardware.pci.bind(node.nvml.profile.gpus[0].pci, "nvidia")
    prepare(node)
    assert driver_of(node) == "vfio-pci"


def bind(node: Node) -> BindVfio:
    gpu = node.nvml.profile.gpus[0]
    return BindVfio(uuid=gpu.uuid, address=gpu.pci, minor=0, group=30).with_hardware(node.hardware)


class Watching:
    """The bus of a node; it notes how many sessions with NVML are open while a GPU changes hands."""

    def __init__(self, bus: PciBus, library: LibraryDouble) -> None:
        self._bus = bus
        self._library = library
        self.opened: list[int] = []

    def bind(self, address: str, driver: str) -> None:
        time.sleep(0.2)  # those who ask would open it again
        self.opened.append(self._library.opened)
        self._bus.bind(address, driver)


def test_nvml_is_closed_during_a_driver_change_for_all_threads(node: Node, nvml_library: Path, tmp_path: Path) -> None:
    from gpu_driver.nvml.library import NvmlLibrary

    below = LibraryDouble(nvml_library, node.nvml.profile, tmp_path / "profile")
    nvml, bus = NvmlLibrary(nvml_library), Watching(node.hardware.pci, below)
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            nvml.gpus()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    effect = bind(node).with_hardware(replace(node.hardware, nvml=nvml, bus=bus))
    effect.revert(effect.apply(None))
    over.set()
    asking.join()
    assert bus.opened == [0, 0]
    assert len(nvml.gpus()) == 2
    nvml.close()


def test_after_a_crash_a_driver_change_is_completed_or_reverted(node: Node) -> None:
    effect = bind(node)
    node.change(driver="")  # taken from the one, and not given to the other
    effect.apply(None)
    assert driver_of(node) == "vfio-pci"
    effect.revert(None)
    effect.revert(None)
    assert driver_of(node) == "nvidia"


def test_after_a_reboot_the_gpu_is_bound_again(node: Node) -> None:
    effect = bind(node)
    outcome = effect.apply(None)
    injection.reboot(node.nvml)
    assert not effect.holds(outcome)
    effect.apply(outcome)
    assert effect.holds(outcome)


def test_several_configs_in_one_claim_are_rejected() -> None:
    one, two = (dra.ConfigEntry(VfioDeviceConfig(), "claim", index, (f"r{index}",)) for index in (0, 1))
    passthrough.check([one, one])
    with pytest.raises(dra.PermanentError, match="give them one, or claims of their own"):
        passthrough.check([one, two])


def test_a_node_without_iommu_is_reported(tmp_path: Path, settings: Settings) -> None:
    file = two_gpus("l4", tmp_path)
    profile = yaml.safe_load(file.read_text())
    for gpu in profile["gpus"]:
        del gpu["iommuGroup"]
    file.write_text(yaml.safe_dump(profile))
    hardware = fake_hardware(str(file), tmp_path)
    device = discover(hardware, settings, tmp_path)["gpu-vfio-0"]
    with (
        unit(driver, hardware=hardware, settings=settings) as bench,
        pytest.raises(dra.PermanentError, match="no IOMMU group"),
    ):
        bench.prepare("machine", [device])


def kernel(root: Path) -> Path:
    """The files of sysfs that a GPU bound to nvidia has; the test plays the kernel."""
    function = root / "sys/bus/pci/devices/0000:07:00.0"
    for name in ("nvidia", "vfio-pci"):
        (root / "sys/bus/pci/drivers" / name).mkdir(parents=True)
    function.mkdir(parents=True)
    (function / "driver").symlink_to("../../drivers/nvidia")
    return function


def test_the_driver_override_is_written_before_the_function_is_unbound(tmp_path: Path) -> None:
    function = kernel(tmp_path)
    # no kernel reacts to these writes: they are checked here, and their missing effect is reported
    with pytest.raises(dra.TransientError, match="is bound to nvidia and not to vfio-pci; see dmesg"):
        SysfsBus(tmp_path).bind("0000:07:00.0", "vfio-pci")
    assert (function / "driver/unbind").read_text() == "0000:07:00.0"
    assert (tmp_path / "sys/bus/pci/drivers_probe").read_text() == "0000:07:00.0"
    assert (function / "driver_override").read_text() == "\n"


def test_an_unloaded_kernel_driver_is_an_error(tmp_path: Path) -> None:
    function = kernel(tmp_path)
    (tmp_path / "sys/bus/pci/drivers/vfio-pci").rmdir()
    with pytest.raises(dra.TransientError, match="modprobe vfio-pci"):
        SysfsBus(tmp_path).bind("0000:07:00.0", "vfio-pci")
    assert not (function / "driver_override").exists()


def test_releasing_a_removed_gpu_does_nothing(node: Node, tmp_path: Path) -> None:
    with_kernel = replace(node.hardware, host=tmp_path / "empty", bus=SysfsBus(tmp_path / "empty"))
    bind(node).with_hardware(with_kernel).revert(True)
