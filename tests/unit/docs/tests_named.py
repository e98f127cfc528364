"""The tests that a page names, as in ``unit/node/test_clock.py::test_jump_of_the_wall_clock_stops_nothing``."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"`([a-z_0-9/]+\.py)::(test_[a-z0-9_]+)`")


def named_tests(text: str) -> list[tuple[str, str]]:
    """Return the tests that a text names, as (file below tests, function)."""
    return _NAME.findall(text)


def missing_tests(text: str) -> list[str]:
    """Return the tests that a text names and that do not exist."""
    return [f"{file}::{name}" for file, name in named_tests(text) if name not in _defined(file)]


@cache
def _defined(file: str) -> frozenset[str]:
    path = TESTS / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(item.name for item in ast.walk(tree) if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
