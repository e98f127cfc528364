from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sandbox.dev.desk import Desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    with tempfile.TemporaryDirectory(prefix="d-", dir="/tmp") as directory, Desk(Path(directory)) as made:
        yield made
