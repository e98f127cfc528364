"""Mappings in braces, which are those of JSON, too: split into their entries, and put together again."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from msgspec import Struct

from dra_kit.kubernetes.manifests.positions import content_start
from dra_kit.kubernetes.manifests.yaml_reader import MappingNode, Node
from dra_kit.lint.fixes.blocks import MERGE

_BETWEEN: Final = re.compile(r"\s*,\s*")
_AROUND: Final = re.compile(r"\s*,?\s*")


class Flow(Struct):
    """A mapping in braces.

    Attributes:
        start: index of the brace.
        end: index behind its last one.
        indent: white space before each key, where each has a line of its own; else None.
        outer: white space before what the mapping stands in.
        comma: what stands between entries.
        colon: what stands between a key and its value.
        quote: what keys stand in.
        entries: key and what is written of it and its value.
    """

    start: int
    end: int
    indent: str | None
    outer: str
    comma: str
    colon: str
    quote: str
    entries: list[tuple[str, str]]

    @property
    def step(self) -> str:
        """White space by which lines inside are indented more than it."""
        indent = self.indent or ""
        return indent.removeprefix(self.outer) if indent.startswith(self.outer) else ""

    def named(self, key: str, value: str) -> str:
        """Return an entry."""
        return f"{self.quote}{key}{self.quote}{self.colon}{value}"

    def braces(self, entries: list[str], *, deeper: int = 0) -> str:
        """Return entries in braces, in lines as its own ones are.

        Args:
            entries: what is written of them, indented as its own ones are.
            deeper: by how many levels they are to be indented more.
        """
        if self.indent is None or not entries:
            return "{" + self.comma.join(entries) + "}"
        newline = "\r\n" if "\r\n" in self.comma else "\n"
        more = self.step * deeper
        lines = [f"{self.indent}{entry}".replace("\n", f"\n{more}") for entry in entries]
        return "{" + newline + f",{newline}".join(more + line for line in lines) + newline + self.outer + more + "}"


def flow(text: str, node: Node | None) -> Flow | None:
    """Return a mapping in braces; None if it is none, or has comments or aliases between its entries."""
    if not isinstance(node, MappingNode) or not node.entries:
        return None
    start = content_start(text, node)
    if text[start : start + 1] != "{":
        return None
    entries = [(MERGE if key is None else key, key_node, value) for key, key_node, value in node.entries]
    if any(value.start < key_node.end for _, key_node, value in entries):
        return None
    gaps = [text[start + 1 : entries[0][1].start]]
    gaps += [text[one[2].end : other[1].start] for one, other in pairwise(entries)]
    around = (gaps[0], text[entries[-1][2].end : node.end - 1])
    if not all(map(_BETWEEN.fullmatch, gaps[1:])) or gaps[0].strip() or not _AROUND.fullmatch(around[1]):
        return None
    _, first, value = entries[0]
    lines = "\n" in gaps[0]
    if lines and not all("\n" in gap for gap in gaps):
        return None
    begin = text.rfind("\n", 0, start) + 1
    line = text[begin:start]
    return Flow(
        start,
        node.end,
        gaps[0].rpartition("\n")[2] if lines else None,
        line[: len(line) - len(line.lstrip())],
        gaps[1] if gaps[1:] else f",{gaps[0]}" if lines else ", ",
        text[first.end : value.start] if value.start > first.end else ": ",
        '"' if first.style == '"' else "",
        [(key, text[key_node.start : each.end]) for key, key_node, each in entries],
    )
