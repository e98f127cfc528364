"""Regular expressions by RE2, whose time is linear in the text, whatever the pattern."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

from dra_kit.cel.declarations import Library
from dra_kit.cel.failure import Failure
from dra_kit.cel.meter import Frame, spend

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY: Final = Library()

_ESCAPES: Final = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(?P<escaped>.)", re.DOTALL)


@functools.lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Any:
    """The compiled pattern.

    Raises:
        Failure: it is no regular expression of RE2.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    # \C matches one byte: RE2 in C++ knows it, Go's regexp does not
    if all(escape["escaped"] != "C" for escape in _ESCAPES.finditer(pattern)):
        try:
            return re2.compile(pattern, options)
        except re2.error:
            pass
    raise Failure(f"error parsing regexp: {pattern[:60]!r}", "regex")


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern matches anywhere in the text."""
    return compile_pattern(pattern).search(text) is not None


def _found(frame: Frame, text: str, pattern: str) -> Iterator[str]:
    """What the pattern matches from left to right; nothing empty directly after a match."""
    compiled = compile_pattern(pattern)
    position, previous_end = 0, -1
    while position <= len(text):
        # each search encodes the text again
        spend(frame, 1 + len(text) // 10)
        match = compiled.search(text, position)
        if match is None:
            return
        start, end = match.span()
        accepted = end != position or start != previous_end
        position = end + 1 if end == position else end
        previous_end = end
        if accepted:
            yield text[start:end]


LIBRARY.declare("matches", "matches(string, string) -> bool", matches)
LIBRARY.declare("matches_string", "matches(string, string) -> bool", matches, member=True)


@LIBRARY.method("string_find_string", "find(string, string) -> string")
def _find(text: str, pattern: str) -> str:
    match = compile_pattern(pattern).search(text)
    return "" if match is None else text[match.start() : match.end()]


@LIBRARY.method("string_find_all_string_int", "findAll(string, string, int) -> list(string)", metered=True)
@LIBRARY.method("string_find_all_string", "findAll(string, string) -> list(string)", metered=True)
def _find_all(frame: Frame, text: str, pattern: str, count: int = -1) -> list[str]:
    made: list[str] = []
    for found in _found(frame, text, pattern):
        if count >= 0 and len(made) >= count:
            break
        made.append(found)
    return made
