"""Values inside of JSON, by the keys and indexes that lead to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def value_at(value: Any, keys: Iterable[str | int]) -> Any:
    """Return the value at a path; None where the path leads nowhere, whatever stands in its way.

    Args:
        value: any JSON value.
        keys: of objects, and indexes of lists from 0. No key is the value itself.
    """
    for key in keys:
        if isinstance(value, (dict, Mapping)):  # dict: asked first, because it costs little
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
            value = value[key]
        else:
            return None
    return value
