"""JSON as values of CEL: objects of the API in expressions of admission."""

from __future__ import annotations

from typing import Any

from dra_kit.cel.values import INT_MAX, INT_MIN, StringMap


def json_value(value: Any) -> Any:
    """Return parsed JSON as a value of CEL; integers of more than 64 bits become doubles, as in Kubernetes.

    Args:
        value: what a JSON parser returns; it may share parts with the result and must not change any more.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None or kind is float:
        return value
    if isinstance(value, dict):
        return StringMap({key: json_value(item) for key, item in value.items()})
    if isinstance(value, list):
        return [json_value(item) for item in value]
    if isinstance(value, int):
        return int(value) if INT_MIN <= value <= INT_MAX else float(value)
    return float(value) if isinstance(value, float) else str(value)
