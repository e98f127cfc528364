"""The schema of a driver's own settings as values of the chart, made of its pydantic model."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from dra_kit.chart.schema import plain

_TEMPLATE: Final = {"type": "string", "pattern": r"\{\{"}
"""``'{{ .Release.Namespace }}'``: what it becomes is known only when it is rendered."""


def settings_schema(model: type[BaseModel] | None) -> dict[str, Any]:
    """Return the schema of ``node.settings`` of one driver.

    None of them is required: the image or ``extraEnv`` may give it.

    Args:
        model: of its settings; None where it has none.
    """
    properties: dict[str, Any] = {}
    if model is not None:
        for name, part in _properties(model).items():
            description = model.model_fields[name].description
            properties[name] = {**({"description": description} if description else {}), **_or_template(part)}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _or_template(part: dict[str, Any]) -> dict[str, Any]:
    choices = part.get("anyOf", [part])
    if any(choice in ({"type": "string"}, {}) for choice in choices):
        return part  # any text
    return {"anyOf": [*choices, _TEMPLATE]}


def _properties(model: type[BaseModel]) -> dict[str, Any]:
    try:
        made = model.model_json_schema(by_alias=False)
    except PydanticInvalidForJsonSchema:  # a type that JSON cannot say: its text is checked by the roles alone
        return {name: {} for name in model.model_fields}
    found: dict[str, Any] = plain(made, made.get("$defs", {})).get("properties", {})
    return found
