"""Every story of the example driver, by the code that runs them on a real cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dra_kit.author.target import load_drivers
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver, device_classes, project_settings
from dra_kit.sandbox.stories.manifests import apply_files
from dra_kit.sandbox.stories.runner import run_story
from dra_kit.sandbox.stories.story import find_stories, load_story

PROJECT = Path(__file__).parents[4] / "examples" / "pizza-driver"
STORIES = PROJECT / "stories"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kitchen() -> AsyncIterator[Sandbox]:
    (driver,) = load_drivers(str(PROJECT), 1)
    settings = driver.settings
    assert settings is not None
    sandbox_driver = SandboxDriver(
        (driver,), settings.model_validate, device_classes(str(PROJECT)), project_settings(str(PROJECT), driver)
    )
    async with Sandbox(sandbox_driver, SandboxSettings(edited=("menu",), time_scale=10)) as sandbox:
        await apply_files(sandbox.client, sandbox_driver.classes)
        yield sandbox


@pytest.mark.parametrize("name", [path.name for path in find_stories(STORIES)])
async def test_story(name: str, kitchen: Sandbox) -> None:
    result = await run_story(load_story(STORIES / name), kitchen, timeout=60)

    if not result.passed:
        pytest.fail(result.report(), pytrace=False)
