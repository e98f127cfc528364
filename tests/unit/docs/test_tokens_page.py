"""What the page on tokens says is tried, line by line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.token_attempts import ATTEMPTS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "tokens.md"
LIST = re.compile(r"^\*\*The (\w+)'s token (can|cannot)\*\*\n\n((?:- .*\n|  .*\n)+)", re.MULTILINE)


def _statements() -> list[tuple[str, bool, str]]:
    """Each line of the lists: whose token, whether it can, and the words."""
    return [
        (role, can == "can", " ".join(line.split()))
        for role, can, lines in LIST.findall(PAGE.read_text(encoding="utf-8"))
        for line in re.split(r"^- ", lines, flags=re.MULTILINE)[1:]
    ]


STATEMENTS = _statements()


def _tried() -> list[tuple[str, bool, str]]:
    return [(one.who.split("/")[0], not one.refusal, one.statement) for one in ATTEMPTS]


@pytest.mark.parametrize(("role", "can", "text"), STATEMENTS)
def test_each_statement_about_a_token_is_tried(role: str, can: bool, text: str) -> None:
    assert any((role, can) == tried[:2] and text.startswith(tried[2]) for tried in _tried())


def test_each_attempt_is_about_one_statement() -> None:
    for role, can, words in set(_tried()):
        about = [text for whose, may, text in STATEMENTS if (whose, may) == (role, can) and text.startswith(words)]
        assert len(about) == 1, (role, can, words, about)


def test_attempts_have_names_of_their_own() -> None:
    assert len({one.title for one in ATTEMPTS}) == len(ATTEMPTS)
