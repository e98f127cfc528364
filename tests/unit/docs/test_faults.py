"""docs/explanation/faults*.md name tests that exist, at least one for each fault."""

from __future__ import annotations

import pytest

from tests.unit.docs.tests_named import TESTS, missing_tests, named_tests

PAGES = sorted((TESTS.parent / "docs" / "explanation").glob("faults*.md"))
LINES = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()]
ROWS = [line for line in LINES if line.startswith("| ") and not line.startswith("| fault |")]


def test_there_are_faults() -> None:
    assert len(PAGES) == 3
    assert len(ROWS) > 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_each_fault_has_tests_that_exist(row: str) -> None:
    assert named_tests(row)
    assert missing_tests(row) == []
