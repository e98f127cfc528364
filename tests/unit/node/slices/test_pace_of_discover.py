"""A ``discover`` that yields without a pause is reported."""

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
