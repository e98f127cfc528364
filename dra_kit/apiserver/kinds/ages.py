"""Ages as kubectl prints them.

Source of the texts: k8s.io/apimachinery 0.37 ``pkg/util/duration``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86_400, 31_536_000
UNKNOWN: Final = "<unknown>"


def age(timestamp: str | None, moment: datetime) -> str:
    """Return how long ago a ``Time`` or ``MicroTime`` was, as kubectl prints it."""
    if not timestamp:
        return UNKNOWN
    return duration(int((moment - datetime.fromisoformat(timestamp)).total_seconds()))


def duration(seconds: int) -> str:
    """Return seconds in one or two units, such as ``5m10s`` and ``3d4h``."""
    if seconds < 0:
        return "0s" if seconds >= -1 else "<invalid>"
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 10 * _MINUTE:
        return _two(seconds, _MINUTE, "m", 1, "s")
    if seconds < 3 * _HOUR:
        return f"{seconds // _MINUTE}m"
    if seconds < 8 * _HOUR:
        return _two(seconds, _HOUR, "h", _MINUTE, "m")
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR}h"
    if seconds < 8 * _DAY:
        return _two(seconds, _DAY, "d", _HOUR, "h")
    if seconds < 2 * _YEAR:
        return f"{seconds // _DAY}d"
    if seconds < 8 * _YEAR:
        return _two(seconds, _YEAR, "y", _DAY, "d")
    return f"{seconds // _YEAR}y"


def _two(seconds: int, unit: int, name: str, small: int, small_name: str) -> str:
    rest = seconds % unit // small
    return f"{seconds // unit}{name}" + (f"{rest}{small_name}" if rest else "")
