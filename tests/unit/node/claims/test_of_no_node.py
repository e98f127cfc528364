"""Claims with devices that belong to no node, prepared on this node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.author.device import device_from_published
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.errors import KubeletError
from dra_kit.kubernetes.resource import v1
from dra_kit.node.context import ClusterFacts
from dra_kit.node.slices import ClusterPoolDevices
from tests.unit.node.drivers import Doing, Oven
from tests.unit.node.role import DRIVER, NODE, SLICES, Node


class Disk(dra.Device):
    """With a method, and without fields of its own."""

    @property
    def address(self) -> str:
        return str(self.attributes["address"])


class Warehouse(dra.DeviceProvider[Disk], scope="cluster"):
    def discover(self) -> Iterator[dra.Inventory[Disk]]:
        yield dra.Inventory()


def mixed(seen: list[dra.Device]) -> dra.Driver[Any, Any]:
    def do(_: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        seen.append(device.advertised)
        return dra.Prepared(env={"DEVICE": device.name})

    return dra.Driver(DRIVER, provider=Oven(), preparer=Doing(do), cluster_provider=Warehouse())


def publish(node: Node, *names: str, generation: int = 1, pool: str = "warehouse", address: str = "192.0.2.1") -> None:
    devices = [{"name": name, "attributes": {"address": {"string": address}}} for name in names]
    spec = {
        "driver": DRIVER, "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
        "allNodes": True, "devices": devices,
    }  # fmt: skip
    node.api.put("resourceslices", {"metadata": {"name": f"{pool}-{generation}"}, "spec": spec})


def lists_of_no_node(node: Node) -> int:
    return sum(
        "spec.nodeName=," in f"{request.query.get('fieldSelector', '')},"
        for request in node.api.requests
        if request.path == SLICES
    )


async def test_the_preparer_gets_the_published_device(node: Node) -> None:
    seen: list[dra.Device] = []
    publish(node, "disk-0", address="192.0.2.1")
    publish(node, "disk-0", generation=2, address="192.0.2.2")
    await node.prepared_by(mixed(seen), node.claim(devices=[{"device": "disk-0", "pool": "warehouse"}]))
    [disk] = seen
    assert isinstance(disk, Disk)
    assert disk.address == "192.0.2.2"  # of the newest generation


async def test_only_claims_with_cluster_devices_cost_a_request(node: Node) -> None:
    publish(node, "disk-0")
    ordinary = node.claim("ordinary")
    claim = node.claim(devices=[{"device": "disk-0", "pool": "warehouse"}])
    async with node.running(mixed([])):
        await node.prepare(ordinary)
        assert lists_of_no_node(node) == 0
        await node.prepare(claim)
        assert lists_of_no_node(node) == 1
        await node.prepare(claim)  # from the record
        assert lists_of_no_node(node) == 1


async def test_concurrent_claims_share_a_request(node: Node) -> None:
    names = [f"disk-{number}" for number in range(20)]
    publish(node, *names)
    async with Client(await load_credentials(node.kubeconfig), user_agent="tests/1") as client:
        devices = ClusterPoolDevices(client, DRIVER, ClusterFacts(client, NODE, lambda _: None), Disk)
        found = await asyncio.gather(*(devices.device("warehouse", name) for name in names))
    assert [device.name for device, _ in found] == names
    assert lists_of_no_node(node) == 2  # the first one's, and one for those that came while it was under way


async def test_an_unpublished_device_is_missing_until_it_is_published_again(node: Node) -> None:
    claim = node.claim(devices=[{"device": "disk-0", "pool": "warehouse"}])
    async with node.running(mixed([])):
        with pytest.raises(KubeletError, match="device warehouse/disk-0 is not published any more"):
            await node.prepare(claim)
        publish(node, "disk-0")
        await node.prepare(claim)


async def test_an_unavailable_api_server_is_a_transient_error(node: Node) -> None:
    publish(node, "disk-0")
    claim = node.claim(devices=[{"device": "disk-0", "pool": "warehouse"}])
    async with node.running(mixed([])):
        with (
            node.api.failing(503, "GET", below=SLICES),
            pytest.raises(KubeletError, match="device warehouse/disk-0 cannot be looked up"),
        ):
            await node.prepare(claim)
        await node.prepare(claim)


async def test_a_driver_without_node_devices_publishes_nothing_and_prepares(node: Node) -> None:
    seen: list[dra.Device] = []
    driver = dra.Driver(DRIVER, preparer=mixed(seen).preparer, cluster_provider=Warehouse())
    publish(node, "disk-0")
    await node.prepared_by(driver, node.claim(devices=[{"device": "disk-0", "pool": "warehouse"}]))
    assert [item["spec"].get("nodeName") for item in node.api.objects("resourceslices")] == [None]
    assert NODE not in [item["spec"]["pool"]["name"] for item in node.api.objects("resourceslices")]


@pytest.mark.filterwarnings("ignore::dra_kit.WholeCapacityWarning")
def test_a_published_device_converts_back_to_the_same_device() -> None:
    requirement = dra.NodeSelectorRequirement(key="rack", operator="In", values=["7"])
    term = dra.NodeSelectorTerm(match_expressions=[requirement])
    policy = dra.CapacityRequestPolicy(default="1", valid_range=dra.CapacityRequestPolicyRange(min="1", max="4"))
    device = dra.Device(
        name="disk-0",
        attributes={"a": 1, "b": True, "c": "text", "d": dra.Version("1.2.3"), "e": ["x", "y"]},
        capacity={"size": "1Ti", "slots": dra.DeviceCapacity(value="8", request_policy=policy)},
        consumes_counters=[dra.DeviceCounterConsumption(counter_set="card", counters={"parts": "2"})],
        node_selector=dra.NodeSelector(node_selector_terms=[term]),
        taints=[dra.DeviceTaint(key="a.b/c", effect="NoSchedule")],
        allow_multiple_allocations=True,
        binding_conditions=["a.b/attached"],
        binding_failure_conditions=["a.b/failed"],
    )
    again = device_from_published(dra.Device, v1.Device.model_validate(device.to_v1().to_json()))
    assert again.to_v1() == device.to_v1()
    assert again.identity() == device.identity()
