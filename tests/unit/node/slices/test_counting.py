"""Devices that consume counters, when the API server drops the counters: they could be allocated twice."""

from __future__ import annotations

import pytest

import dra_kit as dra
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import Release
from dra_kit.slices.inventory import node_source, validate_inventory
from tests.unit.node.drivers import driver
from tests.unit.node.role import NODE, Node
from tests.unit.node.slices.test_publication_pace import publish_pool, publishing

COUNTED = dra.DeviceCounterConsumption(counter_set="oven", counters={"slots": "1"})
OVEN = dra.CounterSet(name="oven", counters={"slots": "1"})
OFF = Release.alpha().without("DRAPartitionableDevices")


def pool(counted: int, plain: int = 1) -> Pool[dra.Device]:
    """Slots of an oven, of which only one can be allocated at a time, and independent devices."""
    slots = [dra.Device(name=f"slot-{number}", consumes_counters=[COUNTED]) for number in range(counted)]
    return Pool(counter_sets=[OVEN], devices=[*slots, *(dra.Device(name=f"table-{number}") for number in range(plain))])


@pytest.mark.parametrize("minor", ["34", "35"])
async def test_devices_are_not_published_if_the_server_drops_their_counters(node: Node, minor: str) -> None:
    node.api._documents["/version"] = {"major": "1", "minor": minor}
    node.api.gates = OFF
    async with publishing(node) as publisher:
        publish_pool(publisher, pool(2))
        with pytest.raises(ConfigurationError) as refused:
            await publisher.reconcile()
    assert node.published() == ["table-0"]
    assert refused.value.code == "counters-dropped"
    assert "\n" not in str(refused.value)
    for text in (
        "2 devices of pool node-1 not published",
        f"Kubernetes 1.{minor}",
        "enable the feature gate DRAPartition",
    ):
        assert text in str(refused.value)


async def test_devices_with_counters_are_published_after_the_gate_is_enabled(node: Node) -> None:
    async with publishing(node) as publisher:
        node.api.gates = OFF
        publish_pool(publisher, pool(2))
        with pytest.raises(ConfigurationError):
            await publisher.reconcile()
        node.api.gates = Release.alpha()
        assert await publisher.reconcile()
    assert node.published() == ["slot-0", "slot-1", "table-0"]
    assert [device.get("consumesCounters") for spec in node.slices() for device in spec.get("devices", ())][:2] == [
        [{"counterSet": "oven", "counters": {"slots": {"value": "1"}}}]
    ] * 2


async def test_devices_published_without_their_counters_are_withdrawn(node: Node) -> None:
    node.api.gates = OFF
    async with publishing(node) as publisher:
        publish_pool(publisher, Pool(devices=[dra.Device(name="slot-0"), dra.Device(name="slot-1")]))
        await publisher.reconcile()
        publish_pool(publisher, pool(2, plain=0))
        with pytest.raises(ConfigurationError):
            await publisher.reconcile()
    assert node.published() == []


async def test_dry_run_is_skipped_for_published_or_unused_counters(node: Node) -> None:
    def asked() -> int:
        return sum("dryRun" in request.query for request in node.api.requests)

    async with publishing(node) as publisher:
        publish_pool(publisher, pool(0))
        await publisher.reconcile()
        assert asked() == 0
        publish_pool(publisher, pool(2))
        await publisher.reconcile()
        assert asked() == 1
        await publisher.reconcile()
        assert asked() == 1


async def test_a_pool_beyond_the_limits_of_counters_does_not_block_others(node: Node) -> None:
    node.api._documents["/version"] = {"major": "1", "minor": "34"}
    counters = {f"slot-{number}": "1" for number in range(32)}
    uses_all = dra.DeviceCounterConsumption(counter_set="oven", counters=counters)

    def inventory(parts: int, *others: str) -> Inventory[dra.Device]:
        large = Pool(
            name="large",
            counter_sets=[dra.CounterSet(name="oven", counters=counters)],
            devices=[dra.Device(name=f"part-{number}", consumes_counters=[uses_all]) for number in range(parts)],
        )
        made: Inventory[dra.Device] = Inventory(
            pools=[large, *(Pool(name=name, devices=[dra.Device(name=name)]) for name in others)]
        )
        return validate_inventory(node_source(driver(), NODE), made, lambda name, rule: None)

    async with publishing(node) as publisher:
        publisher.publish(inventory(1))
        await publisher.reconcile()
        publisher.publish(inventory(33, "other"))
        with pytest.raises(ConfigurationError, match=r"pool 'large' with 1056 counters consumed.*; split") as refused:
            await publisher.reconcile()
        assert refused.value.code == "counters-need-one-slice"
        assert sorted(node.published()) == ["other", "part-0"]
        node.api._documents["/version"] = {"major": "1", "minor": "35"}
        await publisher.reconcile()
    assert len(node.published()) == 34
