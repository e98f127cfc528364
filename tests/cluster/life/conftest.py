"""Fixtures of the node's life: one driver for all scenarios of a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.life.node import Node
from tests.cluster.plane import Plane


@pytest.fixture(scope="package")
def bakery(node_plane: Plane) -> Iterator[Node]:
    """The node with the bakery."""
    if node_plane.tool is None:
        pytest.skip(f"this test restarts parts of the cluster; found {node_plane.why}")
    with Node.open(node_plane) as node:
        yield node


@pytest.fixture
def life(bakery: Node) -> Iterator[Node]:
    """The same, put right when a scenario fails."""
    yield bakery
    bakery.settle()
