"""On a machine with a GPU: NVML through this driver shows what nvidia-smi shows, and so does what is published."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_driver.devices.gpu import Gpu
from gpu_driver.devices.inventory import inventory
from gpu_driver.devices.last_seen import LastSeen
from gpu_driver.devices.names import version
from gpu_driver.devices.provider import find
from gpu_driver.hardware import Hardware
from gpu_driver.host import pci
from gpu_driver.host.driver_root import find_library, library_folders
from gpu_driver.journal import Journal
from gpu_driver.nvml.backend import ComputeMode, GpuFacts, RecoveryAction
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.opening import real_hardware
from gpu_driver.settings import Settings
from tests import mps_session
from tests.gpu import nvidia_smi

pytestmark = pytest.mark.gpu
HOST = Path(os.environ.get("HOST_ROOT", "/"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def hardware(folder: Path) -> Iterator[Hardware]:
    root = Path(os.environ.get("DRIVER_ROOT", "/"))
    library = find_library(root, HOST)
    if library is None:
        pytest.skip(f"no GPU was tested: NVML is in none of {library_folders(root)}; set DRIVER_ROOT")
    opened = real_hardware(library, root, HOST, Journal(folder / "journal"))
    yield opened
    opened.nvml.close()


@pytest.fixture(scope="module")
def gpus(hardware: Hardware) -> dict[str, GpuFacts]:
    """Of NVML, by UUID."""
    if not mps_session.is_root() and "Enabled" in shown("mig.mode.current").values():
        pytest.skip("no GPU was tested: NVML describes a GPU with MIG on to root alone; run this as root")
    return {gpu.uuid: gpu for gpu in hardware.nvml.gpus()}


@pytest.fixture(scope="module")
def published(hardware: Hardware, gpus: dict[str, GpuFacts], folder: Path) -> list[Gpu]:
    """All devices, as the driver would publish them with MIG partitions that exist."""
    if not mps_session.is_root() and any(gpu.mig_capable for gpu in gpus.values()):
        pytest.skip("what is published was not tested: NVML lists partitions to root alone; run this as root")
    found = inventory(find(hardware, (), LastSeen(folder / "gpus.json")), Settings())
    return [device for pool in found.pools for device in pool.devices]


def shown(attribute: str) -> dict[str, str]:
    """Return an attribute of each GPU, by UUID."""
    try:
        return dict(zip(nvidia_smi.query("uuid"), nvidia_smi.query(attribute), strict=True))
    except nvidia_smi.Refused as error:
        pytest.skip(f"{attribute} was not tested: this nvidia-smi does not show it: {error}")


def in_log(element: str) -> dict[str, str]:
    """Return an element of the log of each GPU, by UUID; empty for one that this driver does not write."""
    gpus = nvidia_smi.log(nvidia_smi.once("-q", "-x")).iter("gpu")
    return {gpu.findtext("uuid", ""): nvidia_smi.value(gpu.findtext(element, "")) for gpu in gpus}


def bus_id(text: str) -> str:
    """Return a PCI address as nvidia-smi writes it: eight digits of domain, upper case."""
    domain, rest = text.split(":", 1)
    return f"{int(domain, 16):08X}:{rest.upper()}"


def words(text: str) -> str:
    """Return a brand without what differs in writing: ``NVIDIA RTX`` and ``NvidiaRTX``."""
    return text.replace(" ", "").lower()


def test_nvml_and_nvidia_smi_list_the_same_gpus(gpus: dict[str, GpuFacts]) -> None:
    assert set(gpus) == set(nvidia_smi.query("uuid"))


_FACTS: dict[str, Callable[[GpuFacts], str]] = {
    "name": lambda gpu: gpu.name,
    "pci.bus_id": lambda gpu: bus_id(gpu.pci_bus_id),
    "pci.device_id": lambda gpu: f"0x{gpu.pci_device_id:04X}10DE",
    "compute_cap": lambda gpu: ".".join(map(str, gpu.compute_capability)),
    "serial": lambda gpu: gpu.serial,
    "memory.total": lambda gpu: "" if gpu.memory_bytes is None else str(gpu.memory_bytes >> 20),
    "addressing_mode": lambda gpu: nvidia_smi.value(gpu.addressing_mode or ""),
}


@pytest.mark.parametrize("attribute", _FACTS)
def test_nvml_returns_the_values_of_nvidia_smi(attribute: str, gpus: dict[str, GpuFacts]) -> None:
    assert {uuid: _FACTS[attribute](gpu) for uuid, gpu in gpus.items()} == shown(attribute)


@pytest.mark.parametrize(
    ("element", "of_gpu", "as_shown"),
    [
        ("minor_number", lambda gpu: str(gpu.minor), str),
        ("product_architecture", lambda gpu: gpu.architecture, str),
        ("product_brand", lambda gpu: words(gpu.brand), words),
    ],
)
def test_nvml_returns_the_values_of_the_nvidia_smi_log(
    element: str, of_gpu: Callable[[GpuFacts], str], as_shown: Callable[[str], str], gpus: dict[str, GpuFacts]
) -> None:
    expected = {uuid: as_shown(text) for uuid, text in in_log(element).items()}
    assert {uuid: of_gpu(gpu) for uuid, gpu in gpus.items()} == expected


def test_nvml_returns_the_versions_of_nvidia_smi(hardware: Hardware, gpus: dict[str, GpuFacts]) -> None:
    assert set(shown("driver_version").values()) == {hardware.nvml.driver_version()}
    log = nvidia_smi.log(nvidia_smi.once("-q", "-x"))
    # of CUDA in the driver, which newer releases call that of its user-mode part
    cuda = log.findtext("cuda_version") or log.findtext("cuda_umd_version")
    assert cuda == ".".join(map(str, hardware.nvml.cuda_driver_version()))


_MONITOR: dict[str, Callable[[Gpu], str]] = {
    "uuid": lambda device: str(device.attributes["uuid"]),
    "name": lambda device: str(device.attributes["productName"]),
    "pci.bus_id": lambda device: bus_id(str(device.attributes["resource.kubernetes.io/pciBusID"])),
    "compute_cap": lambda device: str(device.attributes["cudaComputeCapability"]).removesuffix(".0"),
    "addressing_mode": lambda device: nvidia_smi.value(str(device.attributes.get("addressingMode", ""))),
}


@pytest.mark.parametrize("attribute", _MONITOR)
def test_each_gpu_is_published_as_nvidia_smi_shows_it(attribute: str, published: list[Gpu]) -> None:
    monitors = {device.uuid: device for device in published if device.kind == "monitor"}
    assert {uuid: _MONITOR[attribute](device) for uuid, device in monitors.items()} == shown(attribute)


def test_versions_are_published_as_nvidia_smi_shows_them(published: list[Gpu]) -> None:
    expected = {uuid: version(text) for uuid, text in shown("driver_version").items()}
    assert {device.uuid: device.attributes["driverVersion"] for device in published} == expected


def test_published_gpus_and_partitions_match_nvidia_smi(published: list[Gpu]) -> None:
    divided = {uuid for uuid, mode in shown("mig.mode.current").items() if mode == "Enabled"}
    memory = {uuid: text for uuid, text in shown("memory.total").items() if uuid not in divided}
    gpus = [device for device in published if device.kind == "gpu"]
    capacity: dict[str, Any] = {device.uuid: device.capacity.get("memory") for device in gpus}
    whole = {uuid: "" if size is None else size.value.as_decimal // 2**20 for uuid, size in capacity.items()}
    assert {uuid: str(size) for uuid, size in whole.items()} == memory
    partitions = {device.attributes["uuid"] for device in published if device.kind == "mig"}
    assert partitions == set(nvidia_smi.partitions(nvidia_smi.once("-L")))


def test_nvml_returns_the_modes_of_nvidia_smi(hardware: Hardware, gpus: dict[str, GpuFacts]) -> None:
    modes = {
        ComputeMode.DEFAULT: "Default",
        ComputeMode.PROHIBITED: "Prohibited",
        ComputeMode.EXCLUSIVE_PROCESS: "Exclusive_Process",
    }
    assert {uuid: modes[hardware.nvml.compute_mode(uuid)] for uuid in gpus} == shown("compute_mode")
    capable = [uuid for uuid, gpu in gpus.items() if gpu.mig_capable]
    found = {uuid: hardware.nvml.mig_mode(uuid) for uuid in capable}
    for which in ("current", "pending"):
        expected = {uuid: text == "Enabled" for uuid, text in shown(f"mig.mode.{which}").items() if text}
        assert {uuid: getattr(mode, which) for uuid, mode in found.items()} == expected


def test_mig_profiles_and_placements_match_nvidia_smi(hardware: Hardware, gpus: dict[str, GpuFacts]) -> None:
    try:
        rows = nvidia_smi.profiles(nvidia_smi.once("mig", "-lgip"))
        places = nvidia_smi.placements(nvidia_smi.once("mig", "-lgipp"))
        ours = {uuid: hardware.nvml.gpu_instance_profiles(uuid) for uuid, gpu in gpus.items() if gpu.mig_capable}
    except nvidia_smi.Refused as error:
        pytest.skip(f"MIG profiles were not tested: {error}")
    except NvmlError as error:
        assert error.code is NvmlReturn.NO_PERMISSION
        pytest.skip("MIG profiles were not tested: NVML lists their places to root alone")
    uuids = nvidia_smi.query("uuid")
    assert rows, "nvidia-smi mig -lgip prints a table that is not understood"
    for index, expected in rows.items():
        found = ours[uuids[index]]
        assert sorted(map(nvidia_smi.row_of, found), key=lambda row: row.id) == sorted(expected, key=lambda row: row.id)
        assert {(index, item.id): set(item.placements) for item in found} == {
            key: set(value) for key, value in places.items() if key[0] == index
        }


def test_the_host_location_of_a_gpu_matches_sysfs(gpus: dict[str, GpuFacts]) -> None:
    for uuid, gpu in gpus.items():
        folder = pci.function(HOST, gpu.pci_bus_id)
        if not folder.exists():
            pytest.skip(f"numaNode and pcieRoot were not tested: there is no {folder} here")
        found = pci.location(HOST, gpu.pci_bus_id)
        number = int((folder / "numa_node").read_text())
        assert {"numaNode": found.numa_node} == {"numaNode": number if number >= 0 else None}, uuid
        assert found.pcie_root is not None, uuid
        assert found.pcie_root in str(folder.resolve()), uuid


def test_events_can_be_waited_for(hardware: Hardware, gpus: dict[str, GpuFacts]) -> None:
    events = hardware.nvml.events(list(gpus))
    assert list(events.unmonitored) == []
    event = events.wait(1)
    events.close()
    assert event is None or event.uuid in gpus  # an XID of another user's program, on a machine in use


def test_the_recovery_action_matches_nvidia_smi(hardware: Hardware, gpus: dict[str, GpuFacts]) -> None:
    """An empty one is none, or that of a driver that knows no such thing."""
    for uuid, text in in_log("gpu_recovery_action").items():
        try:
            action = hardware.nvml.recovery_action(uuid)
        except NvmlError as error:
            assert error.code is NvmlReturn.NOT_SUPPORTED
            action = RecoveryAction.NONE
        assert (action is RecoveryAction.NONE) == (text == ""), (action, text)
