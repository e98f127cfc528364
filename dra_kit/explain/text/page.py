"""The lines of a terminal that an explanation is written to."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

import click

from dra_kit.text import escape_unprintable

_WIDTHS: Final = (80, 120)


class Page:
    """Lines of a terminal.

    Args:
        width: of the terminal, in characters.
        colour: whether it knows colours.
        everything: leave nothing out, however long it gets.
    """

    def __init__(self, width: int, *, colour: bool, everything: bool = False) -> None:
        self._colour = colour
        self._width = min(max(width, _WIDTHS[0]), _WIDTHS[1])
        self.everything = everything
        self._lines: list[str] = []

    def __str__(self) -> str:
        return "\n".join(self._lines)

    def line(
        self, text: str = "", indent: int = 0, hang: int = 2, *, colour: str | None = None, bold: bool = False
    ) -> None:
        """Add text, wrapped into lines; an empty text adds one empty line between others."""
        if not text:
            if self._lines and self._lines[-1]:
                self._lines.append("")
            return
        for part in textwrap.wrap(
            escape_unprintable(text, keep="\n\t"),
            self._width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hang),
            break_long_words=False,
            break_on_hyphens=False,
        ):
            self._lines.append(click.style(part, fg=colour, bold=bold or None) if self._colour else part)

    def good(self, text: str) -> None:
        """Add a line about what went well."""
        self.line(f"✓ {text}", colour="green", bold=True)

    def bad(self, text: str) -> None:
        """Add a line about what went wrong."""
        self.line(f"✗ {text}", colour="red", bold=True)

    def undecided(self, text: str, not_looked_at: Sequence[str]) -> None:
        """Add a line about what may go well or not, since not everything was looked at."""
        self.line(f"? {text}; not looked at: {', '.join(not_looked_at)}", colour="yellow", bold=True)
