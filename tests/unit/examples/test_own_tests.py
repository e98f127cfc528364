"""The example's own tests, as its author runs them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.examples.kitchen import PROJECT

pytestmark = pytest.mark.processes


@pytest.mark.timeout(600)
def test_the_tests_of_the_example_pass(tmp_path: Path) -> None:
    project = tmp_path / "pizza-driver"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=500)

    assert "6 passed" in run.stdout, run.stdout + run.stderr
