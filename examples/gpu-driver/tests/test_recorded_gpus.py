"""Fake GPUs are as real ones were: what NVML answered on an H100 and an H200 (driver 580.159.04, MIG off)."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_driver.nvml.backend import GpuInstanceProfile, Placement
from gpu_driver.nvml.facts import ARCHITECTURES, BRANDS
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.profile import load

RECORDED = Path(__file__).parent / "recorded"
_CORES_OF_A_MULTIPROCESSOR = 128


def recorded(name: str) -> dict[str, Any]:
    return dict(json.loads((RECORDED / f"nvml-{name}.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_a_fake_gpu_has_the_properties_of_a_real_one(name: str, tmp_path: Path) -> None:
    real, fake = recorded(name), FakeNvml(load(name), tmp_path).gpus()[0]
    assert fake.memory_bytes is not None
    assert {
        "name": fake.name,
        "brand": fake.brand,
        "architecture": fake.architecture,
        "computeCapability": [*fake.compute_capability],
        "pciDeviceId": fake.pci_device_id,
        "memoryMiB": fake.memory_bytes >> 20,
        "cores": fake.multiprocessors * _CORES_OF_A_MULTIPROCESSOR,
    } == {
        "name": real["name"],
        "brand": BRANDS[real["brand"]],
        "architecture": ARCHITECTURES[real["architecture"]],
        **{key: real[key] for key in ("computeCapability", "pciDeviceId", "memoryMiB", "cores")},
    }
    assert {kind.bar_mib for kind in load(name).gpu_types.values()} == {real["barMiB"]}


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_a_fake_gpu_can_be_divided_as_a_real_one(name: str, tmp_path: Path) -> None:
    nvml = FakeNvml(load(name), tmp_path)
    expected = [
        GpuInstanceProfile(
            id=row["id"],
            name=row["name"],
            slices=row["sliceCount"],
            memory_mib=row["memorySizeMB"],
            multiprocessors=row["multiprocessorCount"],
            copy_engines=row["copyEngineCount"],
            decoders=row["decoderCount"],
            encoders=row["encoderCount"],
            jpeg_engines=row["jpegCount"],
            ofa_engines=row["ofaCount"],
            placements=tuple(Placement(start, size) for start, size in row["placements"]),
        )
        for row in recorded(name)["gpuInstanceProfiles"]
    ]
    found = nvml.gpu_instance_profiles(nvml.gpus()[0].uuid)
    assert sorted(found, key=lambda profile: profile.id) == sorted(expected, key=lambda profile: profile.id)
    table = next(iter(load(name).gpu_types.values())).mig
    assert table is not None
    assert {row.id: (row.enum, row.instances) for row in table.gi} == {
        row["id"]: (row["enum"], row["instanceCount"]) for row in recorded(name)["gpuInstanceProfiles"]
    }
