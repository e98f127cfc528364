"""Lays panes out on a terminal of any size: each gets a fair share of the lines, and no line is wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text

from dra_kit.dev.screen.panes import Pane, Row
from dra_kit.text import escape_unprintable

_COLUMN_MAX: Final = 40
_GAP: Final = 2
_NEWS_MAX: Final = 4
"""Lines of one text above: what is wrong with new code is to be read whole."""


class Headline(Struct, frozen=True):
    """What stands above the panes: a title, and what became of the last changes.

    Attributes:
        title: of the screen.
        news: texts, each with the style of its lines.
    """

    title: str
    news: Sequence[tuple[str, str]]


class Focus(Struct):
    """Which pane is shown alone.

    Attributes:
        pane: its index; None for all.
        offset: rows of it that are above (or, of one with the newest last, below) what is shown.
    """

    pane: int | None = None
    offset: int = 0


def layout(
    headline: Headline, panes: Sequence[Pane], footer: str, *, width: int, height: int, focus: Focus
) -> list[Text]:
    """Return the lines of the screen, ``height`` of them, none wider than ``width``.

    Args:
        headline: above.
        panes: in their order.
        footer: the last line.
        width: of the terminal, in cells.
        height: of the terminal, in lines.
        focus: which pane is shown alone; its offset is brought into its bounds.
    """
    top = [_cut(Text(escape_unprintable(headline.title), "bold reverse"), width, fill=True)]
    for text, style in headline.news:
        top += _wrapped(text, style, width)
    room = max(height - len(top) - 1, 0)
    if focus.pane is not None and focus.pane < len(panes):
        pane = panes[focus.pane]
        focus.offset = max(min(focus.offset, len(pane.rows) - (room - 1)), 0)
        middle = [_title(focus.pane, pane, width), *_rows(pane, room - 1, width, focus.offset)]
    else:
        middle = []
        shares = _shares([len(pane.rows) for pane in panes], room)
        for index, (pane, share) in enumerate(zip(panes, shares, strict=True)):
            if share > 0:
                middle += [_title(index, pane, width), *_rows(pane, share - 1, width, 0)]
    middle = [*middle[:room], *(Text() for _ in range(room - len(middle)))]
    return [*top, *middle, _cut(Text(footer, "dim"), width)][:height]


def _shares(needs: Sequence[int], room: int) -> list[int]:
    """Return the lines of each pane, with its title: one for each, then in turns; the rest goes to the last."""
    shares = [0] * len(needs)
    for index in range(len(needs)):
        if room >= 2:
            shares[index], room = 2, room - 2
    while room:
        hungry = [index for index, need in enumerate(needs) if 0 < shares[index] < need + 1]
        if not hungry:
            break
        for index in hungry[:room]:
            shares[index] += 1
            room -= 1
    if shares and shares[-1]:
        shares[-1] += room
    return shares


def _wrapped(text: str, style: str, width: int) -> list[Text]:
    text = escape_unprintable(text)
    lines: list[Text] = []
    while text and len(lines) < _NEWS_MAX:
        line = text if len(text) <= width else text[:width].rpartition(" ")[0] or text[:width]
        if len(lines) == _NEWS_MAX - 1:
            line = text
        lines.append(_cut(Text(line, style), width))
        text = text[len(line) :].lstrip()
    return lines


def _title(index: int, pane: Pane, width: int) -> Text:
    text = Text(f"{index + 1} {pane.title}", "bold cyan")
    if pane.summary:
        text.append(f"  {escape_unprintable(pane.summary)}", "cyan")
    text.append(" " + "─" * max(width - text.cell_len - 1, 0), "dim cyan")
    return _cut(text, width)


def _rows(pane: Pane, number: int, width: int, offset: int) -> list[Text]:
    """Return so many rows, and how many there are beside them."""
    if number <= 0:
        return []
    total = len(pane.rows)
    if pane.newest_last:
        end = total - offset
        return list(_aligned(pane.rows[max(end - number, 0) : end], width))
    shown = pane.rows[offset : offset + number]
    below = total - offset - len(shown)
    if below and number > 1:
        return [*_aligned(shown[:-1], width), _cut(Text(f"… and {below + 1} more", "dim"), width)]
    return list(_aligned(shown, width))


def _aligned(rows: Sequence[Row], width: int) -> Iterable[Text]:
    cells = [[escape_unprintable(cell, keep="") for cell in row.cells] for row in rows]
    columns = max((len(row) for row in cells), default=0)
    widths = [
        min(max((cell_len(row[column]) for row in cells if len(row) > column + 1), default=0), _COLUMN_MAX)
        for column in range(columns)
    ]
    for row, texts in zip(rows, cells, strict=True):
        line = Text(style=row.style)
        for column, cell in enumerate(texts):
            piece = Text(cell)
            if column < len(texts) - 1:
                piece.truncate(widths[column], overflow="ellipsis", pad=True)
                piece.append(" " * _GAP)
            line.append_text(piece)
        yield _cut(line, width)


def _cut(text: Text, width: int, *, fill: bool = False) -> Text:
    text.truncate(width, overflow="ellipsis", pad=fill)
    text.no_wrap = True
    return text
