"""The author's policy: what is published of the devices that are there, and what a failing policy changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.apiserver.server import ApiServer
from dra_kit.author.provider import ProviderCapabilities
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from dra_kit.errors import ConfigurationError
from dra_kit.node.device_policy import PolicyPart
from dra_kit.slices.inventory import CurrentInventory
from tests.support.api import eventually

NODE_MENUS = dra.WatchedObject(group="kitchen.example.com", version="v1", plural="nodemenus")
RESOURCE = Resource("kitchen.example.com", "v1", "nodemenus", "NodeMenu", namespaced=False)


class Pizza(dra.Device):
    oven: int = 0


def inventory(*names: str) -> dra.Inventory[dra.Device]:
    return dra.Inventory(pools=[dra.Pool(name="node-1", devices=[Pizza(name=name) for name in names])])


class Published:
    """Takes what is published."""

    def __init__(self) -> None:
        self.last: dra.Inventory[dra.Device] | None = None
        self.times = 0

    def __call__(self, inventory: dra.Inventory[dra.Device]) -> None:
        self.last = inventory
        self.times += 1

    @property
    def devices(self) -> Sequence[dra.Device]:
        return [device for pool in self.last.pools for device in pool.devices] if self.last else []

    @property
    def names(self) -> list[str]:
        return [device.name for device in self.devices]


@asynccontextmanager
async def filtered(
    policy: dra.DevicePolicy[Pizza], *names: str, client: Client | None = None
) -> AsyncIterator[tuple[PolicyPart, Published]]:
    current, published = CurrentInventory(), Published()
    found = inventory(*names)
    current.replace(found, {})
    part = PolicyPart(
        policy, client or Client(Credentials(Connection("http://unused")), user_agent="tests/1"), "node-1",
        current=current, publish=published, serving=ProviderCapabilities("node"), again=0.01,
    )  # fmt: skip
    part.publish(found)
    task = asyncio.create_task(part.run(asyncio.Event()))
    try:
        yield part, published
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class OddOnly(dra.DevicePolicy[Pizza]):
    def advertise(self, device: Pizza, watched: Mapping[str, Any] | None) -> dra.Device | None:
        return device if int(device.name[-1]) % 2 else None


class OddOnlyAsync(dra.DevicePolicy[Pizza]):
    async def advertise(self, device: Pizza, watched: Mapping[str, Any] | None) -> dra.Device | None:
        return device if int(device.name[-1]) % 2 else None


@pytest.mark.parametrize("policy", [OddOnly(), OddOnlyAsync()], ids=["def", "async-def"])
async def test_device_is_withheld_when_the_policy_returns_none(policy: dra.DevicePolicy[Pizza]) -> None:
    async with filtered(policy, "pizza-0", "pizza-1", "pizza-2", "pizza-3") as (_, published):
        await eventually(lambda: published.names == ["pizza-1", "pizza-3"])


async def test_health_taints_are_added_to_the_attributes_of_the_policy() -> None:
    class Priced(dra.DevicePolicy[Pizza]):
        def advertise(self, device: Pizza, watched: Mapping[str, Any] | None) -> dra.Device | None:
            assert isinstance(device, Pizza)  # as discover yielded it
            return device.model_copy(update={"attributes": {"price": 9}})

    async with filtered(Priced(), "pizza-0") as (part, published):
        await eventually(lambda: published.devices)
        assert dict(published.devices[0].attributes) == {"price": 9}
        ill = dra.Device(name="pizza-0", taints=[dra.DeviceTaint(key="oven/cold", effect="NoSchedule")])
        part.publish(dra.Inventory(pools=[dra.Pool(name="node-1", devices=[ill])]))
        await eventually(lambda: published.devices[0].taints)
        assert [taint.key for taint in published.devices[0].taints] == ["oven/cold"]
        assert dict(published.devices[0].attributes) == {"price": 9}


async def test_failing_policy_keeps_published_devices_and_withholds_new_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Moody(dra.DevicePolicy[Pizza]):
        good = True

        def advertise(self, device: Pizza, watched: Mapping[str, Any] | None) -> dra.Device | None:
            if not self.good:
                raise ValueError("no menu")
            return device

    moody = Moody()
    async with filtered(moody, "pizza-0") as (part, published):
        await eventually(lambda: published.names == ["pizza-0"])
        moody.good = False
        before = published.times
        part.publish(inventory("pizza-0", "pizza-1"))
        await eventually(lambda: published.times > before)
        assert published.names == ["pizza-0"]
        moody.good = True
        await eventually(lambda: published.names == ["pizza-0", "pizza-1"])  # asked again by itself
    assert "no menu" in caplog.text


async def test_policy_cannot_rename_a_device(caplog: pytest.LogCaptureFixture) -> None:
    class Renaming(dra.DevicePolicy[Pizza]):
        def advertise(self, device: Pizza, watched: Mapping[str, Any] | None) -> dra.Device | None:
            return dra.Device(name="calzone")

    async with filtered(Renaming(), "pizza-0") as (_, published):
        await eventually(lambda: published.times)
        assert published.names == []
    assert "the policy returned a device named" in caplog.text


class Menu(dra.DevicePolicy[Pizza], watches=NODE_MENUS):
    def advertise(self, device: Pizza, watched: Mapping[str, Any] | None) -> dra.Device | None:
        return None if watched and device.name in watched["spec"]["off"] else device


DEFINITION: Mapping[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodemenus.kitchen.example.com"},
    "spec": {
        "group": "kitchen.example.com", "scope": "Cluster",
        "names": {"plural": "nodemenus", "singular": "nodemenu", "kind": "NodeMenu"},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}  # fmt: skip


def menu(node: str, *off: str) -> dict[str, Any]:
    return {
        "apiVersion": "kitchen.example.com/v1", "kind": "NodeMenu", "metadata": {"name": node},
        "spec": {"off": list(off)},
    }  # fmt: skip


async def test_policy_follows_only_the_object_named_like_the_node() -> None:
    async with (
        ApiServer() as server,
        Client(Credentials(Connection(server.url)), user_agent="tests/1") as client,
        filtered(Menu(), "pizza-0", "pizza-1", client=client) as (_, published),
    ):
        await eventually(lambda: published.names == ["pizza-0", "pizza-1"])  # the kind does not exist yet
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, DEFINITION)
        async with asyncio.timeout(60):
            while True:
                try:
                    await client.create(RESOURCE, menu("node-2", "pizza-0", "pizza-1"))
                except dra.DraKitError:
                    await asyncio.sleep(0.05)  # the definition is not established yet
                else:
                    break
        await client.create(RESOURCE, menu("node-1", "pizza-1"))
        await eventually(lambda: published.names == ["pizza-0"])
        await client.patch(RESOURCE, "node-1", {"spec": {"off": []}})
        await eventually(lambda: published.names == ["pizza-0", "pizza-1"])
        await client.patch(RESOURCE, "node-1", {"spec": {"off": ["pizza-0"]}})
        await eventually(lambda: published.names == ["pizza-1"])
        requests = client.requests["watch", "nodemenus"], client.requests["list", "nodemenus"]
        await client.delete(RESOURCE, "node-1")
        await eventually(lambda: published.names == ["pizza-0", "pizza-1"])
        assert (client.requests["watch", "nodemenus"], client.requests["list", "nodemenus"]) == requests


def test_invalid_watches_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"plural 'Node Menus' is not valid; write WatchedObject"):
        dra.WatchedObject(group="kitchen.example.com", version="v1", plural="Node Menus")
    with pytest.raises(ConfigurationError, match=r"watches 'nodemenus' is not a dra_kit.WatchedObject"):

        class Wrong(dra.DevicePolicy, watches="nodemenus"):  # type: ignore[arg-type]
            pass
