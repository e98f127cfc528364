"""The stories, each by the command of its README."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from dra_kit.testing import Harness

from tests.machines import PROJECT

COMMAND = re.compile(r"^\$ dra-kit (sandbox \. --story stories/(\S+).*)$", re.MULTILINE)
PRINTED = {"aligned-memory": ("memory nodes 1 ", "hugepages of 1GB: 4294967296 bytes ")}
"""What the output says that a story cannot expect."""
STORIES = sorted(path.parent.name for path in PROJECT.glob("stories/*/expect.yaml"))


@pytest.mark.parametrize("name", STORIES)
def test_story(name: str) -> None:
    readme = (PROJECT / "stories" / name / "README.md").read_text(encoding="utf-8")
    [(command, story)] = COMMAND.findall(readme)
    assert story == name
    done = subprocess.run(
        [sys.executable, "-m", "dra_kit", *shlex.split(command)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert all(text in done.stdout for text in PRINTED.get(name, ())), done.stdout[-3000:]


def test_demo(dra: Harness) -> None:
    dra.apply(PROJECT / "demo" / "pod.yaml")
    assert dra.wait("demo", phase="Running").containers["main"].cpuset == "1"


def test_amount_is_rounded_up_to_whole_cpus(dra: Harness) -> None:
    text = (PROJECT / "demo" / "pod.yaml").read_text(encoding="utf-8")
    dra.apply(text.replace('/cpu: "1"', "/cpu: 2500m"))
    assert dra.wait("demo", phase="Running").containers["main"].cpuset == "1-2,33"
