"""Access to what the Go library was recorded to do, see tests/data/cdi/README.md."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Literal

DATA = Path(__file__).parents[3] / "data" / "cdi"


def recorded(name: Literal["verdicts", "resolutions"]) -> list[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
