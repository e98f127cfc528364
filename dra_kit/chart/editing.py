"""A value put into a text of YAML, whose comments and order stay as a person wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from dra_kit.chart.comments import Path

WIDTH: Final = 120
"""Columns of a line."""


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as a person would write them, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out."""
        del data
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def lines_of(values: Mapping[str, Any], indent: int = 0) -> list[str]:
    """Return values as lines of YAML.

    Args:
        values: a mapping of whatever YAML can say.
        indent: blanks before each line.
    """
    text: str = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, width=WIDTH, allow_unicode=True)
    return [f"{' ' * indent}{line}" if line else "" for line in text.splitlines()]


def with_value(text: str, path: Path, value: Any) -> str:
    """Return the text with one value set: in the place of the former one, or added to its group.

    Args:
        text: a mapping in YAML, or nothing.
        path: names of the value, outermost first.
        value: of whatever YAML can say.

    Comments are lost only where the text has aliases, or is in braces as a whole.
    """
    lines = text.splitlines()
    document: Any = yaml.compose(_joined(lines), yaml.SafeLoader)
    if not isinstance(document, yaml.MappingNode) or document.flow_style or _has_aliases(text):
        whole = yaml.safe_load(text) or {}
        return _joined(lines_of(_nested(whole, path, value)))
    group, first, column = document, len(lines), 0
    for depth, name in enumerate(path):
        pair = next((pair for pair in group.value if pair[0].value == name), None)
        if pair is None:
            made = lines_of(_nested({}, path[depth:], value), column)
            return _joined([*lines[:first], *made, *lines[first:]])
        key, found = pair
        if depth == len(path) - 1 or not isinstance(found, yaml.MappingNode) or found.flow_style or not found.value:
            start, end = key.start_mark.line, _end(lines, found)
            former = yaml.safe_load("\n".join(lines[start:end]))
            made = lines_of(_nested(former, path[depth:], value), column)
            return _joined([*lines[:start], *made, *lines[end:]])
        group, first, column = found, key.start_mark.line + 1, found.value[0][0].start_mark.column
    return text


def _has_aliases(text: str) -> bool:
    """Whether a value is written in another place, which may be the one that changes."""
    return any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, yaml.SafeLoader))


def _nested(below: Any, path: Path, value: Any) -> Any:
    """Return the mapping with the value in it."""
    name, *inner = path
    kept = below if isinstance(below, Mapping) else {}
    return {**kept, name: _nested(kept.get(name), tuple(inner), value) if inner else value}


def _end(lines: list[str], node: yaml.Node) -> int:
    """Return the line after the last one of a value; comments that follow it belong to what comes next."""
    text = isinstance(node, yaml.ScalarNode) and node.style in {"|", ">"}
    # the end of a block is where the next token begins
    block = text or (isinstance(node, yaml.CollectionNode) and not node.flow_style)
    end = node.end_mark.line if block else node.end_mark.line + 1
    while end > node.start_mark.line + 1:
        last = lines[end - 1].strip()
        if last and (text or not last.startswith("#")):
            break
        end -= 1
    return end


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
