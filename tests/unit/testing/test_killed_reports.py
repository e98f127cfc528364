"""How pytest shows tests that are marked with ``dra_killed``: each run once, with one outcome."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

CONFTEST = """\
from contextlib import contextmanager
import pytest
from dra_kit.testing.bed import FailpointNotReached


class Bed:
    @contextmanager
    def harness(self, name, *, killed_after="", **_):
        yield killed_after
        if killed_after.startswith("EFFECT"):
            raise FailpointNotReached(f"the driver never reached {killed_after}")


@pytest.fixture(scope="session")
def dra_bed():
    return Bed()
"""
TESTS = """\
import pytest


@pytest.mark.dra_killed
def test_every_step(dra):
    pass


@pytest.mark.dra_killed("EFFECT_APPLIED", "CLAIM_STORED")
def test_two_steps(dra):
    assert dra != "CLAIM_STORED"
"""


@pytest.mark.processes
def test_step_that_is_not_reached_is_shown_once_as_skipped_or_as_error(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_kills.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
    ]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    shown = re.findall(r"^test_kills.py::(\S+) (PASSED|SKIPPED|FAILED|ERROR)", output, re.MULTILINE)
    outcomes = Counter(name for name, _ in shown)
    assert outcomes, output
    assert set(outcomes.values()) == {1}, output
    wanted = {"test_every_step[undisturbed]": "PASSED", "test_every_step[EFFECT_APPLIED]": "SKIPPED"}
    wanted |= {"test_two_steps[undisturbed]": "PASSED", "test_two_steps[EFFECT_APPLIED]": "ERROR"}
    assert wanted.items() <= dict(shown).items()
    assert dict(shown)["test_two_steps[CLAIM_STORED]"] == "FAILED"
    found = Counter(outcome for _, outcome in shown)
    summary = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", output.splitlines()[-1])}
    assert (summary["passed"], summary["skipped"]) == (found["PASSED"], found["SKIPPED"])
