"""From ``discover`` to ResourceSlices: published, kept, healed, and written no more often than needed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.node.context import ClusterFacts
from dra_kit.node.slices import NodeScope
from dra_kit.slices.inventory import node_source, validate_inventory
from dra_kit.slices.publisher import REPORT_AGAIN, Publisher
from tests.support.api import eventually
from tests.unit.node.drivers import Oven, Waiter, driver
from tests.unit.node.role import AGENT, DRIVER, NODE, SLICES, Node


async def test_devices_are_published_with_the_node_as_owner(node: Node) -> None:
    async with node.running(driver(provider=Oven(dra.Device(name="pizza-0", attributes={"dough": "pan"})))):
        await eventually(node.slices)
    [item] = node.api.objects("resourceslices")
    [owner] = node.api.objects("nodes")
    assert item["spec"] == {
        "driver": "dra.pizza",
        "nodeName": "node-1",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "pizza-0", "attributes": {"dough": {"string": "pan"}}}],
    }
    [reference] = item["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["name"], reference["uid"]) == ("Node", "node-1", owner["metadata"]["uid"])


async def test_devices_are_split_into_slices(node: Node) -> None:
    names = [f"pizza-{number:03}" for number in range(129)]
    async with node.running(driver(provider=Oven(*names))):
        await eventually(lambda: len(node.slices()) == 2)
    assert node.published() == names
    assert {(spec["pool"]["generation"], spec["pool"]["resourceSliceCount"]) for spec in node.slices()} == {(1, 2)}


class Yielding(dra.DeviceProvider):
    """Each item is yielded, or raised; None waits until :meth:`go_on`. Starts from the first not used up yet."""

    def __init__(self, *items: Any) -> None:
        self._items = iter(items)
        self._more = threading.Event()

    def go_on(self) -> None:
        self._more.set()

    def discover(self) -> Iterator[Any]:
        for item in self._items:
            if isinstance(item, BaseException):
                raise item
            if item is None:
                self._more.wait()
                self._more.clear()
            else:
                yield item


def devices(*names: str) -> list[dra.Device]:
    return [dra.Device(name=name) for name in names]


async def test_empty_inventory_is_one_empty_slice(node: Node) -> None:
    async with node.running(driver(provider=Yielding([]))):
        await eventually(node.slices)
    [spec] = node.slices()
    assert spec["pool"] == {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    assert not spec.get("devices")


async def test_hot_plug_updates_the_slice_with_one_write(node: Node) -> None:
    provider = Yielding(devices("a"), None, devices("a", "b"), None)
    async with node.running(driver(provider=provider)):
        await eventually(lambda: node.published() == ["a"])
        before = node.slice_writes()
        provider.go_on()
        await eventually(lambda: node.published() == ["a", "b"])
        assert node.slice_writes() == before + 1
        provider.go_on()


async def test_rescan_restarts_discover(node: Node) -> None:
    oven = Oven("a")
    async with node.running(driver(provider=oven)):
        await eventually(lambda: node.published() == ["a"])
        oven.devices = ("b",)
        oven.context.rescan()
        await eventually(lambda: node.published() == ["b"])


async def test_rescan_closes_a_waiting_generator(node: Node) -> None:
    closed = []

    class Waiting(dra.DeviceProvider):
        names = ("a",)
        context: dra.Context[Any]

        def startup(self, context: dra.Context[Any]) -> None:
            self.context = context

        async def discover(self) -> AsyncIterator[Sequence[dra.Device]]:
            names = self.names
            try:
                yield devices(*names)
                await asyncio.Event().wait()
            finally:
                closed.append(names)

    provider = Waiting()
    async with node.running(driver(provider=provider)):
        await eventually(lambda: node.published() == ["a"])
        provider.names = ("b",)
        provider.context.rescan()
        await eventually(lambda: node.published() == ["b"])
        assert closed == [("a",)]
    await eventually(lambda: closed == [("a",), ("b",)])


async def test_rescan_every_restarts_discover(node: Node) -> None:
    oven = Oven("a")
    async with node.running(driver(provider=oven, rescan_every=0.01)):
        await eventually(lambda: node.published() == ["a"])
        oven.devices = ("c",)
        await eventually(lambda: node.published() == ["c"])


async def test_unchanged_inventory_sends_no_requests(node: Node) -> None:
    oven = Oven("a")
    yielded = 0

    class Counting(Oven):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            nonlocal yielded
            yielded += 1
            yield from oven.discover()

    async with node.running(driver(provider=Counting(), rescan_every=0.01)):
        await eventually(node.slices)
        await eventually(lambda: node.api.asked("WATCH", SLICES) and node.api.asked("GET", SLICES, AGENT) >= 2)
        asked = len(node.api.requests)
        seen = yielded
        await eventually(lambda: yielded > seen + 10)
        assert len(node.api.requests) == asked


def messages(caplog: pytest.LogCaptureFixture, message: str) -> list[str]:
    return [str(getattr(item, "error", "")) for item in caplog.records if item.getMessage() == message]


class Inventing(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="Pizza 0")]


class Returning(dra.DeviceProvider):
    def discover(self) -> Any:
        return devices("a")


class Awaiting(dra.DeviceProvider):
    async def discover(self) -> Any:  # type: ignore[override]
        return devices("a")


BROKEN: dict[str, tuple[Callable[[], dra.DeviceProvider], str]] = {
    "nothing": (Yielding, "Yielding.discover ended without an inventory; yield [] for a node without devices"),
    "no devices": (lambda: Yielding(7), "Yielding.discover yielded 7; yield a sequence of dra_kit.Device"),
    "one device": (
        lambda: Yielding(devices("a")[0]),
        "Yielding.discover yielded one Device, 'a', in place of all of them; write 'yield [device, ...]'",
    ),
    "twice": (lambda: Yielding(devices("a", "a")), "devices must be unique in a pool"),
    "invalid device": (Inventing, "Device 'Pizza 0': name: Invalid value: \"Pizza 0\""),
    "strings": (lambda: Yielding(["a"]), "'a' is not a dra_kit.Device; write dra_kit.Device(name=…)"),
    "error": (lambda: Yielding(OSError("no bus")), "OSError: no bus"),
    "exit": (lambda: Yielding(SystemExit(3)), "SystemExit(3)"),
    "list": (Returning, "Returning.discover must be a generator; write 'yield [...]' instead of 'return"),
    "coroutine": (Awaiting, "Awaiting.discover must be a generator; write 'yield [...]' instead of 'return"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_invalid_discover_is_reported_in_the_log_and_to_prepare(
    node: Node, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    make, expected = BROKEN[name]
    lunch = node.claim()
    async with node.running(driver(provider=make()), deadline=0.3):
        await eventually(lambda: messages(caplog, "discover failed"))
        assert expected in messages(caplog, "discover failed")[0]
        assert "discover has not yielded an inventory yet" in await node.error(lunch)
        assert node.slices() == []


async def test_failing_discover_keeps_the_slices_and_is_retried(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    provider = Yielding(devices("a"), OSError("bus error"), devices("a", "b"))
    async with node.running(driver(provider=provider)):
        await eventually(lambda: messages(caplog, "discover failed"))
        assert messages(caplog, "discover failed") == ["OSError: bus error"]
        await eventually(lambda: node.published() == ["a", "b"])


async def test_invalid_inventory_keeps_the_last_valid_one(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    provider = Yielding(devices("a"), devices("b", "b"), None, devices("c"))
    async with node.running(driver(provider=provider)):
        await eventually(lambda: messages(caplog, "discover failed"))
        await eventually(lambda: node.published() == ["a"])
        provider.go_on()
        await eventually(lambda: node.published() == ["c"])


def spoilt(**changes: Any) -> dra.Device:
    """A device that got past its constructor."""
    return dra.Device(name="bad").model_copy(update=changes)


SPOILT = {
    "name": (spoilt(name="Pizza 0"), "Device 'Pizza 0': name: Invalid value: \"Pizza 0\""),
    "attributes": (spoilt(attributes={"a b": 1}), "Device 'bad': attributes"),
    "type": (spoilt(taints=[7]), "Device 'bad': taints.0: Input should be"),
    "no fields": (dra.Device.model_construct(), "Device None: AttributeError: "),
    "scope": (
        dra.Device(name="bad", all_nodes=True),
        "Device 'bad': all_nodes: the node role publishes what belongs to its own node only; leave it out",
    ),
    "conditions": (
        dra.Device(name="bad", binding_conditions=["dra.pizza/hot"], binding_failure_conditions=["dra.pizza/cold"]),
        "Device 'bad': binding_conditions: no controller sets these conditions, and the scheduler would wait; ",
    ),
    "no device": ("bad", "'bad' is not a dra_kit.Device"),
    "duplicate": (dra.Device(name="a"), "Device 'a': name: Duplicate value: \"a\": devices must be unique in a pool"),
}


@pytest.mark.parametrize("where", ["list", "pool"])
@pytest.mark.parametrize("name", SPOILT)
async def test_invalid_devices_can_be_dropped(
    node: Node, caplog: pytest.LogCaptureFixture, name: str, where: str
) -> None:
    bad, expected = SPOILT[name]
    found: Any = [*devices("a"), bad, *devices("b")]
    if where == "pool":
        found = Inventory.model_construct(pools=[Pool.model_construct(devices=found)])
    provider = Yielding(found, None, [*devices("a", "b", "c"), bad])
    async with node.running(driver(provider=provider, invalid_devices="drop")):
        await eventually(lambda: node.published() == ["a", "b"])
        provider.go_on()
        await eventually(lambda: node.published() == ["a", "b", "c"])
    [text] = messages(caplog, "device dropped")
    assert text.startswith(expected)


@pytest.mark.parametrize("name", sorted(SPOILT.keys() - {"duplicate"}))
async def test_invalid_device_rejects_the_inventory_by_default(
    node: Node, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    bad, expected = SPOILT[name]
    async with node.running(driver(provider=Yielding(devices("a"), [*devices("b"), bad]))):
        await eventually(lambda: messages(caplog, "discover failed"))
        assert messages(caplog, "discover failed")[0].startswith(expected)
        await eventually(lambda: node.published() == ["a"])


async def test_failing_discover_is_logged_with_source_line_and_code(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    line = Inventing.discover.__code__.co_firstlineno + 1
    async with node.running(driver(provider=Inventing())):
        await eventually(lambda: messages(caplog, "discover failed"))
    logged = next(item for item in caplog.records if item.getMessage() == "discover failed")
    assert (getattr(logged, "code", ""), getattr(logged, "at", "")) == ("invalid-device", f"{__file__}:{line}")


async def test_repeated_error_is_logged_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    class Missing(dra.DeviceProvider):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield devices(Path("/no/such/bus").read_text())

    caplog.set_level(logging.INFO)
    async with node.running(driver(provider=Missing(), rescan_every=0.01)):
        await eventually(lambda: [item for item in caplog.records if item.getMessage() == "discover failed again"])
    [logged] = [item for item in caplog.records if item.getMessage() == "discover failed"]
    again = next(item for item in caplog.records if item.getMessage() == "discover failed again")
    assert logged.exc_info is not None
    assert traceback.extract_tb(logged.exc_info[2])[0].name == "discover"
    assert vars(logged)["at"] == f"{__file__}:{Missing.discover.__code__.co_firstlineno + 1}"
    assert (again.levelno, again.exc_info, hasattr(again, "error")) == (logging.INFO, None, False)


async def test_blocking_discover_delays_nothing(node: Node) -> None:
    lunch = node.claim(devices=["a"])
    provider = Yielding(devices("a"), None)
    async with node.running(driver(provider=provider)):
        await eventually(node.slices)
        await node.prepare(lunch)
        await node.unprepare(lunch)
    provider.go_on()


async def test_pools_may_have_their_own_names(node: Node) -> None:
    inventory: Inventory[dra.Device] = Inventory(
        pools=[Pool(devices=devices("a")), Pool(name="b", devices=devices("b"))]
    )
    lunch = node.claim(devices=[{"pool": "b", "device": "b"}])
    async with node.running(driver(provider=Yielding(inventory))):
        await eventually(lambda: len(node.slices()) == 2)
        assert {spec["pool"]["name"]: spec["devices"][0]["name"] for spec in node.slices()} == {"node-1": "a", "b": "b"}
        await node.prepare(lunch)


@pytest.mark.parametrize("field", ["node_selector", "all_nodes", "per_device_node_selection"])
async def test_pool_of_other_nodes_rejects_the_inventory(
    node: Node, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    here = dra.NodeSelectorRequirement(key="metadata.name", operator="In", values=["node-1"])
    selector = dra.NodeSelector(node_selector_terms=[dra.NodeSelectorTerm(match_fields=[here])])
    scopes: dict[str, Any] = {
        "node_selector": ({"node_selector": selector}, {}),
        "all_nodes": ({"all_nodes": True}, {}),
        "per_device_node_selection": ({"per_device_node_selection": True}, {"node_name": NODE}),
    }
    of_pool, of_device = scopes[field]
    fabric = Pool(name="fabric", devices=[dra.Device(name="b", **of_device)], **of_pool)
    inventory: Inventory[dra.Device] = Inventory(pools=[Pool(devices=devices("c")), fabric])
    async with node.running(driver(provider=Yielding(devices("a"), inventory, None), invalid_devices="drop")):
        await eventually(lambda: messages(caplog, "discover failed"))
        assert messages(caplog, "discover failed")[0] == (
            f"Pool 'fabric': {field}: the node role publishes what belongs to its own node only; leave it out, or "
            'yield the pool from a provider with scope="cluster" (Driver(cluster_provider=…))'
        )
        await eventually(lambda: node.published() == ["a"])


async def test_edited_slice_is_restored(node: Node) -> None:
    async with node.running(driver(provider=Oven("a"))):
        await eventually(node.slices)
        await eventually(lambda: node.api.asked("WATCH", SLICES))
        node.forge_slice()
        await eventually(lambda: node.published() == ["a"])


async def test_deleted_slice_is_published_again(node: Node) -> None:
    async with node.running(driver(provider=Oven("a"))):
        await eventually(node.slices)
        await eventually(lambda: node.api.asked("WATCH", SLICES))
        node.delete_slices()
        await eventually(lambda: node.published() == ["a"])


async def test_slice_deleted_before_the_watch_is_published_again(node: Node) -> None:
    async with node.running(driver(provider=Oven("a"))):
        with node.api.failing(503, below=SLICES, agent="kopf"):
            await eventually(node.slices)
            await eventually(lambda: node.api.asked("GET", SLICES, "kopf"))
            node.delete_slices()
        await eventually(lambda: node.published() == ["a"])


def replace_node(node: Node, labels: dict[str, str]) -> str:
    """The Node is deleted and created again; its new UID."""
    node.api.delete("nodes", NODE)
    uid: str = node.api.put("nodes", {"metadata": {"name": NODE, "labels": labels}})["metadata"]["uid"]
    return uid


async def test_recreated_node_owns_the_slices(node: Node) -> None:
    oven = Oven("a")
    async with node.running(driver(provider=oven)):
        await eventually(node.slices)
        await eventually(lambda: node.api.asked("WATCH", SLICES))
        posts = node.api.asked("POST", SLICES)
        uid = replace_node(node, {"oven": "cold"})
        await eventually(node.slices)
        [item] = node.api.objects("resourceslices")
        assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [uid]
        assert node.api.asked("POST", SLICES) == posts + 1
        assert oven.context.node.labels == {"oven": "cold"}


async def test_node_recreated_before_the_first_publication_owns_the_slices(node: Node) -> None:
    provider = Yielding(None, devices("a"))
    async with node.running(driver(provider=provider)):
        await eventually(lambda: node.api.asked("GET", f"/api/v1/nodes/{NODE}"))
        uid = replace_node(node, {})
        provider.go_on()
        # a slice that belongs to the former Node goes as soon as it is there
        await eventually(lambda: owners(node) == [uid])


def owners(node: Node) -> list[str]:
    slices = node.api.objects("resourceslices")
    return [owner["uid"] for item in slices for owner in item["metadata"]["ownerReferences"]]


async def test_repeated_deletions_are_repaired_with_back_off(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    async with node.running(driver(provider=Oven("a"))):
        await eventually(node.slices)
        await eventually(lambda: node.api.asked("WATCH", SLICES))
        for _ in range(4):
            node.delete_slices()
            await eventually(node.slices)
    posts = [request.at for request in node.api.requests if str(request) == f"POST {SLICES}"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(posts)]
    assert len(pauses) == 4
    assert pauses[2] >= 0.2
    assert pauses[3] >= 1.0
    logged = [item for item in caplog.records if "deleted by another client" in item.getMessage()]
    assert [getattr(item, "in_a_row", 0) for item in logged if item.levelno == logging.WARNING] == [2, 3, 4]


async def test_slices_of_others_are_not_changed(node: Node) -> None:
    for name, spec in {
        "other-node": {"driver": "dra.pizza", "nodeName": "node-2", "pool": {"name": "node-2", "generation": 1}},
        "other-driver": {"driver": "gpu.example", "nodeName": NODE, "pool": {"name": NODE, "generation": 1}},
    }.items():
        node.api.put("resourceslices", {"metadata": {"name": name}, "spec": spec})
    async with node.running(driver()):
        await eventually(lambda: len(node.slices()) == 3)
    assert {item["metadata"]["name"] for item in node.api.objects("resourceslices")} > {"other-node", "other-driver"}


async def test_slices_survive_a_restart_without_a_write(node: Node) -> None:
    async with node.running(driver()):
        await eventually(node.slices)
    before = node.api.objects("resourceslices")
    wrote = node.slice_writes()
    async with node.running(driver()):
        listed = node.api.asked("GET", SLICES, AGENT)
        await eventually(lambda: node.api.asked("WATCH", SLICES) and listed)
    assert node.api.objects("resourceslices") == before
    assert node.slice_writes() == wrote


async def test_start_costs_few_requests_and_idling_none(node: Node) -> None:
    async with node.running(driver()):
        await eventually(node.slices)
        await eventually(lambda: node.api.asked("WATCH", SLICES) and node.api.asked("GET", SLICES, AGENT) >= 2)
        before = 0
        async with asyncio.timeout(60):
            while before < len(node.api.requests):  # on a busy machine it takes longer until the start is over
                before = len(node.api.requests)
                await asyncio.sleep(1)  # nothing is to happen, so there is nothing to wait for
        ours = [request for request in node.api.requests if AGENT in request.agent]
        assert len(ours) <= 6, [str(request) for request in ours]
        kopfs = len(node.api.requests) - len(ours)
        assert kopfs <= 10, [str(request) for request in node.api.requests if request not in ours]
    [watch] = [request for request in node.api.requests if "watch" in request.query]
    assert watch.query["fieldSelector"] == "spec.driver=dra.pizza,spec.nodeName=node-1"


async def test_rejected_publication_is_logged_once_and_retried(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with node.api.failing(503, "POST", below=SLICES):
        async with node.running(driver()):
            await eventually(lambda: node.api.asked("POST", SLICES) >= 2)
    logged = [item for item in caplog.records if item.getMessage() == "slices not published"]
    assert [item.levelno for item in logged] == [logging.ERROR]
    async with node.running(driver()):
        await eventually(node.slices)


async def test_rejected_content_is_not_retried_until_it_changes(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    oven = Oven("a")
    with ExitStack() as refused:
        refused.enter_context(node.api.failing(422, "POST", below=SLICES))
        async with node.running(driver(provider=oven)):
            await eventually(lambda: messages(caplog, "slices not published"))
            refused.close()
            [logged] = [item for item in caplog.records if item.getMessage() == "slices not published"]
            assert getattr(logged, "again_in", 0) >= 600
            oven.devices = ("b",)
            oven.context.rescan()
            await eventually(lambda: node.published() == ["b"])


async def test_conflict_is_planned_again(node: Node) -> None:
    oven = Oven("a")
    async with node.running(driver(provider=oven)):
        await eventually(node.slices)
        with node.api.failing(409, "PUT", below=SLICES):
            oven.devices = ("b",)
            oven.context.rescan()
            await eventually(lambda: any(request.method == "PUT" for request in node.api.requests))
        await eventually(lambda: node.published() == ["b"])


async def test_unknown_node_is_reported_and_read_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    [known] = node.api.objects("nodes")
    node.api.delete("nodes", NODE)
    async with node.running(driver()):
        await eventually(lambda: messages(caplog, "slices not published"))
        assert messages(caplog, "slices not published")[0] == (
            "node node-1 does not exist in this cluster; correct --node-name (DRA_NODE_NAME)"
        )
        codes = {
            item.getMessage(): getattr(item, "code", "") for item in caplog.records if item.levelno >= logging.WARNING
        }
        assert codes == {"slices not published": "unknown-node", "Node cannot be read yet": "unknown-node"}
        node.api.put("nodes", known)
        await eventually(node.slices)


async def test_unknown_node_is_reported_again_after_a_minute(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("dra_kit.slices.publisher.time", SimpleNamespace(monotonic=lambda: now))
    caplog.set_level(logging.DEBUG)
    node.api.delete("nodes", NODE)

    def levels() -> list[int]:
        return [item.levelno for item in caplog.records if item.getMessage() == "slices not published"]

    async with node.running(driver()):
        await eventually(lambda: levels() == [logging.ERROR, logging.DEBUG])
        now += REPORT_AGAIN
        await eventually(lambda: levels().count(logging.ERROR) == 2)


async def test_slices_are_checked_again_after_a_write(node: Node) -> None:
    made = driver(provider=Oven("a"))
    async with Client(await load_credentials(node.kubeconfig), user_agent="dra-kit") as client:
        scope = NodeScope(made.name, NODE, ClusterFacts(client, NODE, lambda known: None))
        publisher = Publisher(scope, client, check_after_write=0.3)
        running = asyncio.create_task(publisher.run(asyncio.Event()))
        publisher.publish(validate_inventory(node_source(made, NODE), devices("a"), lambda name, rule: None))
        await eventually(node.slices)
        node.delete_slices()  # the slices are not watched here
        await eventually(lambda: node.published() == ["a"])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_devices_that_another_controller_binds_are_published_with_their_conditions(node: Node) -> None:
    attached, failed = ["fabric.example/attached"], ["fabric.example/failed"]
    oven = Oven(dra.Device(name="pizza-0", binding_conditions=attached, binding_failure_conditions=failed))
    async with node.running(dra.Driver(DRIVER, provider=oven, preparer=Waiter(), binder=dra.BoundElsewhere())):
        await eventually(node.slices)
        [device] = node.slices()[0]["devices"]
        assert (device["bindingConditions"], device["bindingFailureConditions"]) == (attached, failed)
