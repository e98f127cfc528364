"""docs/explanation/faults*.md name tests that exist, at least one for each fault."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
PAGES = sorted((TESTS.parent / "docs" / "explanation").glob("faults*.md"))
LINES = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()]
ROWS = [line for line in LINES if line.startswith("| ") and not line.startswith("| fault |")]


def named(row: str) -> list[tuple[str, str]]:
    return re.findall(r"`([a-z_/]+\.py)::(test_[a-z0-9_]+)`", row)


@cache
def defined(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {item.name for item in ast.walk(tree) if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_there_are_faults() -> None:
    assert len(PAGES) == 3
    assert len(ROWS) > 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_each_fault_has_tests_that_exist(row: str) -> None:
    assert named(row)
    for file, name in named(row):
        assert name in defined(file), f"{file} has no {name}"
