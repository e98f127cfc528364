from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_kit.node.state.database import Database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "state.sqlite"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    opened = Database(path)
    yield opened
    opened.close()
