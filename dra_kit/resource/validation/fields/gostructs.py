"""Objects as the API server prints them in errors: with the names of Go's fields, every one of them, in their order."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from dra_kit.resource import v1
from dra_kit.resource.fielderror import GoStruct

_GO_NAMES: Final = {"cel": "CEL", "uid": "UID", "api_group": "APIGroup"}


def go_struct(model: BaseModel) -> GoStruct:
    """Return a model as a Go struct; empty lists and maps are null, as they are after decoding."""
    named = {name: field.alias or name for name, field in type(model).model_fields.items()}
    return GoStruct({
        _GO_NAMES.get(name) or alias[:1].upper() + alias[1:]: _go_value(getattr(model, name))
        for name, alias in named.items()
    })  # fmt: skip


def go_template_spec(spec: v1.ResourceClaimTemplateSpec) -> GoStruct:
    """Return the spec of a template: the fields of its metadata, written as in JSON, beside those of the struct."""
    return GoStruct({**spec.metadata.to_json(), "Spec": go_struct(spec.spec)})


def _go_value(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return go_struct(value)
    if isinstance(value, tuple):
        return [_go_value(item) for item in value] or None
    return None if value == {} else value
