"""Fixtures of the node's life: one driver for all scenarios of a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.life.cluster import PlaneCluster
from tests.cluster.plane import Plane
from tests.life.node import Node


@pytest.fixture(scope="package")
def bakery(node_plane: Plane) -> Iterator[Node]:
    """The node with the bakery."""
    if node_plane.tool is None:
        pytest.skip(f"this test restarts parts of the cluster; found {node_plane.why}")
    with PlaneCluster.open(node_plane) as cluster, Node.open(cluster) as node:
        yield node


@pytest.fixture
def life(bakery: Node) -> Iterator[Node]:
    """The same, put right when a scenario fails."""
    yield bakery
    bakery.settle()
