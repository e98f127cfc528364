"""GPUs and network interfaces of one PCIe root, with the GPU driver of dra-kit's examples."""

from __future__ import annotations

from pathlib import Path

import pytest
from dra_kit.testing import sandbox

PROJECT = Path(__file__).parents[1]
GPUS = PROJECT.parent / "gpu-driver"


@pytest.mark.skipif(not GPUS.exists(), reason="the GPU driver is not next to this project")
def test_gpu_and_interface_are_on_one_pcie_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GPUS / "src"))
    settings = {"fake_gpus": "h100"}
    with sandbox(str(GPUS), str(PROJECT), settings=settings) as bed, bed.harness("pair", directory=tmp_path) as harness:
        harness.apply(PROJECT / "stories" / "gpu-and-nic" / "pod.yaml")
        harness.wait("trainer")
        results = harness.claim("pair")["status"]["allocation"]["devices"]["results"]
        names = {item["driver"]: item["device"] for item in results}
        published = harness.devices()
        gpu, nic = (
            published[names[name]].attributes["resource.kubernetes.io/pcieRoot"]
            for name in ("gpu.nvidia.com", "nic.example.com")
        )
        assert gpu == nic
