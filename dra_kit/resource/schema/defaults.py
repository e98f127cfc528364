"""Defaults that depend on nothing but a field's absence.

``defaults.json`` holds, for each type, what Kubernetes 1.37 fills in (``pkg/apis/*/v1*/defaults.go``); defaults that
depend on other fields are in the strategies.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from dra_kit.resource.schema.decode import decode
from dra_kit.resource.schema.table import LIST, MAP, item_type, struct


@cache
def _table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(
        resources.files("dra_kit.resource.schema").joinpath("defaults.json").read_text()
    )
    return table


@cache
def _has_defaults(type_name: str) -> bool:
    """Return whether a type, or one that it reaches, has defaults."""
    waiting, seen = [type_name], set[str]()
    while waiting:
        name = waiting.pop().removeprefix(LIST).removeprefix(MAP)
        if name in _table():
            return True
        known = None if name in seen else struct(name)
        seen.add(name)
        waiting += [entry.type for entry in known.fields.values()] if known else ()
    return False


def apply_defaults(value: Any, type_name: str) -> None:
    """Fill in the defaults of a decoded value, in place and at every depth."""
    if not _has_defaults(type_name):
        return
    if type_name.startswith((LIST, MAP)):
        below = item_type(type_name)
        for item in value.values() if isinstance(value, dict) else value:
            apply_defaults(item, below)
        return
    known = struct(type_name)
    if known is None:
        return
    for name, default in _table().get(type_name, {}).items():
        # the zero value of a field that is no pointer cannot be told from absence
        if value.get(name) is None or (known.fields[name].presence != "pointer" and value[name] in ("", 0)):
            value[name] = decode(default, known.fields[name].type)
    for name, entry in known.fields.items():
        if (item := value.get(name)) is not None:
            apply_defaults(item, entry.type)
