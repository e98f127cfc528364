"""Correct drivers type-check with mypy --strict and pyright, and both report the mistakes of wrong ones.

A line of ``cases/*.py`` that must be refused ends with ``# error: <mypy's code> <pyright's rule>``; every other line
must be accepted, and so must the drivers of examples/gallery.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dra_kit.author.target import load_driver

CASES = Path(__file__).parent / "cases"
FILES = sorted(CASES.glob("*.py"))
ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "examples" / "gallery"
MARK = re.compile(r"# error: (?P<mypy>[a-z-]+) (?P<pyright>report[A-Za-z]+)$")

Place = tuple[str, int, str]

pytestmark = pytest.mark.timeout(300)  # without a cache, both check everything


def expected(checker: str) -> set[Place]:
    return {
        (file.name, number, match[checker])
        for file in FILES
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if (match := MARK.search(line))
    }


def gallery(directory: Path) -> list[Path]:
    """Copy the drivers of the gallery to modules with different names, because mypy checks no two of one name."""
    copies = []
    for file in sorted(GALLERY.rglob("*.py")):
        copy = directory / "_".join(file.relative_to(GALLERY).parts).replace("-", "_")
        copies.append(Path(shutil.copy(file, copy)))
    return copies


def test_mypy_strict_refuses_the_marked_lines_and_no_other(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}"),
        *(f"--python-executable={sys.executable}", "--output=json", *map(str, [*FILES, *gallery(tmp_path)])),
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not run.stderr
    reports = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    found = {(Path(item["file"]).name, item["line"], item["code"]) for item in reports if item["severity"] == "error"}
    assert found == expected("mypy")


def test_pyright_refuses_the_marked_lines_and_no_other(tmp_path: Path) -> None:
    files = [*FILES, *gallery(tmp_path)]
    command = [sys.executable, "-m", "pyright", "--outputjson", f"--pythonpath={sys.executable}", *map(str, files)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # away from our settings
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files)
    found = {
        (Path(item["file"]).name, item["range"]["start"]["line"] + 1, item.get("rule", ""))
        for item in report["generalDiagnostics"]
        if item["severity"] != "information"
    }
    assert found == expected("pyright")


def test_every_marked_line_has_a_mark_that_is_understood() -> None:
    for file in FILES:
        for line in file.read_text().splitlines():
            assert ("# error" in line) == bool(MARK.search(line)), f"{file.name}: {line}"


def test_the_file_of_the_design_is_a_whole_driver() -> None:
    driver = load_driver(str(CASES / "design.py"))
    assert driver.name == "dra.pizza"
    assert [kind.__name__ for kind in driver.configs.kinds] == ["PizzaConfig"]
