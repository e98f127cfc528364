"""Devices that draw on counters, where the API server stores none: they would be given away twice."""

from __future__ import annotations

import pytest

import dra_kit as dra
from dra_kit.author.inventory import Pool
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import FeatureGates
from tests.unit.node.role import Node
from tests.unit.node.slices.test_publication_pace import publish_pool, publishing

COUNTED = dra.DeviceCounterConsumption(counter_set="oven", counters={"slots": "1"})
OVEN = dra.CounterSet(name="oven", counters={"slots": "1"})
OFF = FeatureGates.alpha().without("DRAPartitionableDevices")


def pool(counted: int, plain: int = 1) -> Pool[dra.Device]:
    """Slots of an oven, of which only one can be had at a time, and devices that stand for themselves."""
    slots = [dra.Device(name=f"slot-{number}", consumes_counters=[COUNTED]) for number in range(counted)]
    return Pool(counter_sets=[OVEN], devices=[*slots, *(dra.Device(name=f"table-{number}") for number in range(plain))])


@pytest.mark.parametrize("minor", ["34", "35"])
async def test_devices_whose_counters_would_be_dropped_are_not_published(node: Node, minor: str) -> None:
    node.api._documents["/version"] = {"major": "1", "minor": minor}
    node.api.gates = OFF
    async with publishing(node) as publisher:
        publish_pool(publisher, pool(2))
        with pytest.raises(ConfigurationError) as refused:
            await publisher.reconcile()
    assert node.published() == ["table-0"]
    assert refused.value.code == "counters-dropped"
    assert "\n" not in str(refused.value)
    for told in (
        "2 devices of pool node-1 not published",
        f"Kubernetes 1.{minor}",
        "switch the feature gate DRAPartition",
    ):
        assert told in str(refused.value)


async def test_they_are_published_as_soon_as_the_gate_is_on(node: Node) -> None:
    async with publishing(node) as publisher:
        node.api.gates = OFF
        publish_pool(publisher, pool(2))
        with pytest.raises(ConfigurationError):
            await publisher.reconcile()
        node.api.gates = FeatureGates.alpha()
        assert await publisher.reconcile()
    assert node.published() == ["slot-0", "slot-1", "table-0"]
    assert [device.get("consumesCounters") for spec in node.slices() for device in spec.get("devices", ())][:2] == [
        [{"counterSet": "oven", "counters": {"slots": {"value": "1"}}}]
    ] * 2


async def test_those_that_were_published_without_their_counters_are_withdrawn(node: Node) -> None:
    node.api.gates = OFF
    async with publishing(node) as publisher:
        publish_pool(publisher, Pool(devices=[dra.Device(name="slot-0"), dra.Device(name="slot-1")]))
        await publisher.reconcile()
        publish_pool(publisher, pool(2, plain=0))
        with pytest.raises(ConfigurationError):
            await publisher.reconcile()
    assert node.published() == []


async def test_nobody_is_asked_about_counters_that_are_published_or_not_used(node: Node) -> None:
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
