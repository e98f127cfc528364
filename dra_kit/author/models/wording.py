"""pydantic's messages as rules in the words of every other error: ``must be an integer``."""

from __future__ import annotations

import re
from typing import Final

_TAIL: Final = re.compile(r", (?:unable to|got a number with|not \d+$).*| after validation.*", re.DOTALL)
_WORDS: Final = (
    (re.compile(r"^(?:Value error|Assertion failed), "), ""),
    (re.compile(r"^Input is not a valid path\b.*"), "must be a path"),
    (re.compile(r"^Input should be a valid (?=[aeiou])"), "must be an "),
    (re.compile(r"^Input should be a valid "), "must be a "),
    (re.compile(r"^(?:Input|String|List|Tuple|Set|Frozenset|Dictionary|Data|Value) should "), "must "),
    (re.compile(r"\bgreater than or equal to\b"), "at least"),
    (re.compile(r"\bless than or equal to\b"), "at most"),
)


def rule(message: str) -> str:
    """Return the rule that a value breaks, on one line, for a text that goes on with ``, not <the value>``.

    Args:
        message: ``msg`` of one of pydantic's errors (pydantic 2); an author's own text is left as it is.
    """
    text = " ".join(message.split())
    own = text.startswith(("Value error, ", "Assertion failed, "))
    for pattern, words in _WORDS[:1] if own else _WORDS:
        text = pattern.sub(words, text)
    text = text if own else _TAIL.sub("", text)
    return f"{text[:1].lower()}{text[1:]}"
