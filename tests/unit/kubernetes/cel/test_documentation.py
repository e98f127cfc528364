"""The code blocks of docs/reference/cel.md run, and its tables describe every function."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dra_kit.kubernetes.cel.environment import functions
from tests.unit.kubernetes.cel.devices import evaluate

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "cel.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = re.findall(r"^\| (`.*`) \| `(.*)` \| `(.*)` \|$", PAGE, re.MULTILINE)
LISTED = [name for names, _, _ in ROWS for name in re.findall(r"`([^`]*)`", names)]
# operators, and functions behind macros
INTERNAL = re.compile(r"[@_!-].*|.*_|cel\.@.*")


@pytest.mark.parametrize("block", BLOCKS)
def test_code_block_runs(block: str) -> None:
    exec(compile(block, "docs/reference/cel.md", "exec"), {})  # noqa: S102 - our own documentation


@pytest.mark.parametrize(("example", "result"), [row[1:] for row in ROWS])
def test_documented_example_has_documented_result(example: str, result: str) -> None:
    assert evaluate(f"({example}) == {result}")


def test_documentation_lists_each_function_once() -> None:
    assert sorted(LISTED) == sorted(name for name in functions() if not INTERNAL.fullmatch(name))
