"""Columns of text, as kubectl prints them."""

from __future__ import annotations

from collections.abc import Sequence

from dra_kit.text import escape_unprintable


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines of columns as wide as their content; what is empty is ``-``.

    Args:
        headings: of the columns.
        rows: cells, as many as headings; text of others, made printable here.
    """
    cells = [list(headings), *([escape_unprintable(cell) or "-" for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )
