"""``values.schema.json``: what helm refuses before it renders anything; made of the model and the comments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dra_kit.chart.comments import Path, comments
from dra_kit.chart.values import ChartValues

_DRAFT: Final = "http://json-schema.org/draft-07/schema#"  # what every helm 3 reads
_GLOBAL: Final = {"type": "object", "description": "Helm hands it to charts that this one is a part of"}
_DEFINITIONS: Final = "#/$defs/"
_LEFT_OUT: Final = {"$defs", "title", "default", "description"}


def values_schema(text: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON schema of the values.

    Args:
        text: of ``values.yaml``, whose comments become descriptions.
        settings: schema of ``node.settings``, by the driver's own model; None: of any driver.
    """
    made = ChartValues.model_json_schema()
    properties = plain(made, made.get("$defs", {}))["properties"]
    if settings is not None:
        properties["node"]["properties"]["settings"] = dict(settings)
    properties = {name: _or_null(part) for name, part in properties.items()}
    _describe(properties, comments(text), ())
    return {
        "$schema": _DRAFT,
        "title": "Values of the dra-driver chart",
        "type": "object",
        "additionalProperties": False,
        "properties": {"global": _GLOBAL, **properties},
    }


def plain(part: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema of pydantic without references, titles, defaults and docstrings, as draft 7 writes it.

    Args:
        part: of the schema.
        definitions: that it refers to; one that refers to itself is anything from there on.
    """
    if isinstance(part, list):
        return [plain(item, definitions) for item in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        name = part["$ref"].removeprefix(_DEFINITIONS)
        return plain(definitions.get(name, {}), {key: item for key, item in definitions.items() if key != name})
    found: dict[str, Any] = {}
    for name, value in part.items():
        if name in {"properties", "patternProperties"}:
            found[name] = {key: plain(item, definitions) for key, item in value.items()}
        elif name not in _LEFT_OUT and (name, value) != ("additionalProperties", True):
            found[name] = plain(value, definitions)
    if "patternProperties" in found:
        found.setdefault("additionalProperties", False)  # what matches no pattern is no name
    return _one_of_types(found)


def _one_of_types(part: dict[str, Any]) -> dict[str, Any]:
    """Return a list of types for an ``anyOf`` of nothing but types: helm's messages are shorter then."""
    choices = part.get("anyOf", [])
    if choices and all(choice.keys() == {"type"} for choice in choices):
        return {
            **{name: value for name, value in part.items() if name != "anyOf"},
            "type": [c["type"] for c in choices],
        }
    return part


def _or_null(part: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that takes null, too: for helm it removes a default, and ``--reuse-values`` keeps it."""
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


def _describe(properties: dict[str, Any], descriptions: Mapping[Path, str], above: Path) -> None:
    for name, part in list(properties.items()):
        path = (*above, name)
        _describe(part.get("properties", {}), descriptions, path)
        if descriptions.get(path):
            properties[name] = {"description": descriptions[path], **part}
