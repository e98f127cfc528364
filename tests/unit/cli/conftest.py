from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.kitchen import Kitchen


@pytest.fixture(autouse=True)
def _own_logging(logging_restored: None) -> None:
    """Commands that run in the process of the tests leave nothing behind."""


@pytest.fixture
def kitchen() -> Iterator[Kitchen]:
    # a short path: sockets lie below it
    with tempfile.TemporaryDirectory(prefix="k-") as directory:
        yield Kitchen(Path(directory))
