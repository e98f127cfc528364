"""The stories of what a driver does for the whole cluster, by the code that runs them on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kit.author.target import load_drivers
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.stories.manifests import apply_files
from dra_kit.sandbox.stories.runner import run_story
from dra_kit.sandbox.stories.story import load_story

STORIES = Path(__file__).parents[3] / "cluster" / "for_the_cluster"


@pytest.mark.parametrize("name", ["network-attached", "binding"])
async def test_story(name: str) -> None:
    (driver,) = load_drivers(str(STORIES / "driver.py"), 1)
    async with Sandbox(SandboxDriver((driver,)), SandboxSettings(time_scale=10)) as sandbox:
        await apply_files(sandbox.client, [STORIES / "deviceclasses.yaml"])
        result = await run_story(load_story(STORIES / name), sandbox, timeout=60)

    if not result.passed:
        pytest.fail(result.report(), pytrace=False)
