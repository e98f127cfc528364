"""How often slices are written when the API server rejects them or another client changes them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.author.context import NodeInfo
from dra_kit.author.inventory import Inventory, Pool
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.informer import RETRY
from dra_kit.errors import ConfigurationError, Conflict, KubeError
from dra_kit.kubernetes import release
from dra_kit.kubernetes.release import NEWEST, Change
from dra_kit.node.context import ClusterFacts, HardwareHandle
from dra_kit.node.kubelet_connection import NodeStartup
from dra_kit.node.slices import NodeScope
from dra_kit.slices.inventory import node_source, validate_inventory
from dra_kit.slices.publisher import LOSSES_FORGOTTEN, OverwriteBackoff, Publisher
from tests.support.api import eventually
from tests.unit.node.drivers import Oven, driver
from tests.unit.node.role import NODE, SLICES, Node

FULL = [f"pizza-{number:03}" for number in range(100)]
TOO_FULL = [f"pizza-{number:03}" for number in range(129)]  # for one slice


def publish(publisher: Publisher, *devices: str | dra.Device) -> None:
    found = [dra.Device(name=item) if isinstance(item, str) else item for item in devices]
    publish_pool(publisher, Pool(devices=found))


def publish_pool(publisher: Publisher, pool: Pool[dra.Device]) -> None:
    made: Inventory[dra.Device] = Inventory(pools=[pool])
    publisher.publish(validate_inventory(node_source(driver(), NODE), made, lambda name, rule: None))


@asynccontextmanager
async def publishing(node: Node, agent: str = "dra-kit") -> AsyncIterator[Publisher]:
    """Create a publisher that checks slices only when the test calls it."""
    async with Client(await load_credentials(node.kubeconfig), user_agent=agent) as client:
        yield Publisher(NodeScope(driver().name, NODE, ClusterFacts(client, NODE, lambda known: None)), client)


@asynccontextmanager
async def running(publisher: Publisher) -> AsyncIterator[asyncio.Task[None]]:
    """Run the publisher, which is notified of changes all the time."""

    async def wake() -> None:
        while True:
            publisher.look_again()
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(publisher.run(asyncio.Event())), asyncio.create_task(wake())]
    try:
        yield tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def edited(node: Node) -> Iterator[list[dict[str, Any]]]:
    """Edit the devices of the only slice as another client."""
    [item] = node.api.objects("resourceslices")
    yield item["spec"]["devices"]
    node.api.put("resourceslices", item)


def pauses(node: Node, method: str) -> list[float]:
    """Seconds between requests that write slices."""
    times = [item.at for item in node.api.requests if item.method == method and item.path.startswith(SLICES)]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def logged(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [item for item in caplog.records if text in item.getMessage()]


@pytest.mark.parametrize("rounds", range(5))
async def test_publisher_stops_when_cancelled_during_a_wake_up(node: Node, rounds: int) -> None:
    async with publishing(node) as publisher:
        publish(publisher, "a")
        ready = asyncio.Event()
        task = asyncio.create_task(publisher.run(ready))
        await ready.wait()
        publisher.look_again()
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=60)
        ended = task.cancelled()
        task.cancel()
        assert ended


async def test_startup_stops_when_cancelled_as_the_node_is_read(node: Node) -> None:
    tasks: list[asyncio.Task[None]] = []
    unused: Any = None

    def known(of: NodeInfo) -> None:
        tasks[0].cancel()

    async with Client(await load_credentials(node.kubeconfig), user_agent="dra-kit") as client:
        facts = ClusterFacts(client, NODE, known)
        made, started = driver(provider=Oven()), asyncio.Event()
        startup = NodeStartup(
            made, unused, unused, facts, started=started, hardware=HardwareHandle(made), takeover=unused
        )  # fmt: skip
        tasks.append(asyncio.create_task(startup.run(asyncio.Event())))
        await asyncio.wait(tasks, timeout=60)
        assert tasks[0].cancelled()
        assert not started.is_set()


@pytest.mark.processes
@pytest.mark.parametrize("status", [422, 403, 503])
async def test_partial_writes_of_a_rejected_publication_do_not_shorten_the_back_off(node: Node, status: int) -> None:
    async with publishing(node) as publisher, running(publisher):
        publish(publisher, *FULL)
        await eventually(node.slices)
        with node.api.failing(status, "POST", below=SLICES):
            posts = node.api.asked("POST", SLICES)
            publish(publisher, *TOO_FULL)
            await eventually(lambda: node.api.asked("POST", SLICES) >= posts + 3)
        assert pauses(node, "POST")[posts] >= RETRY[0]
        assert pauses(node, "POST")[posts + 1] >= RETRY[1]
        # also what is hopeless is tried again before its 600 seconds are over, when the server has something to tell
        await eventually(lambda: node.published() == TOO_FULL)


async def test_new_inventory_is_published_without_waiting_after_an_error(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.client.informer.RETRY", (600.0,))
    async with publishing(node) as publisher, running(publisher):
        with node.api.failing(503, "POST", below=SLICES):
            publish(publisher, "a")
            await eventually(lambda: publisher.last_error)
        publish(publisher, "b")
        await eventually(lambda: node.published() == ["b"])


async def test_repeated_edits_are_reverted_with_back_off(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with publishing(node) as publisher, running(publisher):
        publish(publisher, "a")
        await eventually(lambda: node.published() == ["a"])
        for _ in range(4):
            with edited(node) as devices:
                devices[0]["name"] = "forged"
            await eventually(lambda: node.published() == ["a"])
    found = pauses(node, "PUT")
    assert len(found) == 3
    assert found[1] >= RETRY[0]
    assert found[2] >= RETRY[1]
    assert [(item.levelno, vars(item)["in_a_row"]) for item in logged(caplog, "edited by another client")] == [
        (logging.INFO, 1),
        (logging.WARNING, 2),
        (logging.WARNING, 3),
        (logging.WARNING, 4),
    ]
    assert not logged(caplog, "deleted by another client")


async def test_competing_publishers_back_off_and_the_last_one_wins(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def versions() -> list[str]:
        return [device["attributes"]["version"]["string"] for spec in node.slices() for device in spec["devices"]]

    async with publishing(node, "old") as old, publishing(node, "new") as new:
        publish(old, dra.Device(name="pizza-0", attributes={"version": "old"}))
        publish(new, dra.Device(name="pizza-0", attributes={"version": "new"}))
        async with running(old):
            await eventually(lambda: versions() == ["old"] and logged(caplog, "slices published"))
            caplog.clear()
            begin = time.time()
            async with running(new):
                await asyncio.sleep(2)
            written = [item for item in logged(caplog, "slices published") if item.created < begin + 2]
            # the new one's first; of each two at once, then one after 0.2 seconds and one after another second
            assert len(written) <= 1 + 2 * 4
        async with running(new):
            await eventually(lambda: versions() == ["new"])


async def test_edit_that_matches_the_desired_slice_is_not_counted(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with publishing(node) as publisher:
        publish(publisher, "a")
        assert await publisher.reconcile()
        with edited(node) as devices:
            devices.append({"name": "b"})
        publish(publisher, "a", "b")
        assert not await publisher.reconcile()
    assert not logged(caplog, "by another client")


async def test_write_without_response_is_not_counted_as_an_edit(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with publishing(node) as publisher:
        publish(publisher, "a")
        await publisher.reconcile()
        publish(publisher, "a", "b")
        with node.api.failing(503, "PUT", below=SLICES), pytest.raises(KubeError):
            await publisher.reconcile()
        with edited(node) as devices:  # it had been stored
            devices.append({"name": "b"})
        publish(publisher, "a", "b", "c")
        assert await publisher.reconcile()
    assert node.published() == ["a", "b", "c"]
    assert not logged(caplog, "by another client")


def test_back_off_is_reset_after_a_quiet_period(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("dra_kit.slices.publisher.time", SimpleNamespace(monotonic=lambda: now))
    backoff = OverwriteBackoff()
    found = []
    for _ in range(9):
        backoff.lost()
        found.append(backoff.seconds())
    assert found[0] == 0.0
    least = (*RETRY, RETRY[-1], RETRY[-1])
    assert all(low <= seconds <= 1.5 * low for low, seconds in zip(least, found[1:], strict=True))
    now += LOSSES_FORGOTTEN + 1
    assert backoff.seconds() == 0.0
    assert not backoff.lost()
    assert (backoff.in_a_row, backoff.seconds()) == (1, 0.0)


async def test_counters_are_published_after_the_api_server_was_upgraded(node: Node) -> None:
    node.api._documents["/version"] = {"major": "1", "minor": "34"}

    def pool(devices: int) -> Pool[dra.Device]:
        slot = dra.DeviceCounterConsumption(counter_set="oven", counters={"slots": "1"})
        return Pool(
            counter_sets=[dra.CounterSet(name="oven", counters={"slots": "8"})],
            devices=[dra.Device(name=f"pizza-{number}", consumes_counters=[slot]) for number in range(devices)],
        )

    async with publishing(node) as publisher:
        publish_pool(publisher, pool(1))
        await publisher.reconcile()
        assert len(node.slices()) == 1
        node.api._documents["/version"] = {"major": "1", "minor": "35"}
        publish_pool(publisher, pool(2))
        # Kubernetes 1.35 takes counter sets in slices of their own only
        with node.api.failing(422, "PUT", below=SLICES), pytest.raises(Conflict, match=r"planned for Kubernetes 1\.34"):
            await publisher.reconcile()
        await publisher.reconcile()
    assert node.published() == ["pizza-0", "pizza-1"]
    assert sorted("sharedCounters" in spec for spec in node.slices()) == [False, True]


async def test_taints_are_left_out_where_the_api_server_takes_four(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.api._documents["/version"] = {"major": "1", "minor": "34"}
    taints = [dra.DeviceTaint(key=f"example.com/{number}", effect="NoSchedule") for number in range(6)]
    message = "taints that this release of Kubernetes does not accept are not published"

    def published() -> list[str]:
        return [taint["key"] for spec in node.slices() for taint in spec["devices"][0]["taints"]]

    async with publishing(node) as publisher:
        for agent in ("old", "new"):
            publish(publisher, dra.Device(name="pizza-0", taints=taints, attributes={"agent": agent}))
            await publisher.reconcile()
        assert published() == [taint.key for taint in taints[:4]]
        assert [vars(item)["devices"] for item in caplog.records if item.getMessage() == message] == ["pizza-0"]
        node.api._documents["/version"] = {"major": "1", "minor": "35"}
        await publisher.reconcile()
    assert published() == [taint.key for taint in taints]


async def test_each_change_of_the_taints_that_are_left_out_is_logged_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.api._documents["/version"] = {"major": "1", "minor": "34"}
    own = [dra.DeviceTaint(key=f"example.com/{number}", effect="NoSchedule") for number in range(4)]
    informing = dra.DeviceTaint(key="example.com/informing", effect="None")
    broken = dra.DeviceTaint(key="example.com/broken", effect="NoExecute")

    async with publishing(node) as publisher:
        for taints in (own, [*own, broken]):
            publish(publisher, dra.Device(name="a", taints=[informing]), dra.Device(name="b", taints=taints))
            await publisher.reconcile()
            await publisher.reconcile()
    found = logged(caplog, "taints that this release of Kubernetes does not accept")
    assert [vars(item)["devices"] for item in found] == ["a", "b"]
    [spec] = node.slices()
    assert "example.com/broken" in [taint["key"] for taint in spec["devices"][1]["taints"]]


async def test_deleted_slices_are_not_cached(node: Node) -> None:
    async with publishing(node) as publisher:
        publish(publisher, "a")
        for _ in range(3):
            await publisher.reconcile()
            node.delete_slices()
        await publisher.reconcile()
        assert len(publisher._accepted) == 1


async def test_nothing_of_a_pool_is_written_that_a_newer_release_refuses(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = NEWEST.minor + 1
    monkeypatch.setitem(release._CHANGED, Change.VERSIONS_HAVE_18_DIGITS, newer)
    firmware = dra.Device(name="pizza-0", attributes={"firmware": dra.Version(f"1.0.{10**18}")})

    async with publishing(node) as publisher:
        publish(publisher, *TOO_FULL)
        await publisher.reconcile()
        node.api._documents["/version"] = {"major": "1", "minor": str(newer)}
        publisher._scope.invalidate()
        publish(publisher, firmware, *(f"calzone-{number:03}" for number in range(128)))
        with pytest.raises(ConfigurationError, match=r"devices\[pizza-0\].*not published, since Kubernetes") as refused:
            await publisher.reconcile()
        assert refused.value.code == "refused-by-release"
        assert node.published() == TOO_FULL
        node.api._documents["/version"] = {"major": "1", "minor": str(NEWEST.minor)}
        await publisher.reconcile()
    assert "pizza-0" in node.published()
