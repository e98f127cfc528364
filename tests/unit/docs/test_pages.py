"""Every page says in its first words who needs it, is read in minutes, and has a place in the site."""

import re
import runpy
from pathlib import Path

import pytest

import dra_kit
import dra_kit.cel
import dra_kit.testing

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FOR_WHOM = re.compile(r"# [^\n]+\n\n\*?For [a-z]")
MOST_WORDS = 1200
"""Of a page, in six minutes; code does not count."""
FIRST_PAGE = 450
"""Of the first one, in two."""
LOOKED_UP = {
    "troubleshooting.md": "errors link to its headings; it is not read from the top",
    "conformance.md": "failed checks link to its headings; it is not read from the top",
    "kubernetes-differences.md": "its rows are generated from the rules; it is not read from the top",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_says_who_needs_it(page: Path) -> None:
    assert FOR_WHOM.match(page.read_text(encoding="utf-8")), "begin with the audience: *For driver developers.*"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_can_be_read_in_minutes(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    words = re.findall(r"\S*\w\S*", re.sub(r"\]\([^)]*\)", "]", prose))
    most = FIRST_PAGE if page == DOCS / "index.md" else MOST_WORDS
    assert len(words) <= most or page.name in LOOKED_UP, "split it: one page for one question"


@pytest.mark.parametrize("module", [dra_kit, dra_kit.cel, dra_kit.testing], ids=lambda module: module.__name__)
def test_reference_documents_every_public_name_once(module: object) -> None:
    prefix = module.__name__  # type: ignore[attr-defined]
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "api").glob("*.md"))
    named = re.findall(rf"^\.\. (?:auto\w+|py:data):: {re.escape(prefix)}\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(module.__all__)  # type: ignore[attr-defined]


def test_the_sidebar_has_every_page_once() -> None:
    groups = list(runpy.run_path(str(DOCS / "site_parts" / "navigation.py"))["groups"](DOCS))
    listed = sorted(page for _, pages in groups for page in pages)
    assert listed == sorted(str(page.relative_to(DOCS).with_suffix("")) for page in PAGES if page.parent != DOCS)
    assert sum(caption.startswith("How to: ") for caption, _ in groups) == 5
