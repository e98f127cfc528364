"""Strict models that take any sequence for a list, and any mapping for a dict."""

from __future__ import annotations

from typing import Any, Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

_CONTAINERS: Final = frozenset({"list", "tuple", "dict"})
_VALUES: Final = frozenset({"default", "metadata", "expected", "config", "serialization"})
"""Where a schema holds what is no schema."""


def with_lax_containers(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a strict model whose lists, tuples and dicts are made of any sequence or mapping.

    What is in them stays as strict as it was, and so does everything that is validated with ``strict=True``.

    Args:
        source: as ``__get_pydantic_core_schema__`` is given it.
        handler: likewise.
    """
    schema = handler(source)
    _relax(handler.resolve_ref_schema(schema))
    return schema


def _relax(schema: Any) -> None:
    if isinstance(schema, list | tuple):
        for item in schema:
            _relax(item)
    elif isinstance(schema, dict):
        if isinstance(kind := schema.get("type"), str) and kind in _CONTAINERS:
            schema["strict"] = False
        for key, value in schema.items():
            if key not in _VALUES:
                _relax(value)
