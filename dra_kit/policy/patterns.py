"""Regular expressions of pydantic (Rust's ``regex``) for CEL (RE2): the same matches, or none at all.

Source: https://docs.rs/regex/latest/regex/#syntax, https://github.com/google/re2/wiki/Syntax. What either of them does
not know, or reads in another way, is not translated.
"""

from __future__ import annotations

import re
from typing import Final

from dra_kit.policy.shapes import Pattern

_MOST_REPEATS: Final = 1000
"""What RE2 takes as the count of a repetition."""

_SPACES: Final = r"\t\n\v\f\r "
"""White space of Rust in ASCII; that of RE2 lacks ``\\v``."""

_OUTSIDE: Final = re.compile(
    r"""
    (?P<plain>\\[-!"#$%&'()*+,./:;=?@\[\\\]^`{|}~nrtfva] | \\x[0-9a-fA-F]{2} | \\A | \\z | [\^$.|)*+?] | [^\\(\[{}*+?])
  | (?P<unicode>\\[dDwWbB])
  | (?P<space>\\s) | (?P<no_space>\\S)
  | (?P<group>\((?:\?:)?(?!\?)) | (?P<flags>\(\?[ims]+[:)])
  | \(\?P?<(?P<name>[A-Za-z_][A-Za-z0-9_]*)>
  | \{(?P<least>[0-9]+)(?P<more>,(?P<most>[0-9]*))?\}
  | (?P<class>\[\^?)
    """,
    re.VERBOSE,
)
_INSIDE: Final = re.compile(
    r"""
    (?P<end>\])
  | (?P<posix>\[:\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\])
  | (?P<plain>\\[-!"#$%&'()*+,./:;=?@\[\\\]^`{|}~nrtfva] | \\x[0-9a-fA-F]{2} | [^\\\[\]])
  | (?P<unicode>\\[dDwW]) | (?P<space>\\s)
    """,
    re.VERBOSE,
)
_SETS: Final = ("&&", "--", "~~")
"""Operators of Rust's classes, which RE2 takes for characters."""


def translated(pattern: str) -> Pattern | None:
    """Return the pattern for CEL; None where it has no equal."""
    made: list[str] = []
    ascii_only = False
    position = 0
    while position < len(pattern):
        match = _OUTSIDE.match(pattern, position)
        if match is None or max(_count(match["least"]), _count(match["most"])) > _MOST_REPEATS:
            return None
        position = match.end()
        ascii_only |= bool(match["unicode"] or match["space"] or match["no_space"] or "i" in (match["flags"] or ""))
        if match["class"]:
            inside = _class(pattern, position)
            if inside is None:
                return None
            text, position, of_ascii = inside
            ascii_only |= of_ascii
            made.append(match["class"] + text)
        elif match["space"] or match["no_space"]:
            made.append(f"[{'^' if match['no_space'] else ''}{_SPACES}]")
        elif match["name"]:
            made.append(f"(?P<{match['name']}>")
        else:
            made.append(match[0])
    return Pattern(pattern, "".join(made), ascii_only)


def _count(text: str | None) -> int:
    return int(text) if text and len(text) < 9 else _MOST_REPEATS + 1 if text else 0


def _class(pattern: str, position: int) -> tuple[str, int, bool] | None:
    """Return the rest of a character class, where it ends, and whether it is the same for ASCII only."""
    made: list[str] = []
    ascii_only = False
    if pattern.startswith("]", position):
        made, position = [r"\]"], position + 1
    start = position
    while match := _INSIDE.match(pattern, position):
        position = match.end()
        ascii_only |= bool(match["unicode"] or match["space"])
        made.append(_SPACES if match["space"] else match[0])
        if match["end"]:
            return (
                None
                if any(text in pattern[start:position] for text in _SETS)
                else ("".join(made), position, ascii_only)
            )
    return None
