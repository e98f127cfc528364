"""``make test-gpu``, rehearsed: its tests on fake GPUs and programs, so that they are right where a GPU is."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_driver.nvml.fake.hardware import fake_hardware
from gpu_driver.nvml.fake.profile import Profile, load
from tests import smi_double
from tests.conftest import two_gpus
from tests.library_double import ALL_EVENTS, describe

TESTS = Path(__file__).parent
_MPS = "nvidia-cuda-mps-control"


@dataclass
class Machine:
    """A fake one, on which ``make test-gpu`` runs.

    Attributes:
        folder: where another user may look, too; a copy of the tests is in it, since they record beside them.
        library: our ``libnvidia-ml.so.1``.
        programs: all that is on the PATH.
        environment: for the tests and what they start.
    """

    folder: Path
    library: Path
    programs: Path
    environment: dict[str, str]

    @property
    def recording(self) -> Path:
        """What the tests record."""
        return self.folder / "tests/recorded/nvidia-cuda-mps-control.json"

    def has(self, profile: Path, *, shown: Profile | None = None, events: int = ALL_EVENTS, **smi: Any) -> None:
        """Have these GPUs.

        Args:
            profile: of the GPUs.
            shown: what nvidia-smi shows, where that is not the same.
            events: that the driver knows.
            smi: of the double of nvidia-smi.
        """
        hardware = fake_hardware(str(profile), self.folder / "fake")
        shutil.copy(hardware.needed(_MPS), self.programs)
        known, text = load(str(profile)), self.folder / "gpus"
        text.write_text(describe(known, events), encoding="utf-8")
        smi_double.install(shown or known, self.programs, **smi)
        self.environment |= {
            **hardware.environment,
            "DRIVER_ROOT": str(self.library.parents[2]),
            "HOST_ROOT": str(hardware.host),
            "NVML_DOUBLE_PROFILE": str(text),
        }

    def rehearse(self, *, as_root: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the tests of ``make test-gpu``, as if by root or by another user."""
        plugin = f"from tests import mps_session\n\nmps_session.is_root = lambda: {as_root}\n"
        (self.folder / "rehearsed_user.py").write_text(plugin)
        command = ["-m", "gpu", "-rsw", "-q", "-p", "no:cacheprovider", "-p", "rehearsed_user", "tests/gpu"]
        variables = {"PATH": str(self.programs), "PYTHONPATH": ":".join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, "-m", "pytest", *command],
            cwd=self.folder,
            env={**os.environ, **self.environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(nvml_library: Path) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="gpu-") as made:
        folder, programs = Path(made), Path(made) / "bin"
        folder.chmod(0o755)
        programs.mkdir()
        shutil.copytree(TESTS, folder / "tests", ignore=shutil.ignore_patterns("recorded", "__pycache__"))
        yield Machine(folder, nvml_library, programs, {})


def not_tested(done: subprocess.CompletedProcess[str]) -> set[str]:
    """What each skip says: its words before the colon."""
    reasons = re.findall(r"^SKIPPED \[\d+\] \S+?: (.*)$", done.stdout, re.MULTILINE)
    return {reason.split(":")[0] for reason in reasons}


def failed(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The tests that failed, and those after which a fixture did."""
    return set(re.findall(r"^_+ (?:ERROR at teardown of )?(\S+) _+$", done.stdout, re.MULTILINE))


def test_gpu_tests_pass_if_nvml_and_programs_agree(machine: Machine) -> None:
    machine.has(two_gpus("h100", machine.folder))
    done = machine.rehearse()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert not_tested(done) == {
        "MIG profiles were not tested",
        "claims were not tested",
    }  # MIG is off, and CUDA is missing
    assert "answers otherwise" not in done.stdout  # the double was recorded, and compared with itself
    assert str(machine.recording) in done.stdout
    recorded: dict[str, Any] = json.loads(machine.recording.read_text(encoding="utf-8"))
    assert recorded["gpu"] == "NVIDIA H100 80GB HBM3"
    asked = [answer["input"] for answer in recorded["root"]["answers"]]
    assert asked[-4:] == ["start_server -uid USER", "get_server_list", "quit", "get_server_list"]


def test_gpu_tests_pass_on_divided_gpus(machine: Machine) -> None:
    machine.has(two_gpus("a100-mig", machine.folder))
    done = machine.rehearse()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert not_tested(done) == {"MPS was not tested", "claims were not tested"}


def test_gpu_tests_skip_what_an_old_driver_or_unprivileged_user_cannot_do(machine: Machine) -> None:
    old: dict[str, Any] = {
        "lists_profiles": True,
        "without": ["addressing_mode", "compute-policy --list"],
        "events": 0x8,
    }
    machine.has(two_gpus("h100", machine.folder), **old)
    (machine.programs / _MPS).unlink()
    machine.environment |= {"NVML_DOUBLE_NOT_ROOT": "yes", "HOST_ROOT": str(machine.folder)}
    done = machine.rehearse(as_root=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert not_tested(done) == {
        "addressing_mode was not tested",
        "numaNode and pcieRoot were not tested",
        "what is published was not tested",
        "MIG profiles were not tested",
        "MPS was not tested",
        "claims were not tested",
    }


def test_gpu_tests_report_differences_and_fail_on_changed_settings(machine: Machine) -> None:
    profile = two_gpus("h100", machine.folder)
    other = yaml.safe_load(profile.read_text(encoding="utf-8"))
    other["gpuTypes"]["h100"]["memoryMiB"] -= 1
    machine.has(profile, shown=Profile.model_validate(other), afterwards={"persistence_mode": "Disabled"})
    (machine.folder / "fake/mps-fault").write_text("ignores-limits")
    done = machine.rehearse()
    assert done.returncode == 1
    assert "Enabled before, Disabled after" in done.stdout
    assert f"the double of {_MPS} answers otherwise: set_default_active_thread_percentage 25: recorded" in done.stdout
    assert failed(done) == {
        "test_nvml_returns_the_values_of_nvidia_smi[memory.total]",
        "test_published_gpus_and_partitions_match_nvidia_smi",
        "test_limits_are_set_and_read_back",  # the last one, after which settings are compared
    }


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        ("nvidia-smi", "nvidia-smi is not on the PATH"),
        ("a driver", "exit code 2"),
        ("GPUs", "nvidia-smi lists none"),
        ("NVML", "set DRIVER_ROOT"),
        ("rights", "run this as root"),
    ],
)
def test_gpu_tests_without_a_gpu_report_that_none_was_tested(machine: Machine, lacks: str, reason: str) -> None:
    refused = {"a driver": ["-q -x"]}.get(lacks, [])
    machine.has(two_gpus("a100-mig", machine.folder), without=refused)
    if lacks == "nvidia-smi":
        (machine.programs / "nvidia-smi").unlink()
    if lacks == "GPUs":
        smi_double.install(load("h100").model_copy(update={"gpus": ()}), machine.programs)
    if lacks == "NVML":
        machine.environment["DRIVER_ROOT"] = str(machine.folder)
    if lacks == "rights":
        machine.environment["NVML_DOUBLE_NOT_ROOT"] = "yes"
    done = machine.rehearse(as_root=lacks != "rights")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" not in done.stdout
    assert reason in done.stdout
    assert not_tested(done) <= {"no GPU was tested", "MPS was not tested", "claims were not tested"}
