"""What the tests share: a fake node, and a bench on it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from dra_kit.testing import BlockingBench, unit
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from gpu_driver.devices.gpu import Gpu
from gpu_driver.devices.inventory import inventory
from gpu_driver.devices.last_seen import LastSeen
from gpu_driver.devices.provider import find
from gpu_driver.driver import driver
from gpu_driver.hardware import Hardware
from gpu_driver.host.folders import unmount
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.hardware import fake_hardware
from gpu_driver.settings import Settings
from tests.library_double import build

IS_ROOT = os.geteuid() == 0

# no test depends on how fast the machine is
hypothesis_settings.register_profile("slow machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("slow machine")


@dataclass
class Node:
    """A fake node, its devices by name, and the bench that prepares claims on it."""

    hardware: Hardware
    nvml: FakeNvml
    settings: Settings
    bench: BlockingBench

    @property
    def devices(self) -> dict[str, Gpu]:
        """What claims can get now, with no partition of the driver's own left out."""
        found = inventory(find(self.hardware, (), LastSeen(self.hardware.host.parent / "gpus.json")), self.settings)
        return {device.name: device for pool in found.pools for device in pool.devices}

    @property
    def first(self) -> str:
        """The UUID of the first GPU."""
        return self.nvml.profile.gpus[0].uuid


@pytest.fixture
def profile() -> str:
    return "h100"


@pytest.fixture
def settings() -> Settings:
    return Settings(dynamic_mig=True, shared_mig=True)


@contextmanager
def mps_root() -> Iterator[Path]:
    """Make a folder for those of MPS daemons: with a short path, since pytest's are too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="mps-") as made:
        root = Path(made)
        try:
            yield root
        finally:
            for path in root.iterdir():
                unmount(path)


def two_gpus(profile: str, folder: Path) -> Path:
    """A profile cut down to its first two GPUs: what is true of two is true of eight, and made four times as fast."""
    whole = yaml.safe_load(files("gpu_driver").joinpath("profiles", f"{profile}.yaml").read_text(encoding="utf-8"))
    smaller = folder / f"{profile}.yaml"
    smaller.write_text(yaml.safe_dump({**whole, "gpus": whole["gpus"][:2]}), encoding="utf-8")
    return smaller


@pytest.fixture
def node(tmp_path: Path, profile: str, settings: Settings) -> Iterator[Node]:
    hardware = fake_hardware(str(two_gpus(profile, tmp_path)), tmp_path)
    nvml = hardware.nvml
    assert isinstance(nvml, FakeNvml)
    with unit(driver, hardware=hardware, settings=settings) as bench:
        yield Node(hardware, nvml, settings, bench)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our own ``libnvidia-ml.so.1``, in a driver root."""
    pytest.importorskip("pynvml", reason="the real NVML is not tested: nvidia-ml-py is not installed")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the NVML binding is not tested: gcc is needed to build a double of NVIDIA's library")
    return build(compiler, tmp_path_factory.mktemp("driver-root"))
