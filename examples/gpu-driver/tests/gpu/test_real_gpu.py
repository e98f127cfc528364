"""On a machine with a GPU: NVML through this driver tells what nvidia-smi shows, and nothing is changed."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpu_driver.host import pci
from gpu_driver.host.driver_root import find_library, library_folders
from gpu_driver.nvml.backend import ComputeMode, GpuFacts, NvmlBackend, RecoveryAction
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from tests.gpu import nvidia_smi

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def nvml() -> Iterator[NvmlBackend]:
    from gpu_driver.nvml.library import NvmlLibrary

    root = Path(os.environ.get("DRIVER_ROOT", "/"))
    library = find_library(root)
    if library is None:
        pytest.skip(f"no GPU was tested: NVML is in none of {library_folders(root)}; set DRIVER_ROOT")
    opened = NvmlLibrary(library)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def gpus(nvml: NvmlBackend) -> dict[str, GpuFacts]:
    found = {gpu.uuid: gpu for gpu in nvml.gpus()}
    if not found:
        pytest.skip("no GPU was tested: NVML lists none")
    return found


def shown(attribute: str) -> dict[str, str]:
    """An attribute of each GPU, by UUID."""
    try:
        return dict(zip(nvidia_smi.query("uuid"), nvidia_smi.query(attribute), strict=True))
    except nvidia_smi.Refused as error:
        pytest.skip(f"this nvidia-smi does not tell {attribute}: {error}")


def test_the_same_gpus_are_listed(gpus: dict[str, GpuFacts]) -> None:
    assert set(gpus) == set(nvidia_smi.query("uuid"))


_ATTRIBUTES: dict[str, Callable[[GpuFacts], str]] = {
    "name": lambda gpu: gpu.name,
    "pci.bus_id": lambda gpu: f"0000{gpu.pci_bus_id}".upper(),
    "pci.device_id": lambda gpu: f"0x{gpu.pci_device_id:04X}10DE",
    "compute_cap": lambda gpu: ".".join(map(str, gpu.compute_capability)),
    "serial": lambda gpu: gpu.serial or "[N/A]",
    "memory.total": lambda gpu: "[N/A]" if gpu.memory_bytes is None else str(gpu.memory_bytes >> 20),
    "addressing_mode": lambda gpu: gpu.addressing_mode or "[N/A]",
}


@pytest.mark.parametrize("attribute", _ATTRIBUTES)
def test_each_attribute_is_what_nvidia_smi_shows(attribute: str, gpus: dict[str, GpuFacts]) -> None:
    assert {uuid: _ATTRIBUTES[attribute](gpu) for uuid, gpu in gpus.items()} == shown(attribute)


@pytest.mark.parametrize(
    ("element", "value"),
    [
        ("minor_number", lambda gpu: str(gpu.minor)),
        ("product_architecture", lambda gpu: gpu.architecture),
        ("product_brand", lambda gpu: gpu.brand.replace(" ", "").lower()),
    ],
)
def test_each_element_is_what_nvidia_smi_shows(
    element: str, value: Callable[[GpuFacts], str], gpus: dict[str, GpuFacts]
) -> None:
    for gpu in ElementTree.fromstring(nvidia_smi.run("-q", "-x")).iter("gpu"):
        text, uuid = gpu.findtext(element, ""), gpu.findtext("uuid", "")
        expected = text.replace(" ", "").lower() if element == "product_brand" else text
        assert {element: value(gpus[uuid])} == {element: expected}, uuid


def test_versions_are_what_nvidia_smi_shows(nvml: NvmlBackend, gpus: dict[str, GpuFacts]) -> None:
    log = ElementTree.fromstring(nvidia_smi.run("-q", "-x"))
    cuda = ".".join(map(str, nvml.cuda_driver_version()))
    shown_versions = {name: log.findtext(name) for name in ("driver_version", "cuda_version")}
    assert {"driver_version": nvml.driver_version(), "cuda_version": cuda} == shown_versions


def test_modes_are_what_nvidia_smi_shows(nvml: NvmlBackend, gpus: dict[str, GpuFacts]) -> None:
    modes = {
        "Default": ComputeMode.DEFAULT,
        "Prohibited": ComputeMode.PROHIBITED,
        "Exclusive_Process": ComputeMode.EXCLUSIVE_PROCESS,
    }
    assert {uuid: nvml.compute_mode(uuid) for uuid in gpus} == {
        uuid: modes[text] for uuid, text in shown("compute_mode").items()
    }
    for attribute, which in (("mig.mode.current", "current"), ("mig.mode.pending", "pending")):
        for uuid, text in shown(attribute).items():
            assert gpus[uuid].mig_capable == (text in {"Enabled", "Disabled"}), (attribute, text)
            if gpus[uuid].mig_capable:
                assert getattr(nvml.mig_mode(uuid), which) == (text == "Enabled"), (attribute, text)


def test_mig_profiles_and_their_places_are_what_nvidia_smi_lists(nvml: NvmlBackend, gpus: dict[str, GpuFacts]) -> None:
    try:
        rows = nvidia_smi.profiles(nvidia_smi.run("mig", "-lgip"))
        places = nvidia_smi.placements(nvidia_smi.run("mig", "-lgipp"))
        ours = {uuid: nvml.gpu_instance_profiles(uuid) for uuid, gpu in gpus.items() if gpu.mig_capable}
    except nvidia_smi.Refused as error:
        pytest.skip(f"MIG profiles were not tested: {error}")
    except NvmlError as error:
        if error.code is not NvmlReturn.NO_PERMISSION:
            raise
        pytest.skip("MIG profiles were not tested: NVML tells their places to root alone")
    if not rows:
        pytest.skip("MIG profiles were not tested: nvidia-smi mig -lgip lists none")
    uuids = nvidia_smi.query("uuid")
    for index, expected in rows.items():
        found = ours[uuids[index]]
        assert sorted(map(nvidia_smi.row_of, found), key=lambda row: row.id) == sorted(expected, key=lambda row: row.id)
        assert {(index, item.id): set(item.placements) for item in found} == {
            key: set(value) for key, value in places.items() if key[0] == index
        }


def test_where_a_gpu_is_on_the_host_is_what_its_sysfs_says(gpus: dict[str, GpuFacts]) -> None:
    for uuid, gpu in gpus.items():
        folder = pci.function(Path("/"), gpu.pci_bus_id)
        if not folder.exists():
            pytest.skip(f"numaNode and pcieRoot were not tested: there is no {folder} here")
        found = pci.location(Path("/"), gpu.pci_bus_id)
        number = int((folder / "numa_node").read_text())
        assert {"numaNode": found.numa_node} == {"numaNode": number if number >= 0 else None}, uuid
        assert found.pcie_root is not None, uuid
        assert found.pcie_root in str(folder.resolve()), uuid


def test_health_can_be_asked_and_listened_to(nvml: NvmlBackend, gpus: dict[str, GpuFacts]) -> None:
    events = nvml.events(list(gpus))
    assert list(events.unmonitored) == []
    assert events.wait(1) is None
    events.close()
    for uuid in gpus:
        try:
            assert nvml.recovery_action(uuid) is RecoveryAction.NONE
        except NvmlError as error:
            assert error.code is NvmlReturn.NOT_SUPPORTED  # an old driver
