"""Every page says in its first words who needs it, and the site has a place for it."""

import re
from pathlib import Path

import pytest

import dra_kit
import dra_kit.cel
import dra_kit.testing

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FOR_WHOM = re.compile(r"# [^\n]+\n\n\*?For [a-z]")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_says_who_needs_it(page: Path) -> None:
    assert FOR_WHOM.match(page.read_text(encoding="utf-8")), "begin with: *For driver developers.* (or whoever it is)"


@pytest.mark.parametrize("module", [dra_kit, dra_kit.cel, dra_kit.testing], ids=lambda module: module.__name__)
def test_every_public_name_stands_in_the_reference_once(module: object) -> None:
    prefix = module.__name__  # type: ignore[attr-defined]
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "api").glob("*.md"))
    named = re.findall(rf"^\.\. (?:auto\w+|py:data):: {re.escape(prefix)}\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(module.__all__)  # type: ignore[attr-defined]
