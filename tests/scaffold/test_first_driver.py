"""docs/tutorial/first-driver.md, done as it says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.scaffold.environment import REPOSITORY, Environment
from tests.scaffold.first_hour import touched
from tests.scaffold.tutorial import PAGE, add_tests, edits

TRANSCRIPT = (REPOSITORY / "docs" / "tutorial" / "first-hour.md").read_text(encoding="utf-8")


def test_a_reader_who_does_all_of_it_has_a_tested_driver(environment: Environment, tmp_path: Path) -> None:
    environment.run("dra-kit", "new", "led-driver", cwd=tmp_path)
    project = tmp_path / "led-driver"
    for edit in edits():
        edit.make(project)
    add_tests(project)
    assert "\n".join(touched(project)) in TRANSCRIPT

    told = environment.run("make", "test", "lint", cwd=project)
    assert " 5 passed in " in told
    assert "warning" not in told
    assert "DEVICE_0_BRIGHTNESS=100" in environment.run("dra-kit", "sandbox", ".", "-f", "demo/pod.yaml", cwd=project)


def test_the_transcript_has_the_edits_of_the_page() -> None:
    (shown,) = re.findall(r"```diff\n(.*?)```", TRANSCRIPT, re.DOTALL)
    lines = [line for line in shown.splitlines() if line[0] in "+-" and not line.startswith("---")]
    assert len(lines) > 10
    assert sorted(lines) == sorted(line for edit in edits() for line in edit.diff.splitlines() if line[0] in "+-")


def test_every_target_and_flag_that_it_names_exists(environment: Environment, tmp_path: Path) -> None:
    environment.run("dra-kit", "new", "led-driver", cwd=tmp_path)
    targets = re.findall(r"^\.PHONY: ([a-z-]+)$", (tmp_path / "led-driver" / "Makefile").read_text(), re.MULTILINE)
    named = [word for line in re.findall(r"(?:`|\$ )make ([a-z -]+)", PAGE) for word in line.split()]
    assert named
    assert set(named) <= set(targets)
    told = environment.run("dra-kit", "new", "--help", cwd=tmp_path)
    assert [flag for flag in re.findall(r"^\| `(--[a-z]+)`", PAGE, re.MULTILINE) if flag not in told] == []
