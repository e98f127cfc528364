"""A ``discover`` that yields without a pause is reported, and one that sleeps is woken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

import pytest

import dra_kit as dra
from dra_kit.slices.discovery import Discovery
from dra_kit.slices.inventory import CurrentInventory, node_source
from tests.support.api import eventually
from tests.unit.node.drivers import driver
from tests.unit.node.role import NODE

BUSY = "discover yields without a pause and keeps a processor busy"


class Restless(dra.DeviceProvider):
    """Yields repeatedly until the driver stops."""

    def __init__(self) -> None:
        self.yielded = 0
        self.stop = dra.Stopping()

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        while not self.stop:
            self.yielded += 1
            yield [dra.Device(name="pizza-0")]


async def test_discover_without_a_pause_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    provider = Restless()
    discovery = Discovery(node_source(driver(provider=provider), NODE), CurrentInventory())
    running = asyncio.create_task(discovery.run(asyncio.Event()))

    def logged() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.getMessage() == BUSY]

    await eventually(logged)
    after = provider.yielded
    await eventually(lambda: provider.yielded > after + 500)
    provider.stop.set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    [record] = logged()
    assert vars(record)["method"] == "Restless.discover"
    assert record.levelno == logging.ERROR  # by default, the sandbox shows only errors of a driver's log


class Sleepy(dra.DeviceProvider):
    """Sleeps for an hour after each inventory; ``dozes``: sleeps again when it is woken, without an inventory."""

    def __init__(self, dozes: int = 0) -> None:
        self.starts = self.sleeps = 0
        self.dozes = dozes
        self.stop = dra.Stopping()

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        self.starts += 1
        yield [dra.Device(name="pizza-0")]
        for _ in range(1 + self.dozes):
            self.sleeps += 1
            if self.stop.blocking_sleep(3600):
                return
        yield [dra.Device(name="pizza-1")]


async def test_rescan_wakes_a_plain_discover_that_sleeps() -> None:
    provider = Sleepy()
    discovery = Discovery(node_source(driver(provider=provider), NODE), CurrentInventory())
    running = asyncio.create_task(discovery.run(asyncio.Event()))
    await eventually(lambda: provider.sleeps == 1)
    discovery.rescan()
    await eventually(lambda: (provider.starts, provider.sleeps) == (2, 2))
    running.cancel()
    provider.stop.set()
    await asyncio.gather(running, return_exceptions=True)


async def test_rescan_wakes_a_plain_discover_once() -> None:
    provider = Sleepy(dozes=1)
    discovery = Discovery(node_source(driver(provider=provider), NODE), CurrentInventory())
    running = asyncio.create_task(discovery.run(asyncio.Event()))
    await eventually(lambda: provider.sleeps == 1)
    discovery.rescan()
    await eventually(lambda: provider.sleeps == 2)
    before = (provider.starts, provider.sleeps)
    discovery.rescan()
    await eventually(lambda: provider.starts == 2)
    running.cancel()
    provider.stop.set()
    await asyncio.gather(running, return_exceptions=True)

    assert before == (1, 2)
