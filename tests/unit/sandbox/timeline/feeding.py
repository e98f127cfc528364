"""Readers of what happens in a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dra_kit.client.resources import DEVICE_CLASSES, RESOURCE_CLAIMS
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.timeline.feed import TimelineFeed
from dra_kit.sandbox.timeline.recording import Reader, Timeline
from tests.unit.sandbox.test_sandbox import CLASS, Settings, claim, new_driver


def feeding(*readers: Reader) -> TimelineFeed:
    """An observer of a sandbox that hands records to readers."""
    timeline = Timeline()
    for reader in readers:
        timeline.subscribe(reader)
    return TimelineFeed(timeline)


@asynccontextmanager
async def watched(*readers: Reader, driver: SandboxDriver | None = None) -> AsyncIterator[Sandbox]:
    """A sandbox with a class and a claim, whose records are handed to readers."""
    driver = driver or SandboxDriver((new_driver(),), lambda _: Settings())
    settings = SandboxSettings(webhook=False, controller=False)
    async with Sandbox(driver, settings, observers=(feeding(*readers),)) as sandbox:
        for resource, item in ((DEVICE_CLASSES, CLASS), (RESOURCE_CLAIMS, claim("lunch"))):
            await sandbox.client.create(resource, item)
        yield sandbox
