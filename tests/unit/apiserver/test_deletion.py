"""Deletion: preconditions, finalizers, grace, garbage, namespaces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import CONFIG_MAPS, NAMESPACES, PODS, SERVICE_ACCOUNTS
from dra_kit.errors import Conflict, Forbidden, Invalid, NotFound
from tests.unit.apiserver.conftest import Http, config_map, gone, namespace, pod

PATH = "/api/v1/namespaces/default/configmaps"


def owned_by(owner: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    named = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return [{"apiVersion": "v1", "kind": owner["kind"], **named, **more}]


async def test_a_precondition_that_fails_keeps_the_object(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map())

    with pytest.raises(Conflict, match="UID in the precondition"):
        await client.delete(CONFIG_MAPS, "settings", "default", uid="other")
    await client.get(CONFIG_MAPS, "settings", "default")


async def test_object_is_deleted_with_its_last_finalizer(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map(finalizers=["example.com/a"]))

    await client.delete(CONFIG_MAPS, "settings", "default")
    assert "deletionTimestamp" in (await client.get(CONFIG_MAPS, "settings", "default"))["metadata"]
    with pytest.raises(Invalid, match="no new finalizers"):
        await client.patch(CONFIG_MAPS, "settings", {"metadata": {"finalizers": ["example.com/b"]}}, "default")

    await client.patch(CONFIG_MAPS, "settings", {"metadata": {"finalizers": None}}, "default")
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "settings", "default")


async def test_a_pod_on_a_node_waits_for_its_kubelet(client: Client) -> None:
    await client.create(PODS, pod(spec={"nodeName": "node-1"}))

    await client.delete(PODS, "pod-1", "default")
    assert (await client.get(PODS, "pod-1", "default"))["metadata"]["deletionGracePeriodSeconds"] == 30
    await client.delete(PODS, "pod-1", "default", grace_period_seconds=0)

    with pytest.raises(NotFound):
        await client.get(PODS, "pod-1", "default")


async def test_a_pod_without_a_node_goes_at_once(client: Client) -> None:
    await client.create(PODS, pod())

    await client.delete(PODS, "pod-1", "default")

    with pytest.raises(NotFound):
        await client.get(PODS, "pod-1", "default")


async def test_a_collection_is_deleted_by_selector(client: Client) -> None:
    for name in "abc":
        await client.create(CONFIG_MAPS, config_map(name, labels={"keep": "yes" if name == "b" else "no"}))

    await client.delete_collection(CONFIG_MAPS, "default", label_selector="keep=no")

    assert [item["metadata"]["name"] for item in (await client.list(CONFIG_MAPS)).items] == ["b"]


async def test_dependents_of_a_deleted_owner_are_collected(client: Client) -> None:
    owner = await client.create(CONFIG_MAPS, config_map("owner"))
    child = await client.create(CONFIG_MAPS, config_map("child", ownerReferences=owned_by(owner)))
    await client.create(CONFIG_MAPS, config_map("grandchild", ownerReferences=owned_by(child)))

    await client.delete(CONFIG_MAPS, "owner", "default")

    await gone(client, CONFIG_MAPS, "child")
    await gone(client, CONFIG_MAPS, "grandchild")


async def test_object_with_a_remaining_owner_is_not_collected(client: Client) -> None:
    owners = [await client.create(CONFIG_MAPS, config_map(name)) for name in ("one", "two")]
    references = [*owned_by(owners[0]), *owned_by(owners[1])]
    await client.create(CONFIG_MAPS, config_map("child", ownerReferences=references))
    await client.create(CONFIG_MAPS, config_map("witness", ownerReferences=owned_by(owners[0])))

    await client.delete(CONFIG_MAPS, "one", "default")
    await gone(client, CONFIG_MAPS, "witness")

    await client.get(CONFIG_MAPS, "child", "default")


async def test_object_whose_owner_never_existed_is_collected(client: Client) -> None:
    owner = {"kind": "ConfigMap", "metadata": {"name": "never", "uid": "never"}}

    await client.create(CONFIG_MAPS, config_map("child", ownerReferences=owned_by(owner)))

    await gone(client, CONFIG_MAPS, "child")


async def test_foreground_deletion_waits_for_dependents(client: Client, http: Http) -> None:
    owner = await client.create(CONFIG_MAPS, config_map("owner"))
    references = owned_by(owner, blockOwnerDeletion=True)
    await client.create(CONFIG_MAPS, config_map("child", ownerReferences=references, finalizers=["example.com/wait"]))

    await http("DELETE", f"{PATH}/owner", {"propagationPolicy": "Foreground"})
    assert (await client.get(CONFIG_MAPS, "owner", "default"))["metadata"]["finalizers"] == ["foregroundDeletion"]
    await client.patch(CONFIG_MAPS, "child", {"metadata": {"finalizers": None}}, "default")

    await gone(client, CONFIG_MAPS, "owner")


async def test_orphaned_dependents_lose_the_owner_reference(client: Client, http: Http) -> None:
    owner = await client.create(CONFIG_MAPS, config_map("owner"))
    await client.create(CONFIG_MAPS, config_map("child", ownerReferences=owned_by(owner)))

    await http("DELETE", f"{PATH}/owner", {"propagationPolicy": "Orphan"})
    await gone(client, CONFIG_MAPS, "owner")

    assert "ownerReferences" not in (await client.get(CONFIG_MAPS, "child", "default"))["metadata"]


async def test_a_new_namespace_has_a_service_account(client: Client) -> None:
    await client.create(NAMESPACES, namespace("team"))

    async with asyncio.timeout(30):
        while not (await client.list(SERVICE_ACCOUNTS, "team")).items:  # noqa: ASYNC110 - it is in a server
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("name", ["default", "kube-public", "kube-system"])
async def test_initial_namespaces_cannot_be_deleted(client: Client, name: str) -> None:
    with pytest.raises(Forbidden, match="this namespace may not be deleted"):
        await client.delete(NAMESPACES, name)


async def test_terminating_namespace_rejects_creates_and_allows_deletes(client: Client) -> None:
    await client.create(NAMESPACES, namespace("team"))
    await client.create(CONFIG_MAPS, config_map(namespace="team", finalizers=["example.com/wait"]))
    await client.delete(NAMESPACES, "team")

    assert (await client.get(NAMESPACES, "team"))["status"]["phase"] == "Terminating"
    with pytest.raises(Forbidden, match="being terminated"):
        await client.create(CONFIG_MAPS, config_map("late", namespace="team"))
    await client.delete(CONFIG_MAPS, "settings", "team")


@pytest.mark.parametrize(
    ("seconds", "by_client"), [(3600, True), (0.01, False)], ids=["after-its-last-object", "emptied-after-a-while"]
)
async def test_a_deleted_namespace_goes(seconds: float, by_client: bool) -> None:
    async with (
        ApiServer(namespace_seconds=seconds) as server,
        Client(Credentials(Connection(server.url)), user_agent="tests/1") as client,
    ):
        await client.create(NAMESPACES, namespace("team"))
        await client.create(CONFIG_MAPS, config_map(namespace="team"))

        await client.delete(NAMESPACES, "team")
        if by_client:
            await client.delete(CONFIG_MAPS, "settings", "team")

        await gone(client, NAMESPACES, "team", None)
