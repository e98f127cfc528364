"""Known differences from golden files with reasons: ``exceptions.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


def may_differ(case: str) -> bool:
    """Whether a case is known to differ."""
    return case in _table()["different"]


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
