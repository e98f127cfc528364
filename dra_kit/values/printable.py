"""Text that others wrote, for a terminal or a log: nothing in it moves the cursor, colours, deletes or forges lines."""

from __future__ import annotations

import json
import re
from typing import Final

_PATH: Final = re.compile(
    r"""
      (?<![\w/]) (?P<quote>["']) /(?!/) (?: (?!(?P=quote)). )* (?P=quote)  # in quotes; the other quotes may be in it
    | (?: (?<![\w.:/@%~)\]}*-]) /{1,2} | (?<=:) / | (?<=\bfile:) // / | (?<=\bunix:) // / )  # not of a URL
      (?=[^/\s]) [^\s'"`,;:()\[\]{}<>]+ (?<![.])
    """,
    re.VERBOSE,
)
_UNUSUAL: Final = re.compile(r"[^ -~\n]")


def printable(text: str, *, keep: str = "") -> str:
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


def printable_json(text: str) -> str:
    """Write such characters in a JSON text as JSON's own escapes: to a program it says the same; its line ends stay."""
    return _UNUSUAL.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)
