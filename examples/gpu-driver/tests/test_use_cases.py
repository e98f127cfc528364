"""The twelve use cases: each story in the sandbox on fitting GPUs, which are as they were when it is over."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_driver.nvml.fake.fake import FakeNvml, first_state
from gpu_driver.nvml.fake.profile import load

PROJECT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """A story, the GPUs it needs, and what the driver must be told."""

    profile: str
    flags: tuple[str, ...] = ()


CASES = {
    "01-controlled-sharing": Case("a100-40gb"),
    "02-complex-constraints": Case("a100-40gb"),
    "03-several-types": Case("a100-t4"),
    "04-time-slicing": Case("a100-40gb"),
    "05-mps": Case("a100-40gb"),
    "06-vfio-swap": Case("l4", ("--passthrough",)),
    "07-management-pods": Case("a100-40gb"),
    "08-gpu-and-nic": Case("h100"),
    "09-mig-on-one-gpu": Case("a100-mig"),
    "10-dynamic-mig": Case("h100", ("--dynamic-mig",)),
    "11-mig-shared-memory": Case("h100", ("--dynamic-mig", "--shared-mig")),
    "12-per-container-policy": Case("h100", ("--dynamic-mig",)),
    "13-extended-resource": Case("a100-40gb"),
    "14-shares": Case("a100-40gb", ("--shared-memory", "memory")),
    "15-sixteen-gpus": Case("h100-x16", ("--dynamic-mig",)),
}


def test_every_story_has_a_case() -> None:
    assert sorted(path.parent.name for path in PROJECT.glob("stories/*/expect.yaml")) == sorted(CASES)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: sockets of MPS lie below it, and pytest's own may be too long for them."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as made:
        yield Path(made)


@pytest.mark.parametrize("name", CASES)
def test_a_use_case(name: str, folder: Path) -> None:
    case = CASES[name]
    told = ["--fake-gpus", case.profile, "--fake-folder", str(folder), *case.flags]
    command = [sys.executable, "-m", "dra_kit", "sandbox", ".", "--story", f"stories/{name}", *told]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    profile = load(case.profile)
    left = FakeNvml(profile, folder).state.read()
    assert left == first_state(profile)
