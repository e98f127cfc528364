"""Regular expressions with RE2: ``matches``, ``find`` and ``findAll``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from dra_kit.kubernetes.cel.failures import EvaluationFailure
from dra_kit.kubernetes.cel.types import Library
from dra_kit.kubernetes.cel.values import Frame, charge_work

LIBRARY: Final = Library()
_ESCAPES: Final = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(?P<escaped>.)", re.DOTALL)
_STEPS: Final = 10
"""Steps of RE2 that count as one unit of work."""
_CACHED: Final = 64
_CACHED_SIZE: Final = 500_000
"""Maximum cached patterns, and instructions of all of them: 32 bytes each, and up to 8 MiB for a pattern in use."""
_compiled: dict[str, Any] = {}


def compile_pattern(pattern: str) -> Any:
    """Return the compiled pattern.

    Raises:
        EvaluationFailure: it is not a regular expression of RE2.
    """
    found = _compiled.get(pattern)
    if found is None:
        found = _compile(pattern)
        cached = list(_compiled.values())
        if len(cached) >= _CACHED or sum(item.programsize for item in cached) + found.programsize > _CACHED_SIZE:
            _forget()
        _compiled[pattern] = found
    return found


def _forget() -> None:
    import re2

    _compiled.clear()
    re2.purge()  # its own cache has no limit by size


def _compile(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    # \C matches one byte: RE2 in C++ knows it, Go's regexp does not
    if all(escape["escaped"] != "C" for escape in _ESCAPES.finditer(pattern)):
        try:
            return re2.compile(pattern, options)
        except re2.error as error:
            raise EvaluationFailure(f"error parsing regexp: {_in_go(error.args[0])}", "regex") from None
    raise EvaluationFailure("error parsing regexp: invalid escape sequence: `\\C`", "regex")


_GO_TEXTS: Final = {
    "missing ]": "missing closing ]", "missing )": "missing closing )",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator", "invalid repetition size": "invalid repeat count",
    "trailing \\": "trailing backslash at end of expression",
    "invalid perl operator": "missing argument to repetition operator",
}  # fmt: skip


def _in_go(text: bytes | str) -> str:
    """Return the error of RE2 with the message of Go's regexp."""
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    problem, colon, part = shown.partition(": ")
    return _GO_TEXTS.get(problem, problem) + (f": `{part[:60]}`" if colon else "")


def _search(frame: Frame, text: str, pattern: str, position: int = 0) -> Any:
    """Return the next match; the time is proportional to the text times the pattern with repetitions expanded."""
    compiled = compile_pattern(pattern)
    # each search encodes the text again
    charge_work(frame, 1 + len(text) // 10 + compiled.programsize * (len(text) - position) // _STEPS)
    return compiled.search(text, position)


def _found(frame: Frame, text: str, pattern: str) -> Iterator[str]:
    """Yield the matches from left to right, without empty ones directly after a match."""
    position, previous_end = 0, -1
    while position <= len(text):
        match = _search(frame, text, pattern, position)
        if match is None:
            return
        start, end = match.span()
        accepted = end != position or start != previous_end
        position = end + 1 if end == position else end
        previous_end = end
        if accepted:
            yield text[start:end]


@LIBRARY.method("matches_string", "matches(string, string) -> bool", metered=True)
@LIBRARY.function("matches", "matches(string, string) -> bool", metered=True)
def _matches(frame: Frame, text: str, pattern: str) -> bool:
    return _search(frame, text, pattern) is not None


@LIBRARY.method("string_find_string", "find(string, string) -> string", metered=True)
def _find(frame: Frame, text: str, pattern: str) -> str:
    match = _search(frame, text, pattern)
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
