"""Mappings of YAML in lines: split into their entries with the comments before them, and put together again."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from dra_kit.kubernetes.manifests.positions import content_start
from dra_kit.kubernetes.manifests.yaml_reader import MappingNode, Node, ScalarNode, SequenceNode

_BEFORE: Final = re.compile(r"[ -]*")
MERGE: Final = "<<"


class Entry(Struct):
    """A key with its value and the comments before it.

    Attributes:
        key: as YAML reads it; ``<<`` of a merge.
        lines: as they are in the file, without the end of the last one.
        at: index of the key in them.
        start: index of the key in the file.
        value: its node; None of an alias, whose node stands elsewhere.
    """

    key: str
    lines: str
    at: int
    start: int
    value: Node | None


class Block(Struct):
    """A mapping in lines.

    Attributes:
        start: index of its first key in the file.
        end: index behind the last line of its last value, without the end of the line.
        column: blanks before each key.
        entries: in the order of the file.
    """

    start: int
    end: int
    column: int
    entries: list[Entry]

    def joined(self, parts: list[str], newline: str) -> str | None:
        """Return lines that take the place of the mapping; None if they do not begin where it does.

        Args:
            parts: lines, each with all blanks before them.
            newline: what ends a line in the file.
        """
        text = newline.join(parts)
        indent = " " * self.column
        return text[self.column :] if text.startswith(indent) and text[self.column : self.column + 1].strip() else None


def is_block(text: str, node: Node) -> bool:
    """Return whether a mapping or list is written in lines, and not in brackets."""
    return not isinstance(node, ScalarNode) and text[content_start(text, node) : node.end][:1] not in {"{", "["}


def block(text: str, node: Node | None) -> Block | None:
    """Return a mapping in lines; None if it is none, or one that is too strange to be split."""
    if not isinstance(node, MappingNode) or not node.entries or not is_block(text, node):
        return None
    start = node.entries[0][1].start
    begin = text.rfind("\n", 0, start) + 1
    if not _BEFORE.fullmatch(text, begin, start):
        return None
    column = start - begin
    made: list[Entry] = []
    behind = end = start  # of the entry before
    for key, key_node, value in node.entries:
        last = last_index(text, value, key_node)
        if last is None:
            return None
        end = _line_end(text, max(last, key_node.end))
        blanks = " " * column if behind == start else ""
        lines = f"{blanks}{text[behind:end]}".removesuffix("\r")
        made.append(
            Entry(
                MERGE if key is None else key,
                lines,
                len(blanks) + key_node.start - behind,
                key_node.start,
                None if value.start < key_node.end else value,
            )
        )
        behind = min(end + 1, len(text))
    return Block(start, end - (text[end - 1] == "\r"), column, made)


def last_index(text: str, node: Node, key: ScalarNode | None) -> int | None:
    """Return the last character of a value, or one behind it in its line; None if that is not certain.

    Args:
        text: the file.
        node: of the value.
        key: its key; None of an item.
    """
    if key is not None and node.start < key.end:  # an alias: the node stands where its anchor is
        end = _line_end(text, key.end)
        return end if "*" in text[key.end : end] else None
    if isinstance(node, ScalarNode):
        if node.style not in {"|", ">"}:
            return node.end
        written = text[node.start : node.end]
        keeps = "+" in written.partition("\n")[0].partition("#")[0]
        return node.start + len(written.removesuffix("\n") if keeps else written.rstrip())
    if not is_block(text, node):
        return node.end
    if isinstance(node, SequenceNode):
        last = node.items[-1]
        return None if last.start < node.start else last_index(text, last, None)
    _, last_key, value = node.entries[-1]
    return last_index(text, value, last_key)


def _line_end(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found


def shifted(lines: str, by: int) -> str | None:
    """Return lines with more blanks before them, or fewer; None where there are too few of them."""
    made = []
    for line in lines.split("\n"):
        if not line.strip():
            made.append(line)
        elif by >= 0:
            made.append(" " * by + line)
        else:
            blanks = len(line) - len(line.lstrip(" "))
            if blanks < -by and not line.lstrip(" ").startswith("#"):
                return None
            made.append(line[min(blanks, -by) :])
    return "\n".join(made)


def step(text: str, root: Node, entries: list[Entry], column: int) -> int:
    """Return by how much the file indents what belongs to a key."""
    for value in (entry.value for entry in entries):
        inner = block(text, value)
        if inner is not None and inner.column > column:
            return inner.column - column
    whole = block(text, root)
    for entry in whole.entries if whole is not None else ():
        inner = block(text, entry.value)
        if whole is not None and inner is not None and inner.column > whole.column:
            return inner.column - whole.column
    return 2
