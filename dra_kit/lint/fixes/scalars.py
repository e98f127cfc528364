"""Texts, numbers and truth values as they are written in a file: with the quotes that stand there."""

from __future__ import annotations

import json
import re
from typing import Final

from dra_kit.kubernetes.manifests.positions import Positions, content_start
from dra_kit.kubernetes.manifests.yaml_reader import ScalarNode
from dra_kit.lint.fixes.fix import Edit

_PLAIN: Final = re.compile(r"[A-Za-z][\w./-]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def rewritten(text: str, node: ScalarNode, value: str | int | bool | None) -> Edit | None:
    """Return a scalar with another value; None if it is not certain how to write it.

    Args:
        text: the file.
        node: of the scalar.
        value: the other one; None is the text that is written there, in quotes.
    """
    start = content_start(text, node)
    if node.style in {"|", ">"} or "\n" in text[start : node.end] or start == node.end:
        return None
    if value is None:
        return None if node.style else Edit(start, node.end, json.dumps(text[start : node.end], ensure_ascii=False))
    if not isinstance(value, str):
        return Edit(start, node.end, json.dumps(value))
    return Edit(start, node.end, quoted(value, node.style))


def quoted(value: str, style: str) -> str:
    """Return a text in quotes of some style; a plain one as it is, if that is a text."""
    if style == "'":
        return "'" + value.replace("'", "''") + "'"
    plain = not style and _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return value if plain else json.dumps(value, ensure_ascii=False)


def replaced(positions: Positions, node: ScalarNode, span: tuple[int, int], text: str) -> Edit | None:
    """Return a text with some characters replaced; None if it is not certain how to write them."""
    place = positions.exactly(node, *span)
    if place is None or "\n" in text:
        return None
    if node.style == '"':
        text = json.dumps(text, ensure_ascii=False)[1:-1]
    return Edit(place.start, place.end, text.replace("'", "''") if node.style == "'" else text)
