from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.kitchen import Kitchen


@pytest.fixture
def kitchen() -> Iterator[Kitchen]:
    # a short path: sockets lie below it
    with tempfile.TemporaryDirectory(prefix="k-") as directory:
        yield Kitchen(Path(directory))
