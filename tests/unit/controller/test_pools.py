"""Pools that belong to no node: published, healed, withdrawn; and what is refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.client.api import Client
from dra_kit.client.resources import CLUSTER_ROLES, RESOURCE_SLICES
from dra_kit.controller.cluster_pools import ClusterPools
from dra_kit.controller.context import ControllerContext, ControllerOwner
from dra_kit.errors import ConfigurationError
from dra_kit.process.metrics import Metrics
from dra_kit.slices.inventory import cluster_source
from tests.support.api import eventually
from tests.unit.controller.cluster import DRIVER, cancelled, running

LABEL = dra.NodeSelector(
    node_selector_terms=[
        dra.NodeSelectorTerm(match_expressions=[dra.NodeSelectorRequirement(key="rack", operator="In", values=["7"])])
    ]
)


class Warehouse(dra.DeviceProvider, scope="cluster"):
    """Yields these pools, once after each rescan."""

    def __init__(self, *pools: dra.Pool) -> None:
        self.pools = list(pools)

    async def discover(self) -> AsyncIterator[dra.Inventory]:
        yield dra.Inventory(pools=self.pools)


class Giver(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared()


def disks(*names: str, **options: Any) -> list[dra.Device]:
    return [dra.Device(name=name, **options) for name in names or ("disk-0",)]


def pool(name: str = "warehouse", **options: Any) -> dra.Pool:
    given: dict[str, Any] = {"all_nodes": True, "devices": disks(), **options}
    return dra.Pool(name=name, **given)


def part(client: Client, warehouse: dra.DeviceProvider[Any, Any, Any], role: str | None = None) -> ClusterPools:
    source = cluster_source(dra.Driver(DRIVER, preparer=Giver(), cluster_provider=warehouse))
    assert source is not None
    context = ControllerContext(DRIVER, None, Metrics())
    warehouse.context = context
    return ClusterPools(DRIVER, source, client, context, ControllerOwner(client, role))


async def specs(client: Client) -> list[dict[str, Any]]:
    found = await client.list(RESOURCE_SLICES)
    return sorted((item["spec"] for item in found.items), key=lambda spec: str(spec["pool"]["name"]))


async def until(client: Client, check: Any) -> list[dict[str, Any]]:
    async with asyncio.timeout(60):
        while not check(found := await specs(client)):  # noqa: ASYNC110 - what the server has sets no Event
            await asyncio.sleep(0.02)
    return found


async def test_pools_are_published_with_the_nodes_that_may_use_them(client: Client) -> None:
    each = dra.Pool(
        name="c", per_device_node_selection=True,
        devices=[dra.Device(name="a", node_name="node-1"), dra.Device(name="b", node_selector=LABEL)],
    )  # fmt: skip
    async with running(part(client, Warehouse(pool("a"), pool("b", all_nodes=False, node_selector=LABEL), each))):
        everywhere, selected, one_by_one = await specs(client)

    assert everywhere["allNodes"] is True
    assert selected["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["7"]
    assert one_by_one["perDeviceNodeSelection"] is True
    assert [device.get("nodeName") for device in one_by_one["devices"]] == ["node-1", None]
    assert all("nodeName" not in spec for spec in (everywhere, selected, one_by_one))
    assert {spec["pool"]["generation"] for spec in (everywhere, selected, one_by_one)} == {1}


def read_metrics(made: ClusterPools) -> dict[tuple[str, ...], Any]:
    """What the part tells Prometheus, by name and labels."""
    return {(one.name, *one.labels.values()): one.value for metric in made.readings() for one in metric.samples}


async def test_publications_are_counted_across_leaderships(client: Client) -> None:
    made = part(client, Warehouse(pool("a"), pool("b")))
    assert read_metrics(made) == {}  # it stands by
    async with running(made):
        first = read_metrics(made)
        before = time.time()
    assert read_metrics(made) == {}
    await client.delete(RESOURCE_SLICES, (await client.list(RESOURCE_SLICES)).items[0]["metadata"]["name"])
    async with running(made):
        second = read_metrics(made)

    assert first["dra_driver_publications_total", "success"] == 1
    assert first["dra_driver_slice_writes_total", "create"] == 2
    assert 0 < first["dra_driver_last_publication_timestamp_seconds",] <= before
    assert {key[1] for key in first if key[0] == "dra_driver_pool_generation"} == {"a", "b"}
    assert second["dra_driver_publications_total", "success"] == 2
    assert second["dra_driver_slice_writes_total", "create"] == 3


async def test_a_publication_that_fails_is_counted(client: Client) -> None:
    made = part(client, Warehouse(pool("node-1")))
    spec = {"driver": DRIVER, "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1}, "devices": []}
    await client.create(RESOURCE_SLICES, {"metadata": {"name": "of-a-node"}, "spec": {**spec, "nodeName": "node-1"}})
    task = asyncio.create_task(made.run(asyncio.Event()))
    try:
        await eventually(lambda: read_metrics(made).get(("dra_driver_publications_total", "error")))
        assert read_metrics(made)["dra_driver_last_publication_timestamp_seconds",] == 0
    finally:
        await cancelled(task)


async def test_only_a_change_of_several_slices_starts_a_new_generation(client: Client) -> None:
    names = [f"disk-{number:03}" for number in range(200)]
    warehouse = Warehouse(pool(devices=disks(*names)))
    made = part(client, warehouse)
    async with running(made):
        assert {spec["pool"]["generation"] for spec in await specs(client)} == {1}
        warehouse.pools = [pool(devices=disks(*names[:-1]))]
        warehouse.context.rescan()
        found = await until(client, lambda found: sum(len(spec["devices"]) for spec in found) == 199)
        assert {spec["pool"]["generation"] for spec in found} == {1}
        warehouse.pools = [pool(devices=disks(*names[1:]))]
        warehouse.context.rescan()
        await until(client, lambda found: {spec["pool"]["generation"] for spec in found} == {2})


async def test_edited_or_deleted_slices_are_restored(client: Client) -> None:
    async with running(part(client, Warehouse(pool()))):
        [item] = (await client.list(RESOURCE_SLICES)).items
        await client.update(RESOURCE_SLICES, {**item, "spec": {**item["spec"], "devices": [{"name": "stranger"}]}})
        await until(client, lambda found: found[0]["devices"][0]["name"] == "disk-0")
        await client.delete(RESOURCE_SLICES, item["metadata"]["name"])
        await until(client, lambda found: len(found) == 1)


async def test_a_pool_no_longer_yielded_is_withdrawn(client: Client) -> None:
    warehouse = Warehouse(pool("a"), pool("b"))
    async with running(part(client, warehouse)):
        assert len(await specs(client)) == 2
        warehouse.pools = [pool("b")]
        warehouse.context.rescan()
        [left] = await until(client, lambda found: len(found) == 1)
    assert left["pool"]["name"] == "b"


async def test_another_active_replica_writes_nothing_when_nothing_changed(client: Client) -> None:
    for _ in range(2):
        async with running(part(client, Warehouse(pool()))):
            [item] = (await client.list(RESOURCE_SLICES)).items
    assert item["metadata"]["generation"] == 1
    assert client.requests["update", "resourceslices"] == 0


async def test_slices_of_nodes_and_other_drivers_are_not_changed(client: Client) -> None:
    for driver, scope in ((DRIVER, {"nodeName": "node-1"}), ("other.example.com", {"allNodes": True})):
        spec = {"driver": driver, "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1}, **scope}
        await client.create(RESOURCE_SLICES, {"metadata": {"name": driver.partition(".")[0]}, "spec": spec})
    async with running(part(client, Warehouse(pool()))):
        assert sorted(spec["driver"] for spec in await specs(client)) == [DRIVER, DRIVER, "other.example.com"]


@pytest.mark.parametrize("others", [0, 20])
async def test_a_pool_with_the_name_of_a_node_is_rejected_and_the_others_published(
    client: Client, caplog: pytest.LogCaptureFixture, others: int
) -> None:
    spec = {"driver": DRIVER, "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1}}
    await client.create(RESOURCE_SLICES, {"metadata": {"name": "of-a-node"}, "spec": {**spec, "nodeName": "node-1"}})
    more = [pool(f"more-{number}") for number in range(others)]
    made = part(client, Warehouse(pool("node-1"), pool("warehouse"), *more))
    task = asyncio.create_task(made.run(asyncio.Event()))
    with caplog.at_level(logging.ERROR):
        await eventually(lambda: any(record.message == "slices not published" for record in caplog.records))
    found = await specs(client)
    task.cancel()

    assert len(found) == 2 + others
    assert [spec.get("allNodes") for spec in found if spec["pool"]["name"] == "node-1"] == [None]
    [record] = [record for record in caplog.records if record.message == "slices not published"]
    assert vars(record)["code"] == "pool-name-of-node"
    assert vars(record)["error"] == (
        "pool node-1 without a node is not published: node node-1 has a pool of that name, and the scheduler would "
        "merge the two; give it a name that does not begin with a node's name"
    )


async def test_slices_are_owned_by_the_cluster_role_of_the_controller(client: Client) -> None:
    body = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "disk-controller"},
    }
    role = await client.create(CLUSTER_ROLES, {**body, "rules": []})
    async with running(part(client, Warehouse(pool()), "disk-controller")):
        [item] = (await client.list(RESOURCE_SLICES)).items
    [owner] = item["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("ClusterRole", "disk-controller", role["metadata"]["uid"])


async def test_slices_are_published_without_the_cluster_role(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    async with running(part(client, Warehouse(pool()), "no-such-role")):
        assert len(await specs(client)) == 1
    assert "objects of the controller are not deleted when it is uninstalled" in caplog.messages


@pytest.mark.parametrize(
    ("yielded", "expected"),
    [
        (
            [dra.Device(name="a")],
            (
                "Yielding.discover yielded devices without a pool, which belong to no node; yield "
                "dra_kit.Inventory(pools=[dra_kit.Pool(name=…, all_nodes=True, devices=…)])"
            ),
        ),
        (
            dra.Inventory(pools=[dra.Pool(all_nodes=True)]),
            "Yielding.discover yielded a Pool without a name, which would be that of a node; write Pool(name=…)",
        ),
        (
            dra.Inventory(pools=[dra.Pool(name="a")]),
            ("Pool 'a': it has no nodes; write all_nodes=True, node_selector=… or per_device_node_selection=True"),
        ),
        (
            dra.Inventory(
                pools=[pool(devices=disks(binding_conditions=["a.b/c"], binding_failure_conditions=["a.b/d"]))]
            ),
            (
                "Device 'disk-0': binding_conditions: no controller sets these conditions, and the scheduler would "
                "wait; write Driver(…, binder=<your dra_kit.DeviceBinder>), binder=dra_kit.BoundElsewhere() if "
                "another controller sets them, or leave it out"
            ),
        ),
    ],
)
async def test_fields_that_need_a_node_are_rejected(
    client: Client, caplog: pytest.LogCaptureFixture, yielded: Any, expected: str
) -> None:
    class Yielding(dra.DeviceProvider, scope="cluster"):
        def discover(self) -> Iterator[Any]:
            yield yielded

    task = asyncio.create_task(part(client, Yielding()).run(asyncio.Event()))
    await eventually(lambda: "discover failed" in caplog.messages)
    task.cancel()
    [record] = [record for record in caplog.records if record.message == "discover failed"]
    assert vars(record)["error"] == expected


def test_the_context_has_no_node() -> None:
    warehouse = Warehouse()
    warehouse.context = ControllerContext(DRIVER, None, Metrics())
    for read in (lambda: warehouse.context.node, lambda: warehouse.context.state_dir, lambda: warehouse.hardware):
        with pytest.raises(ConfigurationError, match="controller"):
            read()
    with pytest.raises(ConfigurationError, match=r"context[.]update belongs to a node"):
        warehouse.context.update("disk-0")
    assert not warehouse.context.prepared()
