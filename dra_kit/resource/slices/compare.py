"""Semantic comparison of what is wanted with what is stored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dra_kit.resource import v1


def same(wanted: Any, stored: Any) -> bool:
    """Whether storing ``wanted`` over ``stored`` would change anything that matters.

    Quantities compare by value; a missing ``timeAdded`` and one second more or less do not matter, for the API server
    fills it in and rounds it; fields of ``stored`` that this release does not know do not matter either, for a newer
    API server may have added them.
    """
    if wanted == stored:
        return True
    if type(wanted) is not type(stored):
        return False
    if isinstance(wanted, v1.APIModel):
        return _same_models(wanted, stored)
    if isinstance(wanted, tuple):
        return len(wanted) == len(stored) and all(map(same, wanted, stored))
    if isinstance(wanted, dict):
        return wanted.keys() == stored.keys() and all(same(value, stored[key]) for key, value in wanted.items())
    return False


def _same_models(wanted: v1.APIModel, stored: v1.APIModel) -> bool:
    if isinstance(wanted, v1.DeviceTaint) and isinstance(stored, v1.DeviceTaint):
        if not _same_time(wanted.time_added, stored.time_added):
            return False
        stored = stored.model_copy(update={"time_added": wanted.time_added})
    unknown, stored_unknown = wanted.model_extra or {}, stored.model_extra or {}
    if any(name not in stored_unknown or stored_unknown[name] != value for name, value in unknown.items()):
        return False
    return all(same(getattr(wanted, name), getattr(stored, name)) for name in type(wanted).model_fields)


def _same_time(wanted: str | None, stored: str | None) -> bool:
    if wanted is None or stored is None or wanted == stored:
        return True
    difference = datetime.fromisoformat(wanted) - datetime.fromisoformat(stored)
    return abs(difference.total_seconds()) <= 1
