from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.node import role


@pytest.fixture
async def node() -> AsyncIterator[role.Node]:
    async with role.node() as made:
        yield made
