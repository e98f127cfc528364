"""What the node's admission policies refuse, evaluated by the sandbox's API server: a node writes of itself alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.resources import RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_kit.errors import Forbidden, KubeError
from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.drivers.accounts import create_accounts
from tests.charts.clients import serving
from tests.charts.life import accounts
from tests.charts.rendering import DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm

_BETA = Resource("resource.k8s.io", "v1beta1", "resourceslices", "ResourceSlice", namespaced=False)
_GRANULAR = "DRAResourceClaimGranularStatusAuthorization"  # it refuses before a policy is asked


class World:
    """An API server with two nodes and what the chart installs.

    Attributes:
        admin: may do everything.
        here: the node role on node-1.
        nowhere: has a token that names no node.
    """

    def __init__(self, admin: Client, here: Client, nowhere: Client) -> None:
        self.admin, self.here, self.nowhere = admin, here, nowhere


@pytest.fixture
async def world(helm: Helm) -> AsyncIterator[World]:
    gates = Release.of().without(_GRANULAR)
    async with serving("node-1", "node-2", gates=gates) as served:
        server, admin = served.server, served.admin
        await create_accounts(accounts(helm.render({**DEPLOYED, "controller": {"enabled": False}})), server, admin)
        here, nowhere = (server.token(NAMESPACE, f"{RELEASE}-node", node=node) for node in ("node-1", ""))
        yield World(admin, await served.client(here), await served.client(nowhere))


def resource_slice(name: str, node: str | None = "node-1", driver: str = DRIVER, version: str = "v1") -> dict[str, Any]:
    where = {"nodeName": node} if node else {"allNodes": True}
    device: dict[str, Any] = {"name": "d"} if version == "v1" else {"name": "d", "basic": {}}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "pool": {"name": node or name, "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
            **where,
        },
    }


async def test_a_node_writes_its_own_slices(world: World) -> None:
    made = await world.here.create(RESOURCE_SLICES, resource_slice("mine"))
    made["spec"]["pool"]["generation"] = 2

    await world.here.update(RESOURCE_SLICES, made)
    await world.here.delete(RESOURCE_SLICES, "mine")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"node": "node-2"},
            "the driver on node node-1 may write only slices with this spec.nodeName, not with node-2",
        ),
        ({"node": None}, "node-1 may write only slices with this spec.nodeName, not with (none)"),
        ({"driver": "other.example"}, f"driver {DRIVER} may write only its own slices"),
    ],
    ids=["another-node", "no-node", "another-driver"],
)
@pytest.mark.parametrize(("resource", "version"), [(RESOURCE_SLICES, "v1"), (_BETA, "v1beta1")])
async def test_it_makes_no_other_slices(
    world: World, given: dict[str, Any], text: str, resource: Resource, version: str
) -> None:
    with pytest.raises(Forbidden) as refused:
        await world.here.create(resource, resource_slice("other", version=version, **given))

    assert text in str(refused.value)


async def test_it_neither_changes_nor_deletes_those_of_others(world: World) -> None:
    other = await world.admin.create(RESOURCE_SLICES, resource_slice("other", "node-2"))
    taken = {**other, "metadata": {**other["metadata"], "labels": {"a": "b"}}}

    with pytest.raises(Forbidden, match="not with node-2 and node-2"):
        await world.here.update(RESOURCE_SLICES, taken)
    with pytest.raises(Forbidden, match="may write only slices with this"):
        await world.here.delete(RESOURCE_SLICES, "other")


async def test_a_token_without_a_node_writes_nothing(world: World) -> None:
    with pytest.raises(Forbidden, match=r"\(none: its token names no node\)"):
        await world.nowhere.create(RESOURCE_SLICES, resource_slice("mine"))


async def test_the_policies_leave_everybody_else_alone(world: World) -> None:
    await world.admin.create(RESOURCE_SLICES, resource_slice("any", "node-2", "other.example"))


async def allocated_claim(world: World, node: str) -> None:
    exactly = {"deviceClassName": "pizza"}
    await world.admin.create(
        RESOURCE_CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "lunch", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        },
    )
    results = [{"request": "r", "driver": driver, "pool": node, "device": "d"} for driver in (DRIVER, "other.example")]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    await patch_status(world.admin, {"allocation": allocation})


async def patch_status(client: Client, status: dict[str, Any]) -> None:
    await client.patch(RESOURCE_CLAIMS, "lunch", {"status": status}, "default", subresource="status")


def entry(node: str, driver: str = DRIVER) -> dict[str, Any]:
    return {"driver": driver, "pool": node, "device": "d", "data": {"a": 1}}


async def test_a_node_says_what_it_gave_of_claims_that_are_allocated_on_it(world: World) -> None:
    await allocated_claim(world, "node-1")

    await patch_status(world.here, {"devices": [entry("node-1")]})


@pytest.mark.parametrize(
    ("node", "status", "text"),
    [
        ("node-1", {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}, "but status.devices"),
        ("node-1", {"devices": [entry("node-1", "other.example")]}, "only its own entries"),
        ("node-2", {"devices": [entry("node-2")]}, "only of claims that are allocated on this node"),
    ],
    ids=["reservation", "another-driver", "another-node"],
)
async def test_it_says_nothing_else(world: World, node: str, status: dict[str, Any], text: str) -> None:
    await allocated_claim(world, node)

    with pytest.raises(KubeError, match=text):
        await patch_status(world.here, status)
