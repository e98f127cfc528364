"""The driver on NVIDIA's binding and our own library: the same devices as on the fake, and MIG that comes and goes.

Sysfs, procfs and device nodes are those of the fake's tree, which has the partition that the test makes.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dra_kit.testing import unit

from gpu_driver.devices.inventory import inventory
from gpu_driver.devices.last_seen import LastSeen
from gpu_driver.devices.provider import find
from gpu_driver.driver import driver
from gpu_driver.hardware import Hardware
from gpu_driver.nvml.backend import Placement
from gpu_driver.nvml.fake.hardware import fake_hardware
from gpu_driver.nvml.fake.profile import load
from gpu_driver.settings import Settings
from tests.conftest import discover
from tests.library_double import LibraryDouble

SETTINGS = Settings(dynamic_mig=True, shared_mig=True)


@pytest.fixture
def fake(tmp_path: Path, profile: str) -> Hardware:
    return fake_hardware(profile, tmp_path / "fake")


@pytest.fixture
def real(fake: Hardware, profile: str, nvml_library: Path, tmp_path: Path) -> Iterator[Hardware]:
    from gpu_driver.nvml.library import NvmlLibrary

    LibraryDouble(nvml_library, load(profile), tmp_path / "gpus")
    nvml = NvmlLibrary(nvml_library)
    yield replace(fake, nvml=nvml)
    nvml.close()


@pytest.mark.parametrize("profile", ["h100", "a100-t4", "gb200", "l4"])
def test_real_nvml_finds_the_devices_of_the_fake(fake: Hardware, real: Hardware, tmp_path: Path) -> None:
    ours, theirs = (
        inventory(find(hardware, (), LastSeen(tmp_path / f"{name}.json")), SETTINGS)
        for name, hardware in (("ours", fake), ("theirs", real))
    )
    assert theirs == ours


def test_a_partition_is_created_and_deleted_with_its_claim(fake: Hardware, real: Hardware, tmp_path: Path) -> None:
    uuid = real.nvml.gpus()[0].uuid
    fake.nvml.set_mig_mode(uuid, enabled=True)
    twin = fake.nvml.create_gpu_instance(uuid, 9, Placement(0, 4))
    fake.nvml.create_compute_instance(uuid, twin.id, 2)
    devices = discover(real, SETTINGS, tmp_path)
    with unit(driver, hardware=real, settings=SETTINGS) as bench:
        [prepared] = bench.prepare("train", [devices["gpu-0-mig-3g40gb-9-0"]])
        [made] = real.nvml.gpu_instances(uuid)
        assert made.placement == Placement(0, 4)
        assert prepared.env["GPU_0_MIG_3G40GB_9_0_UUID"] == made.compute_instances[0].mig_uuid
        bench.unprepare("train")
    assert real.nvml.gpu_instances(uuid) == []
    assert not real.nvml.mig_mode(uuid).current
