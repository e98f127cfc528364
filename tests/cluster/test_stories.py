"""The stories of the example driver, as real pods."""

from __future__ import annotations

import pytest

from dra_kit.sandbox.stories.story import find_stories
from tests.cluster.node_driver import RealCluster, play
from tests.cluster.pizza import STORIES


@pytest.mark.parametrize("name", [path.name for path in find_stories(STORIES)])
async def test_story(name: str, cluster: RealCluster) -> None:
    await play(STORIES / name, cluster)
