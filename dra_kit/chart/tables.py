"""The values of the chart as Markdown: defaults and comments of ``values.yaml``, types of ``values.schema.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from dra_kit.chart.comments import Path, comments


def tables(text: str, schema: Mapping[str, Any], *, level: int = 2) -> str:
    """Return a heading and a table for each group of values.

    Args:
        text: of ``values.yaml``.
        schema: of the values.
        level: of the headings.
    """
    described = comments(text)
    groups: dict[str, list[str]] = {}
    for path, default in _leaves(yaml.safe_load(text), schema):
        group = path[0] if len(path) > 1 else ""
        what = described.get(path) or described.get(path[:-1] if len(path) > 2 else path, "")
        shown = json.dumps(default, ensure_ascii=False) if default not in ("", [], {}, None) else ""
        cells = [f"`{'.'.join(path)}`", _type(_at(schema, path)), f"`{shown}`" if shown else "", _cell(what)]
        groups.setdefault(group, []).append(f"| {' | '.join(cells)} |")
    parts = []
    for group, rows in groups.items():
        head = f"\n{'#' * level} {group or 'The driver'}\n" + (
            f"\n{described[group,]}\n" if described.get((group,)) else ""
        )
        parts.append("\n".join([head, "| value | type | default | what |", "|---|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _at(schema: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return the part of the schema of one value."""
    part = schema
    for name in path:
        part = part.get("properties", {}).get(name, {})
    return part


def _leaves(values: Any, schema: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield each value that can be set by itself, with its default."""
    if isinstance(values, dict) and (not path or _at(schema, path).get("properties")):
        for name, value in values.items():
            yield from _leaves(value, schema, (*path, name))
    else:
        yield path, values


def _type(part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"] if value is not None)
    kind = part.get("type") or [str(choice.get("type", "")) for choice in part.get("anyOf", ())]
    kinds = [item for item in ([kind] if isinstance(kind, str) else kind) if item != "null"]  # every value may be null
    bounds = [f"from {part['minimum']}"] if "minimum" in part else []
    bounds += [f"to {part['maximum']}"] if "maximum" in part else []
    return " ".join([" or ".join(kinds), *bounds])


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
