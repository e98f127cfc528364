"""What docs/tutorial/first-driver.md has its reader do: led-driver, edited by the diffs of the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.scaffold.environment import REPOSITORY

PAGE: Final = (REPOSITORY / "docs" / "tutorial" / "first-driver.md").read_text(encoding="utf-8")
TESTS: Final = Path("tests/test_driver.py")
_STEP: Final = re.compile(r"`([a-z_/]+\.(?:py|yaml))`[^`]*?:\n\n((?:```diff\n.*?```\n\n?)+)", re.DOTALL)


@dataclass(frozen=True)
class Edit:
    """A change of one file.

    Attributes:
        file: in the project.
        diff: without line numbers.
    """

    file: Path
    diff: str

    def make(self, project: Path) -> None:
        """Do what the diff says."""
        lines = self.diff.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        text = (project / self.file).read_text()
        assert text.count(before) == 1, before
        (project / self.file).write_text(text.replace(before, after))


def edits() -> list[Edit]:
    """All of the page, in its order."""
    found = [
        Edit(Path(name), diff)
        for name, diffs in _STEP.findall(PAGE)
        for diff in re.findall(r"```diff\n(.*?)```", diffs, re.DOTALL)
    ]
    assert len(found) == PAGE.count("```diff")
    return found


def add_tests(project: Path) -> str:
    """Write the tests of the page; their text."""
    (tests,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with (project / TESTS).open("a") as file:
        file.write(f"\n\n{tests}")
    return str(tests)
