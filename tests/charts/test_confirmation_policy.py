"""What a node's token may write to pods at the end of a driver: the confirmation, and to its own pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.resources import DECOMMISSIONED, PODS
from dra_kit.errors import Forbidden
from dra_kit.node.removal_confirmation import PodName, RemovalConfirmation
from dra_kit.sandbox.drivers.accounts import create_accounts
from tests.charts.clients import serving
from tests.charts.life import accounts
from tests.charts.rendering import DEPLOYED, NAMESPACE, RELEASE, Helm

OWN, OTHER = "pizza-node-own", "pizza-node-other"
MINE = {"type": DECOMMISSIONED, "status": "True", "reason": "NothingLeft", "message": "nothing is left"}
READY = {"type": "Ready", "status": "True"}
REFUSED: dict[str, dict[str, Any]] = {
    "ready": {"status": {"conditions": [READY]}},
    "both": {"status": {"conditions": [MINE, READY]}},
    "phase": {"status": {"phase": "Failed", "conditions": [MINE]}},
    "address": {"status": {"podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}]}},
    "labels": {"metadata": {"labels": {"app": "other"}}, "status": {"conditions": [MINE]}},
    "annotations": {"metadata": {"annotations": {"a": "b"}}, "status": {"conditions": [MINE]}},
}
"""Patches of a pod's status that say more than the confirmation."""
PODS_OF_EFFECTS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "create", "patch", "delete"]}
ALL_OF_PODS = {"apiGroups": [""], "resources": ["pods", "pods/status", "pods/*"], "verbs": ["*"]}
EFFECT_PODS = {"decommission": True, "effectPods": {"labels": {"app.kubernetes.io/component": "mps"}}}
NODES_OF_DRIVERS: dict[str, dict[str, Any]] = {
    "plain": {"decommission": True},
    "effect-pods": {**EFFECT_PODS, "namespacedRules": {NAMESPACE: [PODS_OF_EFFECTS]}},
    "all-of-pods": {**EFFECT_PODS, "extraRules": [ALL_OF_PODS]},
    "status-of-pods": {"decommission": True, "extraRules": [{**PODS_OF_EFFECTS, "resources": ["pods/status"]}]},
}
"""Values of drivers that are being removed; policies for what their effects write apply to the same account."""


def pod(name: str) -> dict[str, Any]:
    """A pod of the driver on the node."""
    containers = [{"name": "node", "image": "images.example/pizza"}]
    spec = {"nodeName": "node-1", "serviceAccountName": f"{RELEASE}-node", "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


async def said(admin: Client) -> str:
    """The status of the condition."""
    conditions = (await admin.get(PODS, OWN, NAMESPACE))["status"].get("conditions", [])
    return "".join(item["status"] for item in conditions if item["type"] == DECOMMISSIONED)


class World:
    """An API server with what the chart installs and two pods of the driver.

    Attributes:
        admin: may do everything.
        own: the account, with the token of the pod that has its name.
    """

    def __init__(self, admin: Client, own: Client) -> None:
        self.admin, self.own = admin, own

    async def patch(self, name: str, body: dict[str, Any]) -> None:
        await self.own.patch(PODS, name, body, NAMESPACE, content_type=STRATEGIC_MERGE_PATCH, subresource="status")


@pytest.fixture(params=list(NODES_OF_DRIVERS))
async def world(helm: Helm, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with serving("node-1") as served:
        server, admin = served.server, served.admin
        manifests = helm.render({**DEPLOYED, "controller": {"enabled": False}, "node": NODES_OF_DRIVERS[request.param]})
        await create_accounts(accounts(manifests), server, admin)
        own = await admin.create(PODS, pod(OWN))
        await admin.create(PODS, pod(OTHER))
        account = server.api.lookup("serviceaccounts", f"{NAMESPACE}/{RELEASE}-node")
        assert account is not None
        yield World(admin, await served.client(server.api.tokens.issue(account, pod=own)[0]))


async def test_a_pod_confirms_by_its_own_condition(world: World) -> None:
    confirmation = RemovalConfirmation(world.own, PodName(NAMESPACE, OWN))
    writing = asyncio.create_task(confirmation.run(asyncio.Event()))
    for done in (False, True):
        confirmation.set(done, "what is left")
        async with asyncio.timeout(60):
            while await said(world.admin) != ("True" if done else "False"):  # noqa: ASYNC110 - a server is asked
                await asyncio.sleep(0.02)
    writing.cancel()


async def test_a_pod_does_not_confirm_for_another(world: World) -> None:
    with pytest.raises(Forbidden, match="may write the status of its own pod only"):
        await world.patch(OTHER, {"status": {"conditions": [MINE]}})


@pytest.mark.parametrize("change", REFUSED)
async def test_a_pod_changes_nothing_else_of_itself(change: str, world: World) -> None:
    with pytest.raises(Forbidden, match="may change nothing of its pod but the condition dra-kit/Decommissioned"):
        await world.patch(OWN, REFUSED[change])


def test_an_ordinary_driver_has_no_right_to_pods(helm: Helm) -> None:
    manifests = helm.render(DEPLOYED)
    assert f"{RELEASE}-node-decommission" not in manifests.names("Role")
