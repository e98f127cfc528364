"""Recorded requests to a Kubernetes 1.37 API server, and its verdicts (tests/data/golden/api)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.golden.api_client import expand
from tests.golden.files import read
from tests.golden.kind import Line
from tests.golden.pins import DATA


def sequences(name: str) -> Iterator[Line]:
    """Return the lines of one file with repetitions expanded."""
    yield from map(expand, read(DATA / "golden" / "api" / f"{name}.jsonl.gz"))
