"""What the tests share: a fake node, and a bench on it."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
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
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.faults import Faults
from gpu_driver.nvml.fake.hardware import fake_hardware
from gpu_driver.nvml.fake.profile import Fault
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
    def folder(self) -> Path:
        """What the fake GPUs and the driver store."""
        return self.hardware.host.parent

    @property
    def devices(self) -> dict[str, Gpu]:
        """What claims can get now, with no partition of the driver's own left out."""
        return discover(self.hardware, self.settings, self.folder)

    @property
    def first(self) -> str:
        """The UUID of the first GPU."""
        return self.nvml.profile.gpus[0].uuid

    @property
    def journal(self) -> list[Path]:
        """What the driver has begun and not ended."""
        return list((self.folder / "journal").glob("*"))

    def change(self, **facts: object) -> None:
        """Change the state of the first GPU."""
        with self.nvml.state.changing() as state:
            for name, value in facts.items():
                setattr(state.gpus[self.first], name, value)

    def fail(self, *calls: Fault) -> None:
        """Let these calls of NVML fail from now on, and no others."""
        self.nvml._faults = Faults(calls, self.nvml.state)

    def with_types(self, **facts: object) -> None:
        """Let all GPUs be of types that are others in some fields."""
        profile = self.nvml.profile
        types = {name: kind.model_copy(update=facts) for name, kind in profile.gpu_types.items()}
        self.nvml.profile = profile.model_copy(update={"gpu_types": types})


def discover(
    hardware: Hardware, settings: Settings, folder: Path, own: Sequence[tuple[str, int, int]] = ()
) -> dict[str, Gpu]:
    """Return the devices that the driver would publish, by name; ``own`` are its own partitions."""
    found = inventory(find(hardware, own, LastSeen(folder / "gpus.json")), settings)
    return {device.name: device for pool in found.pools for device in pool.devices}


@pytest.fixture
def profile() -> str:
    return "h100"


@pytest.fixture
def settings() -> Settings:
    return Settings(dynamic_mig=True, shared_mig=True)


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


@pytest.fixture(scope="session")
def may_mount() -> None:
    done = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("containers of make test-gpu are not tested: this user may not mount; run this as root")
