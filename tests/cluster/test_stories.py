"""The stories of the example driver, as real pods."""

from __future__ import annotations

import pytest

from dra_kit.sandbox.stories.runner import run_story
from dra_kit.sandbox.stories.story import find_stories, load_story
from tests.cluster.node_driver import RealCluster
from tests.cluster.pizza import STORIES


@pytest.mark.parametrize("name", [path.name for path in find_stories(STORIES)])
async def test_story(name: str, cluster: RealCluster) -> None:
    result = await run_story(load_story(STORIES / name), cluster)

    if not result.passed:
        pytest.fail(result.report(), pytrace=False)
