"""Objects in the cluster as effects, against the embedded API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.apiserver.server import ApiServer
from dra_kit.author.context import NodeInfo
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import CONFIG_MAPS, DEPLOYMENTS, NODES, PODS
from dra_kit.node.context import ClusterFacts
from dra_kit.node.effects.classes import effect_without_class, stored_undo
from dra_kit.node.effects.cluster_objects import NODE_LABEL, ClusterObjects
from dra_kit.node.state.records import EffectRecord

CLAIM = "6c1a0a52-52f1-4bb0-9a93-3f1c2f4f6d10"
LABELS = {"app": "oven"}


class Menu(dra.ClusterObject, id="menu", api_version="v1", kind="ConfigMap", plural="configmaps"):
    """Ready as soon as it is there."""

    dish: str

    def body(self) -> dict[str, Any]:
        return {"metadata": {"labels": LABELS}, "data": {"dish": self.dish}}


class Cook(dra.ClusterObject, id="cook", api_version="v1", kind="Pod", plural="pods"):
    """Of no use any more when it has failed."""

    def body(self) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": "cook", "image": "cook"}]}}

    async def ended(self, found: Mapping[str, Any]) -> bool:
        return bool(found["status"].get("phase") == "Failed")


class Kitchen(
    dra.ClusterObject,
    id="kitchen",
    api_version="apps/v1",
    kind="Deployment",
    plural="deployments",
    ready_condition="Available",
):
    """Ready when its condition says so."""

    def body(self) -> dict[str, Any]:
        pod = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "cook", "image": "cook"}]}}
        return {"spec": {"selector": {"matchLabels": LABELS}, "template": pod}}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with ApiServer() as server, Client(Credentials(Connection(server.url)), user_agent="tests/1") as connected:
        await connected.create(NODES, {"metadata": {"name": "node-1"}})
        yield connected


@pytest.fixture
def keeper(client: Client) -> ClusterObjects:
    def known(_: NodeInfo) -> None:
        """No test here uses the labels of the node."""

    return ClusterObjects(client, "dra.pizza", ClusterFacts(client, "node-1", known), patience=0.2)


def menu(keeper: ClusterObjects, dish: str = "pizza") -> Menu:
    return Menu(claim_uid=CLAIM, namespace="default", dish=dish).with_keeper(keeper)


async def test_an_object_is_named_by_effect_and_claim_and_owned_by_the_node(
    client: Client, keeper: ClusterObjects
) -> None:
    outcome = await menu(keeper).apply(None)
    there = await client.get(CONFIG_MAPS, f"menu-{CLAIM}", "default")
    node = await client.get(NODES, "node-1")
    assert there["data"] == {"dish": "pizza"}
    assert there["metadata"]["labels"] == {**LABELS, "dra-kit/driver": "dra.pizza", "dra-kit/node": "node-1"}
    assert there["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": node["metadata"]["uid"]}
    ]
    assert [item["manager"] for item in there["metadata"]["managedFields"]] == ["dra.pizza"]
    assert outcome == dra.AppliedObject(f"menu-{CLAIM}", there["metadata"]["uid"], "default", {})


async def test_long_node_names_are_shortened_to_distinct_labels(client: Client) -> None:
    labels = set()
    for number in range(2):
        node = f"{'long.' * 20}node-{number}"
        await client.create(NODES, {"metadata": {"name": node}})
        keeper = ClusterObjects(client, "dra.pizza", ClusterFacts(client, node, lambda _: None))
        outcome = await menu(keeper, f"pizza-{number}").apply(None)
        labels.add((await client.get(CONFIG_MAPS, outcome.name, "default"))["metadata"]["labels"][NODE_LABEL])
    assert len(labels) == 2


async def test_foreign_fields_stay_and_foreign_changes_are_reverted(client: Client, keeper: ClusterObjects) -> None:
    await menu(keeper).apply(None)
    await client.patch(CONFIG_MAPS, f"menu-{CLAIM}", {"data": {"dish": "soup", "drink": "water"}}, "default")
    await menu(keeper).apply(None)
    assert (await client.get(CONFIG_MAPS, f"menu-{CLAIM}", "default"))["data"] == {"dish": "pizza", "drink": "water"}


async def test_prepare_waits_for_the_condition_of_an_object_and_gets_its_status(
    client: Client, keeper: ClusterObjects
) -> None:
    kitchen = Kitchen(claim_uid=CLAIM, namespace="default").with_keeper(keeper)
    with pytest.raises(dra.NotYet, match=f"Deployment default/kitchen-{CLAIM} is not ready yet: it has no condition"):
        await kitchen.apply(None)

    async def conditions(status: str, message: str) -> None:
        condition = {"type": "Available", "status": status, "reason": "Staff", "message": message}
        await client.patch(
            DEPLOYMENTS,
            f"kitchen-{CLAIM}",
            {"status": {"conditions": [condition]}},
            "default",
            subresource="status",
        )

    await conditions("False", "no cook yet")
    with pytest.raises(dra.NotYet, match=r"is not ready yet: no cook yet$"):
        await kitchen.apply(None)
    await conditions("True", "")
    outcome = await kitchen.apply(None)
    found = outcome.status["conditions"]
    assert isinstance(found, list)
    assert [item["status"] for item in found if isinstance(item, dict)] == ["True"]


async def test_an_object_holds_until_it_is_deleted_or_replaced(client: Client, keeper: ClusterObjects) -> None:
    outcome = await menu(keeper).apply(None)
    assert await menu(keeper).holds(outcome)
    await client.delete(CONFIG_MAPS, outcome.name, "default")
    assert not await menu(keeper).holds(outcome)
    again = await menu(keeper).apply(outcome)
    assert not await menu(keeper).holds(outcome)
    assert await menu(keeper).holds(again)


async def test_an_object_that_is_being_deleted_does_not_hold(client: Client, keeper: ClusterObjects) -> None:
    outcome = await menu(keeper).apply(None)
    await client.patch(CONFIG_MAPS, outcome.name, {"metadata": {"finalizers": ["example.com/x"]}}, "default")
    await client.delete(CONFIG_MAPS, outcome.name, "default")
    assert not await menu(keeper).holds(outcome)


async def test_an_object_that_is_being_deleted_is_created_again_afterwards(
    client: Client, keeper: ClusterObjects
) -> None:
    outcome = await menu(keeper).apply(None)
    await client.patch(CONFIG_MAPS, outcome.name, {"metadata": {"finalizers": ["example.com/x"]}}, "default")
    await client.delete(CONFIG_MAPS, outcome.name, "default")
    with pytest.raises(dra.TransientError, match="is being deleted but still exists"):
        await menu(keeper).apply(outcome)
    await client.patch(CONFIG_MAPS, outcome.name, {"metadata": {"finalizers": None}}, "default")
    assert (await menu(keeper).apply(outcome)).uid != outcome.uid


async def test_a_completed_pod_does_not_hold_and_is_created_again(client: Client, keeper: ClusterObjects) -> None:
    cook = Cook(claim_uid=CLAIM, namespace="default").with_keeper(keeper)
    outcome = await cook.apply(None)
    assert await cook.holds(outcome)
    await client.patch(PODS, outcome.name, {"status": {"phase": "Failed"}}, "default", subresource="status")
    assert not await cook.holds(outcome)
    again = await cook.apply(outcome)
    assert again.uid != outcome.uid
    assert await cook.holds(again)


async def test_the_node_is_the_controller_of_a_pod(client: Client, keeper: ClusterObjects) -> None:
    outcome = await Cook(claim_uid=CLAIM, namespace="default").with_keeper(keeper).apply(None)
    (owner,) = (await client.get(PODS, outcome.name, "default"))["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("Node", True)


async def test_revert_waits_until_an_object_is_gone_and_names_its_finalizers(
    client: Client, keeper: ClusterObjects
) -> None:
    outcome = await menu(keeper).apply(None)
    await client.patch(CONFIG_MAPS, outcome.name, {"metadata": {"finalizers": ["example.com/x"]}}, "default")
    with pytest.raises(
        dra.TransientError, match=r"is being deleted but still exists, its finalizers: example\.com/x"
    ) as raised:
        await menu(keeper).revert(outcome)
    assert raised.value.code == "object-not-gone"
    revert = asyncio.ensure_future(menu(keeper).revert(outcome))
    await client.patch(CONFIG_MAPS, outcome.name, {"metadata": {"finalizers": None}}, "default")
    await revert
    assert await keeper.get(menu(keeper).address()) is None
    await menu(keeper).revert(None)  # there is nothing to do


async def test_an_unknown_field_is_rejected(keeper: ClusterObjects) -> None:
    class Misspelt(Menu, id="misspelt"):
        def body(self) -> dict[str, Any]:
            return {"dtaa": {}}

    with pytest.raises(dra.DraKitError, match="dtaa"):
        await Misspelt(claim_uid=CLAIM, namespace="default", dish="pizza").with_keeper(keeper).apply(None)


def test_required_rbac_rules_are_listed() -> None:
    verbs = ["get", "create", "patch", "delete"]
    assert Kitchen.rules() == [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": verbs}]
    assert Menu.rules() == [{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}]


def test_a_missing_or_superfluous_namespace_is_rejected() -> None:
    with pytest.raises(dra.ConfigurationError, match="effect Menu: ConfigMap is namespaced; give namespace"):
        Menu(claim_uid=CLAIM, dish="pizza").keys()

    class Hall(Menu, id="hall", kind="Hall", plural="halls", namespaced=False):
        pass

    with pytest.raises(dra.ConfigurationError, match="effect Hall: Hall is cluster-scoped; leave namespace out"):
        Hall(claim_uid=CLAIM, namespace="default", dish="pizza").keys()


def test_a_class_without_a_kind_is_rejected() -> None:
    with pytest.raises(
        dra.ConfigurationError, match=r"effect Nothing does not say .* add kind, plural to its class arg"
    ):
        type("Nothing", (dra.ClusterObject,), {}, id="nothing", api_version="v1")
    with pytest.raises(dra.ConfigurationError, match="effect Wrong: api_version 'one' is not valid"):
        type("Wrong", (dra.ClusterObject,), {}, id="wrong", api_version="one", kind="A", plural="as")


def stored(undo: str, *keys: str) -> EffectRecord:
    return EffectRecord(number=1, effect="menu", spec="{}", keys=keys, phase="applied", boot_id="b", undo=undo)


async def test_an_object_is_deleted_without_its_class(client: Client, keeper: ClusterObjects) -> None:
    kept, gone = menu(keeper), Menu(claim_uid="other", namespace="default", dish="soup").with_keeper(keeper)
    await kept.apply(None)
    await gone.apply(None)
    effect = effect_without_class(stored(stored_undo(gone), *gone.keys()))
    assert isinstance(effect, dra.ClusterObject)
    await effect.with_keeper(keeper).revert(None)
    assert [item["metadata"]["name"] for item in (await client.list(CONFIG_MAPS)).items] == [f"menu-{CLAIM}"]


def test_an_effect_with_invalid_undo_data_has_no_substitute() -> None:
    for undo in ("", "{", "[]", '{"what":"ClusterObject"}', '{"what":"Oven"}'):
        assert effect_without_class(stored(undo, "a")) is None
