"""The page that compares public drivers with dra-kit."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "public-drivers.md"


def test_each_mark_has_the_link_that_the_page_promises() -> None:
    """● links an example or the gallery, and ○ a page."""
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    examples = {
        row[0]: any("examples/" in target for target in re.findall(r"\]\(([^)]+)\)", row[3]))
        for row in rows
        if row[2] in {"●", "○"}
    }

    assert {*"●○"} < {row[2] for row in rows}
    assert [row[0] for row in rows if row[2] == "●" and not examples[row[0]]] == []
    assert [row[0] for row in rows if row[2] == "○" and examples[row[0]]] == []
    assert [row[0] for row in rows if row[2] == "○" and "](" not in row[3]] == []
