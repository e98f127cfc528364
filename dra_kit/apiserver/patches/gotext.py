"""JSON values as Go prints them."""

from __future__ import annotations

from typing import Any, Final

from dra_kit.kubernetes.resource.schema.decode import TypeMismatch


def go_text(value: Any) -> str:
    """Return a JSON value as Go prints maps and slices."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{go_text(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(go_text, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "<nil>" if value is None else str(value)


_KINDS: Final = {"object": "map", "array": "slice", "number": "int64"}


def restore_text(error: TypeMismatch) -> str:
    """Return the answer to a strategic merge patch with a value of the wrong type; others get the error's own text.

    Source: k8s.io/apimachinery 0.37 ``pkg/runtime/converter.go``.
    """
    kind, type_name = _KINDS.get(error.given, error.given), error.wanted
    if type_name.startswith("[]"):
        return f"cannot restore slice from {kind}"
    if type_name.startswith("map["):
        return f"cannot restore map from {kind}"
    if type_name == "bool":
        return "unrecognized type: bool"
    if type_name == "string":
        return f"cannot convert {kind} to string" if kind in {"int64", "bool"} else "unrecognized type: string"
    return f"cannot restore struct from: {kind}" if "." in type_name else str(error)
