"""The values of the chart as a table: defaults and comments of ``values.yaml``, types of ``values.schema.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def table(chart: Path) -> str:
    """Markdown with a heading for each group of values."""
    text = (chart / "values.yaml").read_text(encoding="utf-8")
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    said = _comments(text)
    groups: dict[str, list[str]] = {}
    for path, default in _leaves(yaml.safe_load(text), schema):
        group = path[0] if len(path) > 1 else ""
        what = said.get(path) or said.get(path[:-1] if len(path) > 2 else path, "")
        shown = json.dumps(default, ensure_ascii=False) if default not in ("", [], {}, None) else ""
        cells = [f"`{'.'.join(path)}`", _type(_at(schema, path)), f"`{shown}`" if shown else "", _cell(what)]
        groups.setdefault(group, []).append(f"| {' | '.join(cells)} |")
    parts = []
    for group, rows in groups.items():
        head = f"\n## {group}\n\n{said.get((group,), '')}\n" if group else "\n## The driver\n"
        parts.append("\n".join([head, "| value | type | default | what |", "|---|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _comments(text: str) -> dict[tuple[str, ...], str]:
    """What stands above each key."""
    said: dict[tuple[str, ...], str] = {}
    path: list[str] = []
    above: list[str] = []
    for line in text.splitlines():
        if comment := re.match(r"\s*# ?(.*)", line):
            above.append(comment[1])
        elif key := re.match(r"(\s*)(\w+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            said[tuple(path)] = " ".join(above)
            above = []
        else:
            above = []
    return said


def _at(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The part of the schema that is about one value."""
    part = schema
    for name in path:
        part = _resolved(schema, part).get("properties", {}).get(name, {})
    return _resolved(schema, part)


def _resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    reference = part.get("$ref", "").removeprefix("#/definitions/")
    return {**schema["definitions"][reference]} if reference else part


def _leaves(values: Any, schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value that can be set by itself, with its default."""
    if isinstance(values, dict) and (not path or _at(schema, path).get("properties")):
        for name, value in values.items():
            yield from _leaves(value, schema, (*path, name))
    else:
        yield path, values


def _type(part: dict[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "anyOf" in part:
        return "string"
    kind = part.get("type", "")
    bounds = [f"from {part['minimum']}"] if "minimum" in part else []
    bounds += [f"to {part['maximum']}"] if "maximum" in part else []
    return " ".join([" or ".join(kind) if isinstance(kind, list) else kind, *bounds])


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
