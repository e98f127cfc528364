"""Fields that move a level up or down, and values that become items: comments and layout go with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from dra_kit.kubernetes.manifests.yaml_reader import MappingNode, Node, ScalarNode
from dra_kit.lint.fixes.blocks import Block, Entry, block, is_block, shifted, step
from dra_kit.lint.fixes.fix import Edit
from dra_kit.lint.fixes.flows import Flow, flow

_ITEM: Final = len("- ")
_COMMENT: Final = re.compile(r":[ \t]*(#[^\r\n]*)?\r?")


def enclosed(text: str, root: Node, node: Node, keys: Sequence[str], under: str) -> Edit | None:
    """Return some entries of a mapping as entries of one of its values; None if it is not certain how to write that."""
    lines, braces = block(text, node), flow(text, node)
    if lines is not None:
        moved = [entry for entry in lines.entries if entry.key in keys]
        once = len(moved) == len(keys)  # and not merged from elsewhere, or twice
        parts = _enclosed_block(text, root, lines, moved, under) if once else None
        return None if parts is None else _lines(lines, parts, _newline(text))
    return None if braces is None else _enclosed_flow(text, node, braces, keys, under)


def _enclosed_block(text: str, root: Node, whole: Block, moved: list[Entry], under: str) -> list[str | None] | None:
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


def _into_braces(text: str, whole: Block, moved: list[Entry], there: Entry) -> list[str | None] | None:
    """Return entries of a line each, without comments, as entries of a value in braces of one line."""
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


def _lines(whole: Block, parts: Sequence[str | None], newline: str) -> Edit | None:
    certain = [part for part in parts if part is not None]
    made = whole.joined(certain, newline) if len(certain) == len(parts) else None
    return None if made is None else Edit(whole.start, whole.end, made)


def _enclosed_flow(text: str, node: Node, whole: Flow, keys: Sequence[str], under: str) -> Edit | None:
    moved = [written for key, written in whole.entries if key in keys]
    made: list[str] = []
    there = _value(node, under)
    inner = flow(text, there) if there is not None else None
    if len(moved) != len(keys) or (there is not None and (inner is None or not node.start <= there.start < node.end)):
        return None
    for key, written in whole.entries:
        if inner is not None and key == under:
            # the entries that move are indented as those that are there, one level more than before
            deeper = [one.replace("\n", f"\n{whole.step}") for one in moved]
            made.append(whole.named(under, inner.braces([*(one for _, one in inner.entries), *deeper])))
        elif key not in keys:
            made.append(written)
        elif inner is None and written is moved[0]:
            made.append(whole.named(under, _deeper(whole, moved)))
    return Edit(whole.start, whole.end, whole.braces(made))


def _deeper(whole: Flow, entries: list[str]) -> str:
    """Return entries in braces of their own; ``whole`` indents what follows its first line by itself."""
    if whole.indent is None:
        return whole.braces(entries)
    newline = "\r\n" if "\r\n" in whole.comma else "\n"
    inner = whole.indent + whole.step
    lines = f",{newline}".join(inner + entry.replace("\n", f"\n{whole.step}") for entry in entries)
    return "{" + newline + lines + newline + whole.indent + "}"


def _value(node: Node, key: str) -> Node | None:
    found = node.index.get(key) if isinstance(node, MappingNode) else None
    return None if found is None else found[1]


def unwrapped(text: str, node: Node, key: str) -> Edit | None:
    """Return a mapping with one of its values replaced by the entries of that value; None if it is not certain."""
    lines, braces = block(text, node), flow(text, node)
    value = _value(node, key)
    if value is None or not node.start <= value.start < node.end:
        return None
    if lines is not None:
        return _unwrapped_block(text, lines, key, value, _newline(text))
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


def _unwrapped_block(text: str, whole: Block, key: str, value: Node, newline: str) -> Edit | None:
    parts: list[str | None] = []
    for entry in whole.entries:
        if entry.key == key and entry.value is value:
            made = _without_key(text, whole, entry, value)
            if made is None:
                return None
            parts += made
        else:
            parts.append(entry.lines)
    return _lines(whole, parts, newline)


def _without_key(text: str, whole: Block, entry: Entry, value: Node) -> list[str | None] | None:
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
    # comments between the key and the first one inside
    between = below.rpartition("\n")[0]
    if between:
        made.append(shifted(between.removesuffix("\r"), by))
    return [*made, *(shifted(each.lines, by) for each in inner.entries)]


def enlisted(text: str, node: Node) -> Edit | None:
    """Return a value as the only item of a list; None if it is not certain how to write that."""
    whole = block(text, node)
    if whole is not None:
        deeper = [shifted(entry.lines, _ITEM) or "" for entry in whole.entries]
        deeper[0] = f"{' ' * whole.column}- {deeper[0][whole.column + _ITEM :]}"
        return _lines(whole, deeper, _newline(text))
    scalar = isinstance(node, ScalarNode) and node.style in {"|", ">"}
    written = text[node.start : node.end]
    if scalar or is_block(text, node) or "\n" in written or not written:
        return None
    return Edit(node.start, node.end, f"[{written}]")


def _newline(text: str) -> str:
    """Return what ends the first line."""
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"
