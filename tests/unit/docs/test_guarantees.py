"""Each statement of docs/explanation/guarantees.md names tests that exist, also each of what is not served."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.tests_named import TESTS, missing_tests, named_tests

ROOT = TESTS.parent
PAGE = (ROOT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
_STATEMENT = re.compile(r"^- \*\*.*?(?=^- |\n\n|\Z)", re.MULTILINE | re.DOTALL)
STATEMENTS = [statement for text in SECTIONS.values() for statement in _STATEMENT.findall(text)]


def _subject(statement: str) -> str:
    """The part of a statement that is in bold."""
    return " ".join(statement.split("**")[1].split())


def test_every_bullet_is_a_statement() -> None:
    assert list(SECTIONS) == [
        "For driver developers",
        "For cluster administrators",
        "For the rest of the cluster",
        "Not guaranteed",
        "Not served",
    ]
    assert all(_STATEMENT.search(text) for text in SECTIONS.values())
    assert len(STATEMENTS) == len(re.findall(r"^ *[-*] ", PAGE, re.MULTILINE))


@pytest.mark.parametrize("statement", STATEMENTS, ids=_subject)
def test_each_statement_names_tests_that_exist(statement: str) -> None:
    _, found, tests = statement.partition("\\\n  Tests: ")
    assert found, "add a line that begins with Tests:"
    assert named_tests(tests)
    assert missing_tests(tests) == []


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z-]+)`", PAGE))
    assert named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", ["security.md", "node-life.md"])
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / "explanation" / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|charts|dra_kit)/[\w./-]+)`", text)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_security_lists_the_parts_that_are_attacked() -> None:
    page = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| part | attacks |\n|---|---|\n")
    modules = [path.read_text(encoding="utf-8") for path in sorted((TESTS / "hostile").glob("test_*.py"))]
    parts = [part for text in modules for part in re.findall(r'^PART = "(.+)"$', text, re.MULTILINE)]
    assert sorted(re.findall(r"^\| ([a-z ]+) \|", table.partition("\n\n")[0], re.MULTILINE)) == sorted(parts)
