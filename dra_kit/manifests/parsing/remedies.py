"""What to do about a YAML text that libyaml does not take: its words tell of the parser, not of the writer."""

from __future__ import annotations

from typing import Final

_REMEDIES: Final = (
    (
        "mapping values are not allowed",
        "indent the line as its neighbours are, or put a text with ': ' in it in quotes",
    ),
    ("did not find expected key", "indent the line as the other keys of its mapping are"),
    ("did not find expected '-' indicator", "begin each item of a list with '- ', all in one column"),
    ("block sequence entries are not allowed", "begin a list on a line of its own"),
    ("could not find expected ':'", "write 'key: value', with a blank after the colon"),
    ("cannot start any token", "indent with blanks, not tabs, and put a text that begins with @, ` or % in quotes"),
    ("did not find expected ',' or", "close the bracket, or put a comma between the items"),
    ("while scanning a quoted scalar", "close the quote"),
)
"""By the words of a problem what helps; the first that fits."""


def with_remedy(problem: str) -> str:
    """Return a problem in libyaml's words, and what to do about it, if that is known."""
    remedy = next((text for words, text in _REMEDIES if words in problem), "")
    return f"{problem}; {remedy}" if remedy else problem
