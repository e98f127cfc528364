"""A device that claims use vanishes from the driver's inventory."""

from __future__ import annotations

import asyncio
from typing import Any

from dra_kit.diagnosis.status import status_problems, status_text
from dra_kit.kubelet.sockets import operation_link
from dra_kit.node.operation_socket import STATUS, ask
from tests.support.api import eventually
from tests.unit.node.claims.test_of_no_node import Warehouse, publish
from tests.unit.node.drivers import Oven, Paused, driver
from tests.unit.node.role import DRIVER, Node

NOTE = (
    "on node node-1: device node-1/pizza-0 is in use and not in the inventory of driver dra.pizza any more; running "
    "containers keep what they were given. If the device does not come back, delete the pod so that it gets another "
    "device, or evict it with a DeviceTaintRule for driver dra.pizza, pool node-1, device pizza-0 with effect NoExecute"
)
PROBLEM = (
    "device node-1/pizza-0 of claim default/lunch is not in the inventory any more; if it does not come back, delete "
    "pod default/guest, or evict it with a DeviceTaintRule for driver dra.pizza, pool node-1, device pizza-0 with "
    "effect NoExecute"
)


def find(oven: Oven, *devices: str) -> None:
    """Let the driver find these devices from now on."""
    oven.devices = devices
    oven.context.rescan()


def gone(node: Node) -> list[tuple[str, str, str, str]]:
    found = [item for item in node.events() if item["reason"] == "DeviceGone"]
    return sorted((item["type"], item["regarding"]["kind"], item["regarding"]["name"], item["note"]) for item in found)


async def status(node: Node) -> dict[str, Any]:
    return await ask(operation_link(node.root, DRIVER), STATUS)


async def test_claim_and_pod_get_one_event_when_their_device_vanishes(node: Node) -> None:
    oven = Oven("pizza-0", "pizza-1")
    async with node.running(driver(provider=oven)):
        await node.prepare(node.claim(reserved_for=["guest"]))
        find(oven, "pizza-1", "pizza-2")
        await eventually(lambda: len(gone(node)) == 2)
        find(oven, "pizza-1")
        await eventually(lambda: node.published() == ["pizza-1"])
    assert gone(node) == [("Warning", "Pod", "guest", NOTE), ("Warning", "ResourceClaim", "lunch", NOTE)]


async def test_status_marks_the_device_until_it_is_back(node: Node) -> None:
    oven = Oven("pizza-0", "pizza-1")
    async with node.running(driver(provider=oven)):
        await node.prepare(node.claim(reserved_for=["guest"]))
        await node.prepare(node.claim("dinner", ["pizza-1"]))
        assert [item["gone"] for item in (await status(node))["devices"]] == [False, False]
        find(oven, "pizza-1")
        await eventually(lambda: node.published() == ["pizza-1"])
        document = await status(node)
        assert {item["device"]: item["gone"] for item in document["devices"]} == {"pizza-0": True, "pizza-1": False}
        assert PROBLEM in status_problems(document)
        assert "  node-1   pizza-0 (gone)   " in status_text(document)
        find(oven, "pizza-0", "pizza-1")
        await eventually(lambda: len(node.published()) == 2)
        assert not [line for line in status_problems(await status(node)) if "pizza-0" in line]


async def test_device_that_vanished_while_the_driver_was_down_is_reported(node: Node) -> None:
    await node.prepared_by(driver(provider=Oven("pizza-0", "pizza-1")), node.claim())
    async with node.running(driver(provider=Oven("pizza-1"))):
        await eventually(lambda: gone(node))
    assert gone(node) == [("Warning", "ResourceClaim", "lunch", NOTE)]


async def test_device_that_vanishes_while_its_claim_is_being_prepared_is_reported(node: Node) -> None:
    oven, slow = Oven("pizza-0", "pizza-1"), Paused()
    async with node.running(driver(slow, oven)):
        preparing = asyncio.create_task(node.prepare(node.claim()))
        await slow.entered.wait()
        find(oven, "pizza-1")
        await eventually(lambda: node.published() == ["pizza-1"])
        slow.go_on.set()
        await preparing
        await eventually(lambda: gone(node))


async def test_released_claim_gets_no_event(node: Node) -> None:
    oven, lunch = Oven("pizza-0", "pizza-1"), node.claim()
    async with node.running(driver(provider=oven)):
        await node.prepare(lunch)
        await node.unprepare(lunch)
        find(oven, "pizza-1")
        await eventually(lambda: node.published() == ["pizza-1"])
    assert gone(node) == []


async def test_devices_of_cluster_wide_pools_do_not_vanish_with_the_inventory_of_the_node(node: Node) -> None:
    oven = Oven("pizza-0")
    publish(node, "disk-0")
    async with node.running(driver(provider=oven, cluster_provider=Warehouse())):
        await node.prepare(node.claim("far", [{"device": "disk-0", "pool": "warehouse"}]))
        await node.prepare(node.claim("lunch"))
        find(oven, "pizza-1")
        await eventually(lambda: gone(node))
    assert [name for _, _, name, _ in gone(node)] == ["lunch"]
