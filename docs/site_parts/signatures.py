"""Short signatures of models, dataclasses and structs, with annotations as written in the source."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic_core import PydanticUndefined


def of(what: Any) -> str | None:
    """Return for example ``(*, name: str, taints: Sequence[DeviceTaint] = ())``; None for any other object."""
    if isinstance(what, type) and issubclass(what, BaseModel):
        fields = what.model_fields
        required = {name for name, field in fields.items() if field.is_required()}
        defaults = {name: field.default for name, field in fields.items()}
        # a base class of models may have no fields
        return _signature(what, required, defaults, next(iter(fields))) if fields else ""
    if isinstance(what, type) and dataclasses.is_dataclass(what) and "__init__" in vars(what):
        given = {field.name: field.default for field in dataclasses.fields(what) if field.init}
        without = {field.name for field in dataclasses.fields(what) if field.default_factory is dataclasses.MISSING}
        required = {name for name in without if given.get(name) is dataclasses.MISSING}
        by_name = next((field.name for field in dataclasses.fields(what) if field.kw_only), "")
        return _signature(what, required, given, by_name)
    if isinstance(what, type) and issubclass(what, msgspec.Struct):
        struct_fields = msgspec.structs.fields(what)
        required = {field.name for field in struct_fields if field.required}
        defaults = {field.name: field.default for field in struct_fields}
        return _signature(what, required, defaults, by_name="")
    return None


def _signature(home: type, required: set[str], defaults: dict[str, Any], by_name: str) -> str:
    """Format a signature; ``by_name`` is the first keyword-only argument."""
    arguments: list[str] = []
    for name, default in defaults.items():
        arguments += ["*"] if name == by_name else []
        written = next(
            base.__annotations__[name] for base in home.__mro__ if name in vars(base).get("__annotations__", {})
        )
        # each default factory here returns a mapping
        made = default in (PydanticUndefined, dataclasses.MISSING, msgspec.NODEFAULT)
        arguments.append(f"{name}: {written}" + ("" if name in required else f" = {'{}' if made else repr(default)}"))
    return f"({', '.join(arguments)})"
