"""Generate the chart's ``values.schema.json`` and tables of values: ``python -m dra_kit.project.chart_schema``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from dra_kit.project.chart_values import ChartValues

_DRAFT: Final = "http://json-schema.org/draft-07/schema#"  # every helm 3 supports it
_GLOBAL: Final = {"type": "object", "description": "Values that helm shares between a chart and its subcharts"}
_LEFT_OUT: Final = {"$defs", "title", "default", "description", "ge", "gt", "le", "lt", "multiple_of"}
"""The limits are those of quantities, which a JSON schema cannot compare."""


def values_schema(text: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON schema of the values.

    Args:
        text: the text of ``values.yaml``, whose comments become descriptions.
        settings: the schema of ``node.settings`` of one driver; None for any driver.
    """
    made = ChartValues.model_json_schema()
    properties = plain(made, made.get("$defs", {}))["properties"]
    if settings is not None:
        properties["node"]["properties"]["settings"] = dict(settings)
    properties = {name: _or_null(part) for name, part in properties.items()}
    _describe(properties, value_comments(text), ())
    return {
        "$schema": _DRAFT,
        "title": "Values of the dra-driver chart",
        "type": "object",
        "additionalProperties": False,
        "properties": {"global": _GLOBAL, **properties},
    }


def plain(part: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema of pydantic, or a part of it, as draft 7, without titles, defaults and docstrings.

    References are replaced by their definitions; recursive ones accept anything.
    """
    if isinstance(part, list):
        return [plain(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        name = part["$ref"].removeprefix("#/$defs/")
        return plain(definitions.get(name, {}), {key: item for key, item in definitions.items() if key != name})
    found: dict[str, Any] = {}
    for name, value in part.items():
        if name in {"properties", "patternProperties"}:
            found[name] = {key: plain(item, definitions) for key, item in value.items()}
        elif name not in _LEFT_OUT and (name, value) != ("additionalProperties", True):
            found[name] = plain(value, definitions)
    if "patternProperties" in found:
        found.setdefault("additionalProperties", False)  # a key that matches no pattern is not a name
    return _one_of_types(found)


def _one_of_types(part: dict[str, Any]) -> dict[str, Any]:
    """Return a list of types for an ``anyOf`` of types, for shorter messages of helm."""
    choices = part.get("anyOf", [])
    if choices and all(choice.keys() == {"type"} for choice in choices):
        del part["anyOf"]
        part["type"] = [choice["type"] for choice in choices]
    return part


def _or_null(part: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that also accepts null, with which helm removes a default, and which ``--reuse-values`` keeps."""
    made = dict(part)
    if "anyOf" in made:
        made["anyOf"] = [*made["anyOf"], *([] if {"type": "null"} in made["anyOf"] else [{"type": "null"}])]
    if "type" in made:
        types = made["type"] if isinstance(made["type"], list) else [made["type"]]
        made["type"] = [*types, *([] if "null" in types else ["null"])]
    if "enum" in made:
        made["enum"] = [*made["enum"], None]
    for name in ("properties", "patternProperties"):
        if name in made:
            made[name] = {key: _or_null(item) for key, item in made[name].items()}
    if isinstance(made.get("additionalProperties"), dict):
        made["additionalProperties"] = _or_null(made["additionalProperties"])
    return made


def _describe(properties: dict[str, Any], descriptions: Mapping[ValuePath, str], above: ValuePath) -> None:
    for name, part in list(properties.items()):
        path = (*above, name)
        _describe(part.get("properties", {}), descriptions, path)
        if descriptions.get(path):
            properties[name] = {"description": descriptions[path], **part}


def value_tables(text: str, schema: Mapping[str, Any], *, level: int = 2) -> str:
    """Return a heading of that level and a table for each group of values in the text of ``values.yaml``."""
    described = value_comments(text)
    groups: dict[str, list[str]] = {}
    for path, default in _leaves(yaml.safe_load(text), schema):
        group = path[0] if len(path) > 1 else ""
        what = described.get(path) or described.get(path[:-1] if len(path) > 2 else path, "")
        shown = json.dumps(default, ensure_ascii=False) if default not in ("", [], {}, None) else ""
        cells = [
            f"`{'.'.join(path)}`",
            _type(_at(schema, path)),
            f"`{shown}`" if shown else "",
            what.replace("|", r"\|"),
        ]
        groups.setdefault(group, []).append(f"| {' | '.join(cells)} |")
    parts = []
    for group, rows in groups.items():
        head = f"\n{'#' * level} {group or 'The driver'}\n" + (
            f"\n{described[group,]}\n" if described.get((group,)) else ""
        )
        parts.append("\n".join([head, "| value | type | default | what |", "|---|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _at(schema: Mapping[str, Any], path: ValuePath) -> Mapping[str, Any]:
    """Return the part of the schema of one value."""
    part = schema
    for name in path:
        part = part.get("properties", {}).get(name, {})
    return part


def _leaves(values: Any, schema: Mapping[str, Any], path: ValuePath = ()) -> Iterator[tuple[ValuePath, Any]]:
    """Yield each value that can be set separately, with its default."""
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


ValuePath: TypeAlias = tuple[str, ...]
"""Names of a value, outermost first: ``("node", "kubeletDir")``."""


def value_comments(text: str) -> Mapping[ValuePath, str]:
    """Return the comment above each key, as one line; empty for a key without a comment.

    Args:
        text: the text of ``values.yaml``, indented by two spaces per level.
    """
    comments_by_path: dict[ValuePath, str] = {}
    path: list[str] = []
    above: list[str] = []
    for line in text.splitlines():
        if comment := re.match(r"\s*# ?(.*)", line):
            above.append(comment[1])
        elif key := re.match(r"(\s*)(\w+):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            comments_by_path[tuple(path)] = " ".join(above)
            above = []
        else:
            above = []
    return comments_by_path


CHART: Final = Path(__file__).parents[2] / "charts" / "dra-driver"
_DEFAULTS: Final = (
    "# Made of values.yaml by `make chart`: what the templates take for values that are null or missing.\n"
)
_TABLES: Final = re.compile(r"(?<=<!-- values -->\n).*(?=<!-- end of values -->)", re.DOTALL)


def generated(chart: Path) -> Mapping[Path, str]:
    """Return the content of each file in the chart's folder that is generated from the model and ``values.yaml``."""
    values = (chart / "values.yaml").read_text(encoding="utf-8")
    schema = values_schema(values)
    readme = (chart / "README.md").read_text(encoding="utf-8")
    tabled = _TABLES.sub(lambda _: f"{value_tables(values, schema, level=3)}\n", readme)
    return {
        chart / "values.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        chart / "files" / "defaults.yaml": _DEFAULTS
        + yaml.safe_dump(_scalars(yaml.safe_load(values), schema), sort_keys=False),
        chart / "README.md": tabled,
    }


def _scalars(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults without maps and lists, for which null is the same as empty."""
    made: dict[str, Any] = {}
    for name, value in values.items():
        part = schema["properties"][name]
        if isinstance(value, dict) and part.get("properties"):
            made[name] = _scalars(value, part)
        elif not isinstance(value, (dict, list)):
            made[name] = value
    return made


def main() -> None:
    """Write the generated files of the chart."""
    for path, text in generated(CHART).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
