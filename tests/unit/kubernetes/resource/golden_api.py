"""Recorded requests to a Kubernetes 1.37 API server, and its verdicts (tests/data/golden/api)."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parents[3] / "data" / "golden" / "api"


def sequences(name: str) -> Iterator[dict[str, Any]]:
    """Return the lines of one file with repetitions expanded."""
    with gzip.open(_DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield _expand(json.loads(line))


def _expand(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"\$\{repeat:(.*?):(\d+)\}", lambda match: match[1] * int(match[2]), value)
    if isinstance(value, dict):
        return {_expand(key): _expand(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item) for item in value]
    return value
