"""A sandbox is up when all pools are published: of nodes, of no node, or none at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from unittest.mock import patch

import pytest

import dra_kit as dra
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers import controller_and_webhook as operators
from dra_kit.sandbox.drivers import running
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from tests.unit.sandbox.driver.test_named_settings import NoPreparer


class Lamps(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="lamp-0")]


def slow_warehouse(*pools: dra.Pool) -> type[dra.DeviceProvider]:
    class Warehouse(dra.DeviceProvider, scope="cluster"):
        async def discover(self) -> AsyncIterator[dra.Inventory]:
            await asyncio.sleep(1.5)  # longer than a node needs
            if not pools:
                await asyncio.Event().wait()
            yield dra.Inventory(pools=pools)

    return Warehouse


def driver_with(warehouse: type[dra.DeviceProvider]) -> SandboxDriver:
    driver = dra.Driver("lamp.example", provider=Lamps(), preparer=NoPreparer(), cluster_provider=warehouse())
    return SandboxDriver((driver,))


async def pools_of_no_node(sandbox: Sandbox) -> set[str]:
    slices = (await sandbox.client.list(RESOURCE_SLICES)).items
    return {item["spec"]["pool"]["name"] for item in slices if "nodeName" not in item["spec"]}


async def test_start_waits_for_pools_of_the_cluster_provider() -> None:
    pools = [dra.Pool(name=name, all_nodes=True, devices=[dra.Device(name="disk")]) for name in ("near", "far")]

    async with Sandbox(driver_with(slow_warehouse(*pools))) as sandbox:
        assert await pools_of_no_node(sandbox) == {"near", "far"}


class SlowLamps(dra.DeviceProvider):
    async def discover(self) -> AsyncIterator[Sequence[dra.Device]]:
        await asyncio.sleep(1.5)  # longer than the cluster provider needs
        yield [dra.Device(name="lamp-0")]


class Disks(dra.DeviceProvider, scope="cluster"):
    def discover(self) -> Iterator[dra.Inventory]:
        yield dra.Inventory(pools=[dra.Pool(name="disks", all_nodes=True, devices=[dra.Device(name="disk")])])


async def test_start_waits_for_devices_of_the_node_even_if_the_cluster_provider_is_faster() -> None:
    driver = dra.Driver("lamp.example", provider=SlowLamps(), preparer=NoPreparer(), cluster_provider=Disks())

    async with Sandbox(SandboxDriver((driver,))) as sandbox:
        slices = (await sandbox.client.list(RESOURCE_SLICES)).items
        assert [item["spec"]["pool"]["name"] for item in slices if item["spec"].get("nodeName")] == ["node-1"]


async def test_start_does_not_wait_forever_for_an_empty_cluster_provider() -> None:
    with patch.object(operators, "_POOLS_SECONDS", 0.1):
        async with Sandbox(driver_with(slow_warehouse())) as sandbox:
            assert await pools_of_no_node(sandbox) == set()


class Nothing(dra.DeviceProvider):
    def discover(self) -> Iterator[dra.Inventory]:
        yield dra.Inventory()


class NoDisks(dra.DeviceProvider, scope="cluster"):
    def discover(self) -> Iterator[dra.Inventory]:
        yield dra.Inventory()


@pytest.mark.parametrize("cluster_provider", [None, NoDisks()], ids=["node", "node and cluster"])
async def test_a_driver_without_pools_is_up(cluster_provider: dra.DeviceProvider | None) -> None:
    driver = dra.Driver(
        "lamp.example", provider=Nothing(), preparer=NoPreparer(), cluster_provider=cluster_provider
    )  # fmt: skip
    with patch.object(running, "PUBLISH_SECONDS", 10.0), patch.object(operators, "_POOLS_SECONDS", 1_000.0):
        async with Sandbox(SandboxDriver((driver, driver.for_another_node())), SandboxSettings(nodes=2)) as sandbox:
            assert (await sandbox.client.list(RESOURCE_SLICES)).items == []
