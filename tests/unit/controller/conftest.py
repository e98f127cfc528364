"""Servers for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dra_kit.client.api import Client
from tests.unit.controller.cluster import connected
from tests.unit.controller.cluster_api import ClusterApi


@pytest.fixture
async def api() -> AsyncIterator[ClusterApi]:
    async with ClusterApi() as server:
        yield server


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of the sandbox's API server that may do everything."""
    async with connected() as made:
        yield made
