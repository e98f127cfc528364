"""What a policy watches: core kinds by name, and objects that select the node by its labels, which may change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

import dra_kit as dra
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import CONFIG_MAPS
from dra_kit.node.agent import NodeAgent
from dra_kit.node.followers import NodeFollower, ObjectFollower
from tests.support.api import eventually
from tests.unit.node.drivers import Waiter
from tests.unit.node.role import DRIVER, NODE, SLICES, Node


class Settings(BaseModel):
    town: str = "kitchen"


class Oven(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="pizza-0"), dra.Device(name="pizza-1")]


@asynccontextmanager
async def running(
    node: Node, watched: dra.WatchedObject | None, provider: dra.DeviceProvider | None = None, **parts: Any
) -> AsyncIterator[NodeAgent]:
    class Menu(dra.DevicePolicy, watches=watched):
        def advertise(self, device: dra.Device, watched: Mapping[str, Any] | None) -> dra.Device | None:
            objects = (watched or {}).get("items", [watched] if watched else [])
            off = [name for item in objects for name in item["data"]["off"].split()]
            return None if device.name in off else device

    driver = dra.Driver(
        DRIVER, provider=provider or Oven(), preparer=Waiter(), policy=Menu(), settings=Settings, **parts
    )
    async with node.running(driver, author=Settings()) as agent:
        yield agent


def menu(name: str, *off: str, namespace: str = "kitchen", **selector: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "data": {"off": " ".join(off)},
        "spec": {"nodeSelector": selector},
    }


BY_NAME = {"group": "", "version": "v1", "plural": "configmaps", "namespace": "kitchen"}


@pytest.mark.parametrize(
    ("watched", "name"),
    [
        ({"name": "menu"}, "menu"),
        ({"name": "menu-{node}"}, f"menu-{NODE}"),
        ({"name": "menu", "namespace": lambda settings: settings.town}, "menu"),
        ({}, NODE),
    ],
)
async def test_policy_follows_a_config_map_by_its_name(node: Node, watched: Mapping[str, Any], name: str) -> None:
    node.api.put("configmaps", menu("other", "pizza-0", "pizza-1"))
    node.api.put("configmaps", menu(name, "pizza-0", namespace="hall"))
    async with running(node, dra.WatchedObject(**{**BY_NAME, **watched})):
        await eventually(lambda: node.published() == ["pizza-0", "pizza-1"])
        node.api.put("configmaps", menu(name, "pizza-1"))
        await eventually(lambda: node.published() == ["pizza-0"])
        node.api.delete("configmaps", name, "kitchen")
        await eventually(lambda: node.published() == ["pizza-0", "pizza-1"])


SELECTORS: Sequence[Mapping[str, Any]] = [
    {"oven": "hot"},
    {"matchLabels": {"oven": "hot"}},
    {"matchExpressions": [{"key": "oven", "operator": "In", "values": ["hot", "hotter"]}]},
    {"nodeSelectorTerms": [{"matchExpressions": [{"key": "oven", "operator": "NotIn", "values": ["cold"]}]}]},
    {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]},
    {"matchLabels": None, "matchExpressions": [{"key": "oven", "operator": "Exists"}]},
    {},
]
OTHERS: Sequence[Mapping[str, Any]] = [
    {"oven": "cold"},
    {"matchLabels": {"oven": "hot", "town": "naples"}},
    {"nodeSelectorTerms": [{"matchExpressions": [{"key": "oven", "operator": "Nearly", "values": ["hot"]}]}]},
    {"matchExpressions": "hot"},
    {"matchExpressions": [{"key": "oven", "operator": "Equals"}]},
    {"matchExpressions": [{"key": "oven", "operator": "NotIn"}]},
]
SELECTING = dra.WatchedObject(**{**BY_NAME, "node_selector": "spec.nodeSelector"})


@pytest.mark.parametrize("selector", SELECTORS, ids=str)
async def test_policy_gets_the_objects_that_select_the_node(node: Node, selector: Mapping[str, Any]) -> None:
    for number, other in enumerate(OTHERS):
        node.api.put("configmaps", menu(f"other-{number}", "pizza-1", **other))
    node.api.put("configmaps", menu("ours", "pizza-0", **selector))
    async with running(node, SELECTING):
        await eventually(lambda: node.published() == ["pizza-1"])
        node.api.put("configmaps", menu("ours-too", "pizza-1", **selector))
        await eventually(lambda: node.published() == [])


async def test_objects_select_the_node_by_its_current_labels(node: Node) -> None:
    node.api.put("configmaps", menu("hot", "pizza-0", oven="hot"))
    node.api.put("configmaps", menu("cold", "pizza-1", oven="cold"))
    async with running(node, SELECTING):
        await eventually(lambda: node.published() == ["pizza-1"])
        node.api.put("nodes", {"metadata": {"name": NODE, "labels": {"oven": "cold"}}})
        await eventually(lambda: node.published() == ["pizza-0"])


async def test_invalid_node_selector_is_reported_once_with_its_object(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.api.put("configmaps", menu("wrong", "pizza-0", matchExpressions="hot"))
    async with running(node, SELECTING):
        await eventually(lambda: node.published() == ["pizza-0", "pizza-1"])
        node.api.put("configmaps", menu("right", "pizza-1"))
        await eventually(lambda: node.published() == ["pizza-0"])
    [record] = [item for item in caplog.records if "selects no node" in item.message]
    assert (record.__dict__["object"], record.__dict__["field"]) == ("configmaps kitchen/wrong", "spec.nodeSelector")


async def test_many_changes_at_once_are_one_choice(node: Node) -> None:
    """Each choice goes through all objects."""
    for number in range(100):
        node.api.put("configmaps", menu(f"menu-{number}"))
    choices: list[int] = []

    def choose(objects: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        choices.append(len(objects))
        return {"items": objects}

    credentials = await load_credentials(node.kubeconfig)
    async with Client(credentials, user_agent="tests/1") as client, asyncio.TaskGroup() as group:
        follower = ObjectFollower(client, CONFIG_MAPS, choose, lambda: None, failed="configmaps are not followed")
        task = group.create_task(follower.follow())
        await eventually(lambda: choices == [100])
        node.api.go_away()
        for number in range(100):
            node.api.put("configmaps", menu(f"menu-{number}", "pizza-0"))
        node.api.listen()
        await eventually(
            lambda: follower.object is not None and all(item["data"]["off"] for item in follower.object["items"])
        )
        assert len(choices) < 100  # one for each change would be more; how many at once depends on the machine
        task.cancel()


class Labelled(dra.DeviceProvider):
    """Publishes a device that is named like a label."""

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name=self.context.node.labels.get("oven", "none"))]


async def test_discover_starts_again_when_a_label_of_the_followed_node_changes(node: Node) -> None:
    async with running(node, None, Labelled(), follow_node=True) as agent:
        await eventually(lambda: node.published() == ["hot"])
        await eventually(lambda: agent.supervisor.status()["node"].state == "ready")
        watches = node.api.asked("WATCH", "/api/v1/nodes")
        node.api.put("nodes", {"metadata": {"name": NODE, "labels": {"oven": "cold"}}})
        await eventually(lambda: node.published() == ["cold"])
        assert node.api.asked("WATCH", "/api/v1/nodes") == watches


async def test_labels_that_are_read_late_restart_discover(node: Node) -> None:
    class Early(Labelled):
        seen: ClassVar[list[str]] = []

        def discover(self) -> Iterator[Sequence[dra.Device]]:
            for [device] in super().discover():
                self.seen.append(device.name)
                yield [device]

    with ExitStack() as always:
        always.enter_context(node.api.failing(403, at="/api/v1/nodes"))  # only the publisher reads the Node
        late = always.enter_context(ExitStack())
        late.enter_context(node.api.failing(503, below="/api/v1/nodes/"))
        async with running(node, None, Early(), follow_node=True):
            await eventually(lambda: Early.seen == ["none"])
            late.close()
            await eventually(lambda: node.published() == ["hot"])
            assert Early.seen == ["none", "hot"]


async def test_nothing_is_published_before_the_labels_that_choose_objects_are_known(node: Node) -> None:
    node.api.put("configmaps", menu("hot", "pizza-0", oven="hot"))
    with ExitStack() as late:
        late.enter_context(node.api.failing(503, below="/api/v1/nodes"))
        async with running(node, SELECTING):
            await eventually(lambda: node.api.asked("WATCH", "/api/v1/namespaces/kitchen/configmaps"))
            late.close()
            await eventually(lambda: node.published() == ["pizza-1"])
            writes = [item.method for item in node.api.requests if item.path.startswith(SLICES)]
            assert [method for method in writes if method != "GET"] == ["POST"]


async def test_objects_of_a_deleted_kind_do_not_return_when_a_label_changes(node: Node) -> None:
    class Both(Labelled):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            for devices in super().discover():
                yield [*devices, dra.Device(name="pizza-0")]

    node.api.put("configmaps", menu("ours", "pizza-0"))
    async with running(node, SELECTING, Both()):
        await eventually(lambda: node.published() == ["hot"])
        with node.api.failing(404, below="/api/v1/namespaces/kitchen/configmaps"):
            node.api.go_away()
            node.api.listen()
            await eventually(lambda: node.published() == ["hot", "pizza-0"])
            node.api.put("nodes", {"metadata": {"name": NODE, "labels": {"oven": "cold"}}})
            await eventually(lambda: "cold" in node.published())
            assert node.published() == ["cold", "pizza-0"]


async def test_change_of_the_node_without_new_labels_does_not_start_discover_again(node: Node) -> None:
    class Counting(Labelled):
        runs = 0

        def discover(self) -> Iterator[Sequence[dra.Device]]:
            self.runs += 1
            yield from super().discover()

    provider = Counting()
    async with running(node, None, provider, follow_node=True) as agent:
        await eventually(lambda: agent.supervisor.status()["node"].state == "ready")
        await eventually(lambda: node.published() == ["hot"])
        node.api.put("nodes", {"metadata": {"name": NODE, "labels": {"oven": "hot"}}, "spec": {"unschedulable": True}})
        node.api.put("nodes", {"metadata": {"name": NODE, "labels": {"oven": "cold"}}})
        await eventually(lambda: node.published() == ["cold"])
        assert provider.runs == 2


async def test_node_that_is_not_followed_is_not_watched(node: Node) -> None:
    async with running(node, None, Labelled()):
        await eventually(lambda: node.published() == ["hot"])
        assert not node.api.asked("WATCH", "/api/v1/nodes")


async def test_missing_right_to_follow_the_node_is_what_its_part_waits_for(node: Node) -> None:
    credentials = await load_credentials(node.kubeconfig)
    with node.api.failing(403, below="/api/v1/nodes"):
        async with Client(credentials, user_agent="tests/1") as client, asyncio.TaskGroup() as group:
            follower, ready = NodeFollower(client, NODE, lambda _: None), asyncio.Event()
            task = group.create_task(follower.run(ready))
            await eventually(lambda: "HTTP 403" in follower.waits_for())
            assert not ready.is_set()
            task.cancel()


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"namespace": None}, r"configmaps are in namespaces.*write namespace=…"),
        ({"namespace": None, "plural": "secrets", "node_selector": "data.nodes"}, "secrets of all namespaces"),
        ({"namespace": "a/b"}, "namespace 'a/b' is not the name of a namespace"),
        ({"name": "Menu"}, "name 'Menu' is not valid"),
        ({"name": "menu", "node_selector": "spec"}, "name 'menu' cannot be combined with node_selector 'spec'"),
        ({"node_selector": "spec..nodes"}, r"node_selector 'spec\.\.nodes' is not valid"),
    ],
)
def test_invalid_watched_object_is_refused(wrong: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(dra.ConfigurationError, match=problem):
        dra.WatchedObject(**{**BY_NAME, **wrong})
