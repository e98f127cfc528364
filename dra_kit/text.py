"""Text for people: suggestions for misspelled names, escaping and shortening, columns.

Text of other programs appears in errors, Events, logs and terminals. This module shortens and escapes it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Final


def did_you_mean(value: object, accepted: Iterable[object]) -> str:
    """Return a hint with the most similar accepted text, if any; case, ``-`` and ``_`` are ignored."""
    if not isinstance(value, str):
        return ""
    texts = {_folded(text): text for text in accepted if isinstance(text, str)}
    near = difflib.get_close_matches(_folded(value), texts, n=1, cutoff=0.6)
    return f'; did you mean "{texts[near[0]]}"?' if near and texts[near[0]] != value else ""


def unambiguous_correction(value: object, accepted: Iterable[object]) -> str:
    """Return the only accepted text that ``value`` can be a typo of; empty if there is none or several.

    They differ only in case, ``-`` and ``_``, or, from four letters on, by one typo: a missing, extra or wrong letter,
    or two swapped letters. Digits must be equal: ``gpu-0`` is not a typo of ``gpu-1``.
    """
    if not isinstance(value, str):
        return ""
    texts = dict.fromkeys(text for text in accepted if isinstance(text, str))
    if value in texts:
        return ""
    folded = [text for text in texts if _folded(text) == _folded(value)]
    near = folded or [text for text in texts if _is_typo(value, text)]
    return near[0] if len(near) == 1 else ""


_SHORT: Final = 4


def _is_typo(one: str, other: str) -> bool:
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


def probable_names(value: str, accepted: Iterable[str]) -> list[str]:
    """Return the accepted names that a misspelt name probably means, equally probable ones together; may be empty.

    A name is meant if it differs only in case, ``-`` and ``_``, else in few letters of its words (``deviceClasName``),
    else if words are missing (``claimName`` for ``resourceClaimName``) or were added to the end (``driverName`` for
    ``driver``). Other words have another meaning: ``nodeSelector`` is not ``selectors``, although they end alike.
    """
    names = [name for name in dict.fromkeys(accepted) if name != value]
    if folded := [name for name in names if _folded(name) == _folded(value)]:
        return folded
    words = _words(value)
    if not words:
        return []
    if near := [name for name in names if _are_typos(words, _words(name))]:
        return near
    return [name for name in names if _is_shortened(words, _words(name)) or _is_lengthened(words, _words(name))]


def suggest_names(value: str, accepted: Iterable[str]) -> str:
    """Return a hint with the accepted names that a misspelt name probably means; empty if there is none."""
    names = probable_names(value, accepted)
    return f"did you mean {' or '.join(map(json.dumps, names))}?" if names else ""


def name_of_typo(value: str, known: Iterable[str]) -> str:
    """Return the known name that a name is surely a typo of, although there are unknown ones; empty if none.

    The typo is in a word of several letters, after its first one: ``nic-a`` is not ``nic-b``, ``npu`` is not ``gpu``.
    """
    name = unambiguous_correction(value, known)
    return name if name and name[0] == value[0] and probable_names(value, [name]) else ""


_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_LONG: Final = 8
"""Letters from which a word may have two typos."""
_SHARE: Final = 0.45
"""Share of the letters of a name that its part must have."""


def _words(name: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(name)]


def _are_typos(words: list[str], others: list[str]) -> bool:
    """Return whether each word is the other one with at most a few wrong letters."""
    if len(words) != len(others):
        one, other = "".join(words), "".join(others)  # a name in lower case is one word
        return min(len(words), len(others)) == 1 and len(one) >= _LONG and _is_typo(one, other)
    return all(one == other or _is_misspelt_word(one, other) for one, other in zip(words, others, strict=True))


def _is_misspelt_word(one: str, other: str) -> bool:
    if min(len(one), len(other)) >= _LONG and not (one + other).isdigit():
        return _distance(one, other) <= 2
    return _is_typo(one, other)


def _distance(one: str, other: str) -> int:
    """Return how many letters are missing, extra, wrong or swapped with the next one."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        current = [row]
        for column, expected in enumerate(other, 1):
            cost = min(last[column] + 1, current[-1] + 1, last[column - 1] + (letter != expected))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == expected:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, last = last, current
    return last[-1]


def _is_shortened(words: list[str], whole: list[str]) -> bool:
    """Return whether words are consecutive words of a name, and a large part of it."""
    starts = range(len(whole) - len(words) + 1)
    has = len(words) < len(whole) and any(whole[start : start + len(words)] == words for start in starts)
    return has and len("".join(words)) >= _SHARE * len("".join(whole))


def _is_lengthened(words: list[str], name: list[str]) -> bool:
    """Return whether a name begins words, and is a large part of them."""
    return words[: len(name)] == name != words and len("".join(name)) >= _SHARE * len("".join(words))


def _folded(text: str) -> str:
    return text.casefold().replace("_", "").replace("-", "")


_PATH: Final = re.compile(
    r"""
      (?<![\w/]) (?P<quote>["']) /(?!/) (?: (?!(?P=quote)). )* (?P=quote)  # quoted; may contain the other quote
    | (?: (?<![\w.:/@%~)\]}*-]) /{1,2} | (?<=:) / | (?<=\bfile:) // / | (?<=\bunix:) // / )  # not in a URL
      (?=[^/\s]) [^\s'"`,;:()\[\]{}<>]+ (?<![.])
    """,
    re.VERBOSE,
)
_UNUSUAL: Final = re.compile(r"[^ -~\n]")


def escape_unprintable(text: str, *, keep: str = "") -> str:
    r"""Write unprintable characters as Python's escapes: ``\x1b``, ``\u202e``.

    These are line breaks, control characters, marks of writing direction, lone surrogates and others. Characters in
    ``keep``, such as ``"\n"``, stay unchanged.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def without_paths(text: str) -> str:
    """Return a text for users who may not see the host: each absolute path in it becomes ``(a path)``.

    Quoted paths may contain spaces. URLs and names such as ``pool/device`` stay unchanged.
    """
    return _PATH.sub(lambda found: f"{found['quote'] or ''}(a path){found['quote'] or ''}", text)


def escape_unprintable_json(text: str) -> str:
    """Write such characters in a JSON text as JSON's escapes: the value and line breaks stay the same."""
    return _UNUSUAL.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def shorten(text: str, most: int) -> str:
    """Return the text without its middle if it is too long: the start names the object, the end the remedy.

    Args:
        text: any text; a lone surrogate counts as three bytes.
        most: maximum bytes of the result in UTF-8; at least 64.
    """
    encoded = text.encode(errors="surrogatepass")
    if len(encoded) <= most:
        return text
    gap = f" … {len(encoded)} bytes in total … "
    room = most - len(gap.encode())
    tail = room // 3
    # drop partial characters
    return encoded[: room - tail].decode(errors="ignore") + gap + encoded[-tail:].decode(errors="ignore")


def align_columns(rows: Sequence[Sequence[str]], *, gap: int = 2) -> list[str]:
    """Return rows of equally many cells as lines with aligned columns, with ``gap`` blanks between columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ((cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [(" " * gap).join(line).rstrip() for line in lines]


def counted(number: int, noun: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
