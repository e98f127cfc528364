"""Text for people: nearest names, printable and shortened text, columns.

What other programs write ends up in errors, Events, logs and terminals. It is shortened and escaped here.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Final


def did_you_mean(value: object, accepted: Iterable[object]) -> str:
    """Return the hint at the nearest accepted text, when one is near; case, ``-`` and ``_`` count nothing."""
    if not isinstance(value, str):
        return ""
    texts = {_folded(text): text for text in accepted if isinstance(text, str)}
    near = difflib.get_close_matches(_folded(value), texts, n=1, cutoff=0.6)
    return f'; did you mean "{texts[near[0]]}"?' if near and texts[near[0]] != value else ""


def unambiguous_correction(value: object, accepted: Iterable[object]) -> str:
    """Return the accepted text that ``value`` must stand for; empty if there is none, or more than one.

    It differs in case, ``-`` and ``_`` only, or, with four letters or more, by one slip of the pen: a letter that is
    missing, too many, wrong, or exchanged with the next one. Digits are no slips: ``gpu-0`` is not ``gpu-1``.
    """
    if not isinstance(value, str):
        return ""
    texts = dict.fromkeys(text for text in accepted if isinstance(text, str))
    if value in texts:
        return ""
    folded = [text for text in texts if _folded(text) == _folded(value)]
    near = folded or [text for text in texts if _is_slip(value, text)]
    return near[0] if len(near) == 1 else ""


_SHORT: Final = 4


def _is_slip(one: str, other: str) -> bool:
    if min(len(one), len(other)) < _SHORT - 1 or max(len(one), len(other)) < _SHORT:
        return False
    if [char for char in one if char.isdigit()] != [char for char in other if char.isdigit()]:
        return False
    begin = 0
    while begin < min(len(one), len(other)) and one[begin] == other[begin]:
        begin += 1
    rest, expected = one[begin:], other[begin:]
    exchanged = rest[:2] == expected[:2][::-1] and rest[2:] == expected[2:]
    return exchanged or rest[1:] == expected[1:] or rest == expected[1:] or rest[1:] == expected


def _folded(text: str) -> str:
    return text.casefold().replace("_", "").replace("-", "")


_PATH: Final = re.compile(
    r"""
      (?<![\w/]) (?P<quote>["']) /(?!/) (?: (?!(?P=quote)). )* (?P=quote)  # in quotes; the other quotes may be in it
    | (?: (?<![\w.:/@%~)\]}*-]) /{1,2} | (?<=:) / | (?<=\bfile:) // / | (?<=\bunix:) // / )  # not of a URL
      (?=[^/\s]) [^\s'"`,;:()\[\]{}<>]+ (?<![.])
    """,
    re.VERBOSE,
)
_UNUSUAL: Final = re.compile(r"[^ -~\n]")


def escape_unprintable(text: str, *, keep: str = "") -> str:
    r"""Write all that has no shape as Python's escapes: ``\x1b``, ``\u202e``.

    That is line ends, controls (C0 and C1, ESC among them), marks of writing direction, lone surrogates and the like.

    Args:
        text: from a cluster, a file, a container.
        keep: characters that the caller lays out itself, such as ``"\n"``.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def without_paths(text: str) -> str:
    """Return a text for users who may not see the host: each absolute path in it becomes ``(a path)``.

    Paths in quotes may have blanks. URLs, and names such as ``pool/device``, are no absolute paths.
    """
    return _PATH.sub(lambda found: f"{found['quote'] or ''}(a path){found['quote'] or ''}", text)


def escape_unprintable_json(text: str) -> str:
    """Write such characters in a JSON text as JSON's own escapes: to a program it says the same; its line ends stay."""
    return _UNUSUAL.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def shorten(text: str, most: int) -> str:
    """Return the text, without its middle where it is too long: the object is at its beginning, the remedy at its end.

    Args:
        text: any; half a surrogate pair, which UTF-8 cannot hold, counts three bytes.
        most: bytes of UTF-8 that the result has at most; 64 or more.
    """
    encoded = text.encode(errors="surrogatepass")
    if len(encoded) <= most:
        return text
    gap = f" … {len(encoded)} bytes in all … "
    room = most - len(gap.encode())
    tail = room // 3
    # a character that is cut in two is left out
    return encoded[: room - tail].decode(errors="ignore") + gap + encoded[-tail:].decode(errors="ignore")


def align_columns(rows: Sequence[Sequence[str]], *, gap: int = 2) -> list[str]:
    """Return rows of equally many cells as lines with aligned columns, with ``gap`` blanks between columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ((cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [(" " * gap).join(line).rstrip() for line in lines]


def counted(number: int, noun: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
