"""``make test-gpu``, rehearsed: its tests on pretended GPUs and programs, so that they are right where a GPU is."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_driver.nvml.fake.hardware import fake_hardware
from gpu_driver.nvml.fake.profile import load
from tests import pretended_smi
from tests.pretended_library import describe

TESTS = Path(__file__).parent
_GPUS = "h100"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where another user may look, too; a copy of the tests is in it, since they record beside them."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as made:
        Path(made).chmod(0o755)
        shutil.copytree(TESTS, Path(made) / "tests", ignore=shutil.ignore_patterns("recorded", "__pycache__"))
        yield Path(made)


def rehearse(folder: Path, *paths: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What ``make test-gpu`` runs, where these folders are all that is on the PATH."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    variables = {**os.environ, **environment, "PATH": ":".join(map(str, paths)), "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def test_they_pass_where_nvml_and_programs_say_the_same(folder: Path, nvml_library: Path) -> None:
    profile, told = load(_GPUS), folder / "told"
    told.write_text(describe(profile), encoding="utf-8")
    hardware = fake_hardware(_GPUS, folder / "fake")
    programs = hardware.programs[0]
    pretended_smi.install(profile, programs)
    done = rehearse(
        folder,
        programs,
        **{**hardware.environment, "DRIVER_ROOT": str(nvml_library.parents[2]), "NVML_DOUBLE_PROFILE": str(told)},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert not re.search(r"\d+ (failed|error)", done.stdout)
    not_tested = re.findall(r"^SKIPPED .*?: (.*)$", done.stdout, re.MULTILINE)
    assert all("numaNode and pcieRoot were not tested" in reason for reason in not_tested), not_tested
    assert (folder / "tests/recorded/nvidia-cuda-mps-control.json").exists()


def test_without_a_gpu_each_says_that_none_was_tested(folder: Path) -> None:
    done = rehearse(folder, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" not in done.stdout
    assert "no GPU was tested: nvidia-smi is not on the PATH" in done.stdout
