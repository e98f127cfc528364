"""Edits of YAML text that leave the rest of it unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from dra_kit.kubernetes.manifests.positions import Positions, content_start
from dra_kit.kubernetes.manifests.yaml_reader import MappingNode, Node, ScalarNode, SequenceNode

_ITEM: Final = len("- ")
_COMMENT: Final = re.compile(r":[ \t]*(#[^\r\n]*)?\r?")


def enclose(text: str, root: Node, node: Node, keys: Sequence[str], under: str) -> Edit | None:
    """Move entries of a mapping into one of its values; None if the layout is not certain."""
    lines, braces = block(text, node), flow(text, node)
    if lines is not None:
        moved = [entry for entry in lines.entries if entry.key in keys]
        once = len(moved) == len(keys)  # not merged from elsewhere, no duplicates
        parts = _enclosed_block(text, root, lines, moved, under) if once else None
        return None if parts is None else _lines(text, lines, parts)
    return None if braces is None else _enclosed_flow(text, node, braces, keys, under)


def _enclosed_block(
    text: str, root: Node, whole: Block, moved: list[BlockEntry], under: str
) -> list[str | None] | None:
    there = [entry for entry in whole.entries if entry.key == under]
    inner = block(text, there[0].value) if there else None
    if there and inner is None:
        return _into_braces(text, whole, moved, there[0])
    by = step(text, root, moved, whole.column) if inner is None else inner.column - whole.column
    inside = [shifted(entry.lines, by) for entry in moved]
    parts: list[str | None] = []
    for entry in whole.entries:
        if entry in there:
            parts += [entry.lines, *inside]
        elif entry is moved[0] and not there:
            parts += [f"{' ' * whole.column}{under}:", *inside]
        elif entry not in moved:
            parts.append(entry.lines)
    return parts


def _into_braces(text: str, whole: Block, moved: list[BlockEntry], there: BlockEntry) -> list[str | None] | None:
    """Move entries of one line each, without comments, into a value in braces on one line."""
    braces = flow(text, there.value)
    if braces is None or braces.indent is not None:
        return None
    inside = [one for _, one in braces.entries]
    for entry in moved:
        end = entry.value.end - entry.start if entry.value is not None else 0
        written = entry.lines[entry.at :]
        if entry.lines[: entry.at].strip() or len(written) != end or "\n" in written:
            return None
        inside.append(written)
    at = braces.start - there.start + there.at
    lines = there.lines[:at] + braces.braces(inside) + there.lines[at + braces.end - braces.start :]
    return [lines if entry is there else entry.lines for entry in whole.entries if entry not in moved]


def _lines(text: str, whole: Block, parts: Sequence[str | None]) -> Edit | None:
    """Replace the lines of a mapping; None if a part is not certain, or they are indented differently."""
    certain = [part for part in parts if part is not None]
    made = _newline(text).join(certain)
    indented = made.startswith(" " * whole.column) and made[whole.column : whole.column + 1].strip()
    if len(certain) < len(parts) or not indented:
        return None
    return Edit(whole.start, whole.end, made[whole.column :])


def _enclosed_flow(text: str, node: Node, whole: Flow, keys: Sequence[str], under: str) -> Edit | None:
    moved = [written for key, written in whole.entries if key in keys]
    made: list[str] = []
    there = _value(node, under)
    inner = flow(text, there) if there is not None else None
    if len(moved) != len(keys) or (there is not None and (inner is None or not node.start <= there.start < node.end)):
        return None
    for key, written in whole.entries:
        if inner is not None and key == under:
            # moved entries are indented like the existing ones, one level more than before
            deeper = [one.replace("\n", f"\n{whole.step}") for one in moved]
            made.append(whole.named(under, inner.braces([*(one for _, one in inner.entries), *deeper])))
        elif key not in keys:
            made.append(written)
        elif inner is None and written is moved[0]:
            made.append(whole.named(under, _deeper(whole, moved)))
    return Edit(whole.start, whole.end, whole.braces(made))


def _deeper(whole: Flow, entries: list[str]) -> str:
    """Return entries in new braces; ``whole`` indents the lines after its first one."""
    if whole.indent is None:
        return whole.braces(entries)
    newline = "\r\n" if "\r\n" in whole.comma else "\n"
    inner = whole.indent + whole.step
    lines = f",{newline}".join(inner + entry.replace("\n", f"\n{whole.step}") for entry in entries)
    return "{" + newline + lines + newline + whole.indent + "}"


def _value(node: Node, key: str) -> Node | None:
    found = node.index.get(key) if isinstance(node, MappingNode) else None
    return None if found is None else found[1]


def unwrap(text: str, node: Node, key: str) -> Edit | None:
    """Replace a value of a mapping by the entries of that value; None if the layout is not certain."""
    lines, braces = block(text, node), flow(text, node)
    value = _value(node, key)
    if value is None or not node.start <= value.start < node.end:
        return None
    if lines is not None:
        return _unwrapped_block(text, lines, key, value)
    inner = flow(text, value)
    if braces is None or inner is None:
        return None
    made: list[str] = []
    for name, written in braces.entries:
        if name != key:
            made.append(written)
        elif not inner.step:
            made += [one for _, one in inner.entries]
        else:
            made += [one.replace(f"\n{inner.step}", "\n") for _, one in inner.entries]
    return Edit(braces.start, braces.end, braces.braces(made))


def _unwrapped_block(text: str, whole: Block, key: str, value: Node) -> Edit | None:
    parts: list[str | None] = []
    for entry in whole.entries:
        if entry.key == key and entry.value is value:
            made = _without_key(text, whole, entry, value)
            if made is None:
                return None
            parts += made
        else:
            parts.append(entry.lines)
    return _lines(text, whole, parts)


def _without_key(text: str, whole: Block, entry: BlockEntry, value: Node) -> list[str | None] | None:
    before = entry.lines[: entry.at].rstrip(" ").removesuffix("\n").removesuffix("\r")
    made: list[str | None] = [before] if before else []
    braces = flow(text, value)
    if braces is not None:
        if braces.indent is not None:
            return None
        return [*made, *(" " * whole.column + written for _, written in braces.entries)]
    inner = block(text, value)
    if inner is None:
        return None
    line, _, below = entry.lines[entry.at : entry.at + inner.start - entry.start].partition("\n")
    comment = _COMMENT.fullmatch(line, line.find(":"))
    if comment is None:
        return None
    if comment[1]:
        made.append(" " * whole.column + comment[1])
    by = whole.column - inner.column
    # comments between the key and the first entry inside
    between = below.rpartition("\n")[0]
    if between:
        made.append(shifted(between.removesuffix("\r"), by))
    return [*made, *(shifted(each.lines, by) for each in inner.entries)]


def enlist(text: str, node: Node) -> Edit | None:
    """Make a value the only item of a list; None if the layout is not certain."""
    whole = block(text, node)
    if whole is not None:
        deeper = [shifted(entry.lines, _ITEM) or "" for entry in whole.entries]
        deeper[0] = f"{' ' * whole.column}- {deeper[0][whole.column + _ITEM :]}"
        return _lines(text, whole, deeper)
    scalar = isinstance(node, ScalarNode) and node.style in {"|", ">"}
    written = text[node.start : node.end]
    if scalar or is_block(text, node) or "\n" in written or not written:
        return None
    return Edit(node.start, node.end, f"[{written}]")


def _newline(text: str) -> str:
    """Return the line ending of the first line."""
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


_BEFORE: Final = re.compile(r"[ -]*")
MERGE: Final = "<<"


class BlockEntry(Struct):
    """A key with its value and the comments before it.

    Attributes:
        key: the parsed key; ``<<`` for a merge.
        lines: the lines in the file, without the last line ending.
        at: index of the key in them.
        start: index of the key in the file.
        value: its node; None for an alias, whose node is elsewhere.
    """

    key: str
    lines: str
    at: int
    start: int
    value: Node | None


class Block(Struct):
    """A mapping in block style.

    Attributes:
        start: index of its first key in the file.
        end: index after the last line of its last value, without the line ending.
        column: blanks before each key.
        entries: in the order of the file.
    """

    start: int
    end: int
    column: int
    entries: list[BlockEntry]


def is_block(text: str, node: Node) -> bool:
    """Return whether a mapping or list is in block style, not in brackets."""
    return not isinstance(node, ScalarNode) and text[content_start(text, node) : node.end][:1] not in {"{", "["}


def block(text: str, node: Node | None) -> Block | None:
    """Return a mapping in block style; None if it is not one, or cannot be split into entries."""
    if not isinstance(node, MappingNode) or not node.entries or not is_block(text, node):
        return None
    start = node.entries[0][1].start
    begin = text.rfind("\n", 0, start) + 1
    if not _BEFORE.fullmatch(text, begin, start):
        return None
    column = start - begin
    made: list[BlockEntry] = []
    behind = end = start  # of the entry before
    for key, key_node, value in node.entries:
        last = last_index(text, value, key_node)
        if last is None:
            return None
        end = _line_end(text, max(last, key_node.end))
        blanks = " " * column if behind == start else ""
        lines = f"{blanks}{text[behind:end]}".removesuffix("\r")
        made.append(
            BlockEntry(
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
    """Return the index of a value's last character, or of one after it in the line; None if not certain."""
    if key is not None and node.start < key.end:  # an alias: the node is at its anchor
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
    """Return lines indented by more or fewer blanks; None if there are too few blanks."""
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


def step(text: str, root: Node, entries: list[BlockEntry], column: int) -> int:
    """Return the number of blanks of an indentation level in the file."""
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


_BETWEEN: Final = re.compile(r"\s*,\s*")
_AROUND: Final = re.compile(r"\s*,?\s*")


class Flow(Struct):
    """A mapping in braces.

    Attributes:
        start: the index of the opening brace.
        end: the index after the closing brace.
        indent: white space before each key if each key is on a separate line; else None.
        outer: white space before the parent of the mapping.
        comma: the text between entries.
        colon: the text between a key and its value.
        quote: the quotes around keys.
        entries: each key, with the text of the key and its value.
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
        """White space that lines inside have in addition."""
        indent = self.indent or ""
        return indent.removeprefix(self.outer) if indent.startswith(self.outer) else ""

    def named(self, key: str, value: str) -> str:
        """Return an entry."""
        return f"{self.quote}{key}{self.quote}{self.colon}{value}"

    def braces(self, entries: list[str]) -> str:
        """Return entries in braces, in the layout of the mapping."""
        if self.indent is None or not entries:
            return "{" + self.comma.join(entries) + "}"
        newline = "\r\n" if "\r\n" in self.comma else "\n"
        return "{" + newline + f",{newline}".join(self.indent + entry for entry in entries) + newline + self.outer + "}"


def flow(text: str, node: Node | None) -> Flow | None:
    """Return a mapping in braces; None if it is not one, or has comments or aliases between its entries."""
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


_PLAIN: Final = re.compile(r"[A-Za-z][\w./-]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def rewrite_scalar(text: str, node: ScalarNode, value: str | int | bool | None) -> Edit | None:
    """Replace the value of a scalar (None puts the existing text in quotes); None if the form is not certain."""
    start = content_start(text, node)
    if node.style in {"|", ">"} or "\n" in text[start : node.end] or start == node.end:
        return None
    if value is None:
        return None if node.style else Edit(start, node.end, json.dumps(text[start : node.end], ensure_ascii=False))
    if not isinstance(value, str):
        return Edit(start, node.end, json.dumps(value))
    return Edit(start, node.end, quote_scalar(value, node.style))


def quote_scalar(value: str, style: str) -> str:
    """Return a string in quotes of a style; a plain one unchanged, if YAML reads it as a string."""
    if style == "'":
        return "'" + value.replace("'", "''") + "'"
    plain = not style and _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return value if plain else json.dumps(value, ensure_ascii=False)


def replaced(positions: Positions, node: ScalarNode, span: tuple[int, int], text: str) -> Edit | None:
    """Replace some characters of a scalar; None if the form is not certain."""
    place = positions.exactly(node, *span)
    if place is None or "\n" in text:
        return None
    if node.style == '"':
        text = json.dumps(text, ensure_ascii=False)[1:-1]
    return Edit(place.start, place.end, text.replace("'", "''") if node.style == "'" else text)


class Edit(Struct, frozen=True):
    """A replacement of the characters from ``start`` to ``end`` (exclusive) of a file."""

    start: int
    end: int
    text: str

    def overlaps(self, other: Edit) -> bool:
        """Return whether both change one character, or are adjacent, so that their order would matter."""
        return self.start <= other.end and other.start <= self.end
