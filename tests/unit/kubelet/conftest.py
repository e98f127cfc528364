from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def kubelet_dir() -> Iterator[Path]:
    """A kubelet root directory with a path short enough for sockets, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="k") as directory:
        yield Path(directory)


@pytest.fixture
def socket(kubelet_dir: Path) -> Path:
    """Path of the service socket."""
    return kubelet_dir / "plugins" / "dra.pizza" / "dra.sock"
