from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.unit.sandbox.cluster.kubelet.node import Node, node


@pytest.fixture
def kubelet_dir() -> Iterator[Path]:
    """A kubelet root directory with a path short enough for sockets, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="k") as directory:
        yield Path(directory)


@pytest.fixture
async def kitchen(kubelet_dir: Path) -> AsyncIterator[Node]:
    """A node whose kubelet waits a hundredth of the time."""
    async with node(kubelet_dir) as made:
        yield made
