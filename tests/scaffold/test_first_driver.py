"""docs/first-driver.md, done as it says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.scaffold.conftest import REPOSITORY, Environment

PAGE = (REPOSITORY / "docs" / "first-driver.md").read_text(encoding="utf-8")
STEP = re.compile(r"`([a-z_/]+\.(?:py|yaml))`[^`]*?:\n\n((?:```diff\n.*?```\n\n?)+)", re.DOTALL)


def edit(file: Path, diff: str) -> None:
    """Do what a diff without line numbers says."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    text = file.read_text()
    assert text.count(before) == 1, before
    file.write_text(text.replace(before, after))


def test_a_reader_who_does_all_of_it_has_a_tested_driver(environment: Environment, tmp_path: Path) -> None:
    environment.run("dra-kit", "new", "led-driver", cwd=tmp_path)
    project = tmp_path / "led-driver"
    edited = []
    for name, diffs in STEP.findall(PAGE):
        for diff in re.findall(r"```diff\n(.*?)```", diffs, re.DOTALL):
            edit(project / name, diff)
            edited.append(name)
    assert len(edited) == PAGE.count("```diff")

    (tests,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with (project / "tests" / "test_driver.py").open("a") as file:
        file.write(f"\n\n{tests}")

    told = environment.run("make", "test", "lint", cwd=project)
    assert " 4 passed in " in told
    assert "warning" not in told


def test_every_target_and_flag_that_it_names_exists(environment: Environment, tmp_path: Path) -> None:
    environment.run("dra-kit", "new", "led-driver", cwd=tmp_path)
    targets = re.findall(r"^\.PHONY: ([a-z-]+)$", (tmp_path / "led-driver" / "Makefile").read_text(), re.MULTILINE)
    named = [word for line in re.findall(r"(?:`|\$ )make ([a-z -]+)", PAGE) for word in line.split()]
    assert named
    assert set(named) <= set(targets)
    told = environment.run("dra-kit", "new", "--help", cwd=tmp_path)
    assert [flag for flag in re.findall(r"^\| `(--[a-z]+)`", PAGE, re.MULTILINE) if flag not in told] == []
