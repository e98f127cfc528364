"""JSON values as Go prints them."""

from __future__ import annotations

import re
from typing import Any, Final


def go_text(value: Any) -> str:
    """A JSON value as Go prints maps and slices."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{go_text(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(go_text, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "<nil>" if value is None else str(value)


_MISMATCH: Final = re.compile(r"json: cannot unmarshal (\w+) into a field of type (\S+)(?: \(.*\))?")
_KINDS: Final = {"object": "map", "array": "slice", "number": "int64"}


def restore_text(text: str) -> str:
    """What a strategic merge patch is told about a value of the wrong type, which other requests are told as JSON.

    Source: k8s.io/apimachinery 0.37 ``pkg/runtime/converter.go``.
    """
    match = _MISMATCH.fullmatch(text)
    if match is None:
        return text
    kind, type_name = _KINDS.get(match[1], match[1]), match[2]
    if type_name.startswith("[]"):
        return f"cannot restore slice from {kind}"
    if type_name.startswith("map["):
        return f"cannot restore map from {kind}"
    if type_name == "bool":
        return "unrecognized type: bool"
    if type_name == "string":
        return f"cannot convert {kind} to string" if kind in {"int64", "bool"} else "unrecognized type: string"
    return f"cannot restore struct from: {kind}" if "." in type_name else text
