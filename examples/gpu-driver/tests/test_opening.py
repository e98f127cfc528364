"""Which hardware a node has: real GPUs below the driver root, fake ones on demand, or an error that helps."""

import shutil
from pathlib import Path

import dra_kit as dra
import pytest
from dra_kit.testing import unit

from gpu_driver.driver import driver
from gpu_driver.hardware import Hardware
from gpu_driver.nvml.fake.profile import load
from gpu_driver.settings import Settings
from tests.library_double import LibraryDouble


def opened(settings: Settings) -> Hardware:
    with unit(driver, settings=settings):
        hardware = driver.provider.hardware
        assert isinstance(hardware, Hardware)
        return hardware


@pytest.fixture
def root(nvml_library: Path) -> Path:
    return nvml_library.parents[2]


@pytest.fixture
def library(nvml_library: Path, tmp_path: Path) -> LibraryDouble:
    return LibraryDouble(nvml_library, load("l4"), tmp_path / "gpus")


def test_the_library_of_the_driver_root_is_opened(library: LibraryDouble, root: Path) -> None:
    hardware = opened(Settings(host_root=root))
    assert [gpu.name for gpu in hardware.nvml.gpus()] == ["NVIDIA L4"] * 4
    assert (hardware.host, hardware.fake) == (root, False)
    assert root / "usr/bin" in hardware.programs
    hardware.nvml.close()


def test_the_driver_root_is_resolved_below_the_host_root(library: LibraryDouble, root: Path) -> None:
    hardware = opened(Settings(host_root=root.parent, driver_root=Path("/") / root.name))
    assert hardware.host == root.parent
    assert root / "usr/bin" in hardware.programs
    assert hardware.environment["LD_PRELOAD"] == str(root / "usr/lib64/libnvidia-ml.so.1")
    hardware.nvml.close()


def test_a_linked_library_is_opened_from_its_real_path(
    library: LibraryDouble, nvml_library: Path, tmp_path: Path
) -> None:
    """``/`` of the link is the host's."""
    host = tmp_path / "host"
    for folder in ("usr/lib64", "image"):
        (host / folder).mkdir(parents=True)
    shutil.copy(nvml_library, host / "image/nvml")
    (host / "usr/lib64/libnvidia-ml.so.1").symlink_to("/image/nvml")
    hardware = opened(Settings(host_root=host))
    assert [gpu.name for gpu in hardware.nvml.gpus()] == ["NVIDIA L4"] * 4
    hardware.nvml.close()


def test_linked_programs_are_found_at_their_real_paths(
    library: LibraryDouble, nvml_library: Path, tmp_path: Path
) -> None:
    """As Debian's alternatives do; ``/`` of a link to a folder is the host's, too."""
    host = tmp_path / "host"
    for folder in ("usr/lib64", "usr/bin", "etc/alternatives", "image/current", "system/bin"):
        (host / folder).mkdir(parents=True)
    shutil.copy(nvml_library, host / "usr/lib64/libnvidia-ml.so.1")
    (host / "usr/bin/nvidia-smi").symlink_to("/etc/alternatives/nvidia-smi")
    (host / "etc/alternatives/nvidia-smi").symlink_to("../../usr/../image/current/nvidia-smi")
    (host / "opt").symlink_to("/system")
    for program in ("image/current/nvidia-smi", "system/bin/nvidia-ctk"):
        (host / program).write_text("#!/bin/sh\necho it runs\n")
        (host / program).chmod(0o755)
    (host / "usr/bin/nvidia-cuda-mps-control").symlink_to("/image/nowhere")
    (host / "usr/sbin").symlink_to("sbin")  # in a circle
    hardware = opened(Settings(host_root=host))
    assert hardware.program("nvidia-smi") == str(host / "image/current/nvidia-smi")
    assert hardware.run("nvidia-ctk") == "it runs\n"
    assert hardware.program("nvidia-cuda-mps-control") is None
    hardware.nvml.close()


def test_without_a_driver_the_error_names_root_library_and_flag(tmp_path: Path) -> None:
    with pytest.raises(dra.ConfigurationError) as error:
        opened(Settings(host_root=tmp_path, driver_root=Path("/run/nvidia/driver")))
    text = str(error.value)
    assert "\n" not in text
    for part in (f"{tmp_path}/run/nvidia/driver", "libnvidia-ml.so.1", "--driver-root", "--fake-gpus"):
        assert part in text


def test_an_invalid_library_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    broken = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    broken.parent.mkdir(parents=True)
    broken.write_text("no library")
    with pytest.raises(dra.ConfigurationError, match=rf"{broken}.*--fake-gpus"):
        opened(Settings(host_root=tmp_path))


def test_opening_a_driver_that_is_not_loaded_yet_is_retried(library: LibraryDouble, root: Path) -> None:
    library.permit(driver=False)
    with pytest.raises(dra.TransientError, match="DRIVER_NOT_LOADED"):
        opened(Settings(host_root=root))
    library.permit()
    hardware = opened(Settings(host_root=root))
    assert hardware.nvml.driver_version() == load("l4").driver_version
    hardware.nvml.close()


def test_fake_gpus_take_precedence_over_real_gpus(library: LibraryDouble, root: Path) -> None:
    hardware = opened(Settings(host_root=root, fake_gpus="h100"))
    assert hardware.fake
    assert library.opened == 0
