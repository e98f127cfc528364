"""The number of lines of each data file, to detect missing and truncated files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).parents[1] / "data"
PINS: Final[Mapping[str, int]] = tomllib.loads((DATA / "pins.toml").read_text(encoding="utf-8"))
"""Path below ``tests/data`` -> number of lines."""


def pinned(pattern: str) -> list[Path]:
    """Return the pinned files that match a pattern, also missing ones.

    Raises:
        LookupError: no pin matches.
    """
    found = [DATA / name for name in PINS if Path(name).match(pattern)]
    if not found:
        raise LookupError(f"tests/data/pins.toml names no file {pattern}")
    return found
