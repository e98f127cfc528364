"""Slices of nodes that are gone: which they are, when they are deleted, and which never."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.resources import NODES, RESOURCE_SLICES
from dra_kit.controller.cluster_pools import OrphanSliceCollector, find_orphan_slices
from tests.unit.controller.claims import DRIVER
from tests.unit.controller.cluster import Clock


def slice_of(name: str, *, node: str | None = None, owner: str = "", driver: str = DRIVER) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    if owner:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner}]
    scope = {"nodeName": node} if node else {"allNodes": True}
    pool = {"name": node or "warehouse", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata,
        "spec": {"driver": driver, "pool": pool, **scope, "devices": [{"name": "pizza-0"}]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("item", "orphan"),
    [
        (slice_of("here", node="node-1"), False),
        (slice_of("here-and-owned", node="node-1", owner="uid-1"), False),
        (slice_of("gone", node="node-2"), True),
        (slice_of("gone-and-owned", node="node-2", owner="uid-2"), True),
        (slice_of("of-the-former-node", node="node-1", owner="uid-0"), True),
        (slice_of("of-no-node"), False),
    ],
    ids=lambda value: value["metadata"]["name"] if isinstance(value, dict) else "",
)
def test_an_orphan_belongs_to_a_missing_or_replaced_node(item: dict[str, Any], orphan: bool) -> None:
    assert bool(find_orphan_slices([item], {"node-1": "uid-1"})) is orphan


async def present(client: Client) -> set[str]:
    return {item["metadata"]["name"] for item in (await client.list(RESOURCE_SLICES)).items}


async def make(client: Client, *slices: dict[str, Any]) -> None:
    for item in slices:
        kept = {key: value for key, value in item["metadata"].items() if key in {"name", "ownerReferences"}}
        await client.create(RESOURCE_SLICES, {**item, "metadata": kept})


async def node(client: Client, name: str) -> None:
    await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})


async def test_only_an_orphan_is_deleted_at_the_second_check_a_minute_later(client: Client) -> None:
    await node(client, "node-1")
    await make(
        client, slice_of("gone", node="node-2"), slice_of("here", node="node-1"), slice_of("of-no-node"),
        slice_of("of-another-driver", node="node-2", driver="dra.gpu"),
    )  # fmt: skip
    clock = Clock()
    orphans = OrphanSliceCollector(client, DRIVER, clock=clock)
    assert await orphans.look() == 0
    clock.now += 59.0
    assert await orphans.look() == 0
    clock.now += 1.0
    assert await orphans.look() == 1
    assert await present(client) == {"here", "of-no-node", "of-another-driver"}


async def test_a_node_that_comes_back_keeps_its_slices(client: Client) -> None:
    await make(client, slice_of("gone", node="node-2"))
    clock = Clock()
    orphans = OrphanSliceCollector(client, DRIVER, clock=clock)
    await orphans.look()
    await node(client, "node-2")
    clock.now += 60.0
    assert await orphans.look() == 0
    await client.delete(NODES, "node-2")
    clock.now += 60.0
    assert await orphans.look() == 0  # it is missing again: the minute starts again
    assert await present(client) == {"gone"}


async def test_nodes_are_not_listed_without_slices_of_nodes(client: Client) -> None:
    await make(client, slice_of("of-no-node"))
    before = client.requests["list", "nodes"]
    await OrphanSliceCollector(client, DRIVER).look()
    assert client.requests["list", "nodes"] == before
