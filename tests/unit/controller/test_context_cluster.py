"""Objects of the cluster for the author's code in the controller: in its threads, in its loops, and not on a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import CONFIG_MAPS, RESOURCE_SLICES, Resource
from dra_kit.controller.agent import ControllerSettings, run_controller
from dra_kit.testing import unit
from tests.unit.controller.cluster import DRIVER, allocate, made_claim
from tests.unit.controller.test_agent import Oven, Waiter

SHELF = {"metadata": {"name": "shelf", "namespace": "default", "labels": {"kind": "shelf"}}, "data": {"disk": "disk-0"}}


def inventory(found: Sequence[Any]) -> dra.Inventory:
    devices = [dra.Device(name=item["data"]["disk"]) for item in found]
    return dra.Inventory(pools=[dra.Pool(name="shelf", all_nodes=True, devices=devices)])


class Shelf(dra.DeviceProvider, scope="cluster"):
    """Reads in a thread."""

    def discover(self) -> Iterator[dra.Inventory]:
        one = self.context.cluster.get("v1", "configmaps", "shelf", "default").result()
        assert one is not None
        assert self.context.cluster.get("v1", "configmaps", "none", "default").result() is None
        yield inventory([one])


class AsyncShelf(dra.DeviceProvider, scope="cluster"):
    """Reads in an event loop of its own thread."""

    async def discover(self) -> AsyncIterator[dra.Inventory]:
        yield inventory(await self.context.cluster.list("v1", "configmaps", "default", label_selector="kind=shelf"))


class Till(dra.ClaimObserver):
    """Writes and deletes in a thread."""

    def allocated(self, claim: dra.ObservedClaim) -> None:
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": claim.name, "namespace": "default"}}
        self.context.cluster.apply("configmaps", {**manifest, "data": {"served": "yes"}}).result()
        self.context.cluster.delete("v1", "configmaps", "shelf", "default").result()
        self.context.cluster.delete("v1", "configmaps", "shelf", "default").result()


@asynccontextmanager
async def controlled(**parts: Any) -> AsyncIterator[Client]:
    async with ApiServer() as server, Client(Credentials(Connection(server.url)), user_agent="tests/1") as client:
        await client.create(CONFIG_MAPS, SHELF)
        driver = dra.Driver(DRIVER, provider=Oven(), preparer=Waiter(), **parts)
        settings = ControllerSettings(election=False)
        role = asyncio.create_task(run_controller(driver, settings, Credentials(Connection(server.url))))
        try:
            yield client
        finally:
            role.cancel()
            with suppress(asyncio.CancelledError):
                await role


async def until_there(client: Client, resource: Resource) -> Any:
    async with asyncio.timeout(60):
        while not (found := (await client.list(resource)).items):  # noqa: ASYNC110 - the server sets no Event
            await asyncio.sleep(0.02)
        return found[0]


@pytest.mark.parametrize("provider", [Shelf(), AsyncShelf()], ids=["def", "async-def"])
async def test_cluster_provider_finds_devices_in_objects(provider: dra.DeviceProvider) -> None:
    async with controlled(cluster_provider=provider) as client:
        found = await until_there(client, RESOURCE_SLICES)
        assert [device["name"] for device in found["spec"]["devices"]] == ["disk-0"]


async def test_observer_writes_and_deletes_objects() -> None:
    async with controlled(observer=Till()) as client:
        await made_claim(client)
        await allocate(client)
        async with asyncio.timeout(60):
            while True:
                found = {item["metadata"]["name"]: item for item in (await client.list(CONFIG_MAPS, "default")).items}
                if "shelf" not in found:
                    break
                await asyncio.sleep(0.02)
        [written] = [item for item in found.values() if item.get("data") == {"served": "yes"}]
        assert [item["manager"] for item in written["metadata"]["managedFields"]] == [f"{DRIVER}/controller"]


async def test_observer_changes_the_status_of_an_object_and_nothing_else() -> None:
    class Reserving(dra.ClaimObserver):
        def allocated(self, claim: dra.ObservedClaim) -> None:
            if claim.name == "reserved":
                return
            manifest = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
            place = {"name": "reserved", "namespace": "default"}
            requests = [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]
            spec = {"devices": {"requests": requests}}
            cluster = self.context.cluster
            cluster.apply("resourceclaims", {**manifest, "metadata": place, "spec": spec}).result()
            result = {"request": "pizza", "driver": DRIVER, "pool": "node-1", "device": "pizza-7"}
            changes = {"spec": {"devices": {}}, "status": {"allocation": {"devices": {"results": [result]}}}}
            stored = cluster.apply("resourceclaims", {**manifest, "metadata": place, **changes}, subresource="status")
            written.append(stored.result())

    written: list[Any] = []
    async with controlled(observer=Reserving()) as client:
        await made_claim(client)
        await allocate(client)
        async with asyncio.timeout(60):
            while not written:  # noqa: ASYNC110 - a thread of the role appends
                await asyncio.sleep(0.02)
    [claim] = written
    assert claim["spec"]["devices"]["requests"][0]["name"] == "pizza"
    assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "pizza-7"


async def test_api_of_a_node_is_not_in_the_controller() -> None:
    asked: list[str] = []

    class Asking(dra.ClaimObserver):
        def startup(self, context: dra.Context[Any]) -> None:
            for ask in (lambda: context.api, lambda: context.consumers(dra.ClaimReference("a", "b", "c"))):
                with pytest.raises(dra.ConfigurationError) as caught:
                    ask()
                asked.append(str(caught.value))

    async with controlled(observer=Asking()), asyncio.timeout(60):
        while len(asked) < 2:  # noqa: ASYNC110 - a thread of the role appends
            await asyncio.sleep(0.02)
    assert "context.api belongs to a node, and this code runs in the controller; use context.cluster" in asked[0]
    assert "context.consumers belongs to a node" in asked[1]


def test_cluster_of_the_controller_is_not_on_a_node() -> None:
    class Asking(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared(state=str(self.context.cluster))

    with (
        unit(Asking()) as bench,
        pytest.raises(dra.ConfigurationError, match=r"context\.cluster belongs to the controller.*Driver\(reads="),
    ):
        bench.prepare("lunch", [dra.Device(name="disk-0")])
