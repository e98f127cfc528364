"""JSON merge patch, RFC 7396."""

from __future__ import annotations

from typing import Any


def apply(document: Any, patch: Any) -> Any:
    """Return the patched document; neither argument is changed, and the result may share parts with both."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = apply(merged.get(key), value)
    return merged
