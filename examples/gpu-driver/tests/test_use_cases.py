"""The use cases: each story by the command of its README, on fitting GPUs, which are unchanged when it is over."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_driver.nvml.fake.fake import FakeNvml, first_state
from gpu_driver.nvml.fake.profile import load

PROJECT = Path(__file__).parents[1]


COMMAND = re.compile(r"^\$ dra-kit (sandbox \. --story stories/(\S+) --fake-gpus (\S+).*)$", re.MULTILINE)
"""What shows a story; its README has it."""
STORIES = sorted(path.parent.name for path in PROJECT.glob("stories/*/expect.yaml"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: sockets of MPS lie below it, and pytest's own may be too long for them."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as made:
        yield Path(made)


@pytest.mark.parametrize("name", STORIES)
def test_a_use_case(name: str, folder: Path) -> None:
    readme = (PROJECT / "stories" / name / "README.md").read_text(encoding="utf-8")
    [(command, story, gpus)] = COMMAND.findall(readme)
    assert story == name
    arguments = [*command.split(), "--fake-folder", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "dra_kit", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    profile = load(gpus)
    left = FakeNvml(profile, folder).state.read()
    assert left == first_state(profile)
