"""A pool that is suddenly empty, temporarily or permanently."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.slices.discovery import Discovery
from dra_kit.slices.inventory import CurrentInventory, node_source
from tests.support.api import eventually
from tests.unit.node.drivers import driver
from tests.unit.node.role import NODE

EMPTIED = "pools are suddenly empty; their devices stay published until a second check"
NOW, NEVER = 0.0, 3600.0


class Found(dra.DeviceProvider):
    """Each call of ``discover`` yields the next inventory, or waits and yields an empty one for None.

    Attributes:
        looks: how often ``discover`` was called.
    """

    def __init__(self, *found: Any) -> None:
        self._found = found
        self.looks = 0
        self.go_on = threading.Event()

    def discover(self) -> Iterator[Any]:
        found = self._found[min(self.looks, len(self._found) - 1)]
        self.looks += 1
        if found is None:
            self.go_on.wait()
            found = []
        yield found


class Seen:
    """Records the devices of each inventory; a pool without devices is recorded as its name."""

    def __init__(self, current: CurrentInventory) -> None:
        self.all: list[list[str]] = []
        current.listen(self._inventory)

    def _inventory(self, inventory: dra.Inventory[Any]) -> None:
        self.all.append(
            [f"{pool.name}/{device.name}" for pool in inventory.pools for device in pool.devices]
            + [str(pool.name) for pool in inventory.pools if not pool.devices]
        )


@asynccontextmanager
async def looking(
    provider: dra.DeviceProvider, again_after: float = NOW, believed_after: float = NEVER
) -> AsyncIterator[tuple[Seen, Discovery]]:
    current = CurrentInventory()
    seen = Seen(current)
    discovery = Discovery(
        node_source(driver(provider=provider), NODE),
        current,
        look_again_after=again_after,
        believed_after=believed_after,
    )
    running = asyncio.create_task(discovery.run(asyncio.Event()))
    try:
        yield seen, discovery
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def pizzas() -> list[dra.Device]:
    return [dra.Device(name="a"), dra.Device(name="b")]


def pools(*found: dra.Pool[dra.Device]) -> dra.Inventory[dra.Device]:
    return dra.Inventory(pools=found)


async def rescanned(discovery: Discovery, seen: Seen, provider: Found) -> None:
    """Wait for the first inventory, then rescan."""
    await eventually(lambda: seen.all and provider.looks == 1)
    discovery.rescan()


async def test_emptied_pool_stays_published_until_a_second_check(caplog: pytest.LogCaptureFixture) -> None:
    provider = Found(pizzas(), [], None)
    async with looking(provider) as (seen, discovery):
        await rescanned(discovery, seen, provider)
        await eventually(lambda: provider.looks == 3)
        assert all(item == ["node-1/a", "node-1/b"] for item in seen.all)
        provider.go_on.set()
        await eventually(lambda: seen.all[-1] == ["node-1"])
    [logged] = [item for item in caplog.records if item.getMessage() == EMPTIED]
    assert (logged.levelno, vars(logged)["pools"]) == (logging.WARNING, "node-1")


async def test_devices_found_by_the_second_check_stay_published() -> None:
    provider = Found(pizzas(), [], pizzas())
    async with looking(provider) as (seen, discovery):
        await rescanned(discovery, seen, provider)
        await eventually(lambda: provider.looks == 3)
        await eventually(lambda: len(seen.all) == 3)
        assert all(item == ["node-1/a", "node-1/b"] for item in seen.all)


async def test_each_emptied_pool_is_checked_twice() -> None:
    provider = Found(pizzas(), [], pizzas(), [])
    async with looking(provider, NEVER) as (seen, discovery):
        await rescanned(discovery, seen, provider)
        for looks in (2, 3):
            await eventually(lambda looks=looks: len(seen.all) == provider.looks == looks)  # type: ignore[misc]
            discovery.rescan()
        await eventually(lambda: len(seen.all) == provider.looks == 4)
        assert seen.all[-1] == ["node-1/a", "node-1/b"], "this is the first check after they were found"
        discovery.rescan()
        await eventually(lambda: seen.all[-1] == ["node-1"])


async def test_second_yield_counts_as_second_check() -> None:
    class Polling(dra.DeviceProvider):
        async def discover(self) -> AsyncIterator[list[dra.Device]]:
            yield pizzas()
            yield []
            yield []
            await asyncio.Event().wait()

    async with looking(Polling(), NEVER) as (seen, _):
        await eventually(lambda: seen.all and seen.all[-1] == ["node-1"])


def two_pools(first: int, second: int) -> dra.Inventory[dra.Device]:
    return pools(dra.Pool(devices=pizzas()[:first]), dra.Pool(name="rack", devices=pizzas()[:second]))


async def test_other_pools_change_during_the_check() -> None:
    provider = Found(two_pools(2, 2), two_pools(1, 0), None)
    async with looking(provider) as (seen, discovery):
        await rescanned(discovery, seen, provider)
        await eventually(lambda: seen.all[-1] == ["node-1/a", "rack/a", "rack/b"])
        provider.go_on.set()


async def test_omitted_pool_is_withdrawn_at_once() -> None:
    provider = Found(two_pools(2, 2), pools(dra.Pool(devices=pizzas())))
    async with looking(provider, NEVER) as (seen, discovery):
        await rescanned(discovery, seen, provider)
        await eventually(lambda: seen.all[-1] == ["node-1/a", "node-1/b"])


async def test_omitting_all_pools_is_treated_like_empty_pools() -> None:
    provider = Found(two_pools(2, 1), pools(), None)
    async with looking(provider) as (seen, discovery):
        await rescanned(discovery, seen, provider)
        await eventually(lambda: provider.looks == 3)
        assert all(item == ["node-1/a", "node-1/b", "rack/a"] for item in seen.all)
        provider.go_on.set()


class Waiting(dra.DeviceProvider):
    """A plain generator that waits for its next event and cannot be restarted, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.go_on = threading.Event()

    def discover(self) -> Iterator[list[dra.Device]]:
        yield pizzas()
        yield []
        if self._error is not None:
            raise self._error
        self.go_on.wait()


async def test_emptied_pool_of_a_waiting_generator_is_accepted_after_a_timeout() -> None:
    provider = Waiting()
    async with looking(provider, believed_after=0.1) as (seen, _):
        await eventually(lambda: seen.all and seen.all[-1] == ["node-1"])
        provider.go_on.set()


async def test_emptied_pool_of_a_failing_generator_is_not_accepted(caplog: pytest.LogCaptureFixture) -> None:
    async with looking(Waiting(OSError("no bus")), NEVER, believed_after=0.1) as (seen, _):
        await eventually(lambda: any(item.getMessage() == "discover failed" for item in caplog.records))
        await eventually(lambda: len(seen.all) >= 4)  # the retry finds the devices first
        assert ["node-1"] not in seen.all


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (lambda: pools(dra.Pool(devices=pizzas(), may_be_empty=True)), pools, []),
        (pizzas, lambda: pools(dra.Pool(may_be_empty=True)), ["node-1"]),
    ],
    ids=["already allowed", "allowed now"],
)
async def test_may_be_empty_skips_the_second_check(
    before: Callable[[], Any], after: Callable[[], Any], expected: list[str]
) -> None:
    provider = Found(before(), after())
    async with looking(provider, NEVER) as (seen, discovery):
        await rescanned(discovery, seen, provider)
        await eventually(lambda: seen.all[-1] == expected)
