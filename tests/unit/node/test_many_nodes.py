"""What a node costs the API server: with a thousand nodes, each request of one of them is a thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

import dra_kit as dra
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.informer import RETRY, retry_delay
from dra_kit.node.context import ClusterFacts
from dra_kit.node.slices import NodeScope
from dra_kit.slices.publisher import BURST, PACE, Publisher, WritePace
from tests.support.api import eventually
from tests.unit.node.drivers import driver
from tests.unit.node.role import AGENT, NODE, SLICES, Node
from tests.unit.node.slices.test_publication_pace import edited, publish, publishing

COLLECTIONS = ("/resourceslices", "/nodes", "/resourceclaims", "/pods")


class Labelled(dra.DeviceProvider):
    """Has a device on a node whose labels it follows."""

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="pizza-0", attributes={"oven": self.context.node.labels.get("oven", "")})]


class Looks(Publisher):
    """Counts what makes it look again."""

    looks = 0

    @override
    def look_again(self) -> None:
        self.looks += 1


async def test_a_node_lists_and_watches_only_what_is_its_own(node: Node) -> None:
    async with node.running(driver(provider=Labelled(), follow_node=True)):
        await eventually(node.slices)
        await eventually(lambda: node.api.asked("WATCH", SLICES) and node.api.asked("GET", SLICES, AGENT) >= 2)
        await node.prepare(node.claim("lunch", ["pizza-0"]))
        found = [item for item in node.api.requests if item.method == "GET" and item.path.endswith(COLLECTIONS)]
    selectors = {(item.path.rpartition("/")[2], item.query.get("fieldSelector", "")) for item in found}
    assert selectors == {
        ("resourceslices", f"spec.driver=dra.pizza,spec.nodeName={NODE}"),
        ("nodes", f"metadata.name={NODE}"),
    }


async def test_the_event_of_its_own_write_causes_no_request(node: Node) -> None:
    async with Client(await load_credentials(node.kubeconfig), user_agent="dra-kit") as client:
        publisher = Looks(NodeScope(driver().name, NODE, ClusterFacts(client, NODE, lambda known: None)), client)
        publish(publisher, "a")
        await publisher.reconcile()
        for devices in (["b"], ["b", "c"]):
            [item] = node.api.objects("resourceslices")
            publisher.changed(item)
            assert publisher.looks == 0
            publish(publisher, *devices)
            await publisher.reconcile()
        with edited(node) as found:
            found.pop()
        [item] = node.api.objects("resourceslices")
        publisher.changed(item)
        assert publisher.looks == 1
        publisher.changed({"metadata": {"name": "of-another-client", "resourceVersion": "1"}})
        assert publisher.looks == 2


async def test_a_device_that_comes_and_goes_is_written_at_a_bounded_pace(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.slices.publisher.BURST", 3)
    monkeypatch.setattr("dra_kit.slices.publisher.PACE", 3600.0)
    async with publishing(node) as publisher:
        task = asyncio.create_task(publisher.run(asyncio.Event()))
        for name in ("a", "b", "c"):
            publish(publisher, name)
            await eventually(lambda name=name: node.published() == [name])  # type: ignore[misc]
        publish(publisher, "d")
        await asyncio.sleep(0.5)  # nothing is to happen, so there is nothing to wait for
        assert node.published() == ["c"]
        assert node.slice_writes() == 3
        task.cancel()
        await asyncio.wait({task})


async def test_rejected_writes_have_a_bounded_pace_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kit.slices.publisher.BURST", 3)
    monkeypatch.setattr("dra_kit.slices.publisher.PACE", 3600.0)
    async with publishing(node) as publisher:
        with node.api.failing(422, "POST", below=SLICES):
            task = asyncio.create_task(publisher.run(asyncio.Event()))
            for number in range(3):
                publish(publisher, f"a-{number}")
                await eventually(lambda number=number: node.slice_writes() == number + 1)  # type: ignore[misc]
            publish(publisher, "d")
            await asyncio.sleep(0.5)  # nothing is to happen, so there is nothing to wait for
            assert node.slice_writes() == 3
            task.cancel()
            await asyncio.wait({task})


@given(st.lists(st.floats(0.0, 3 * PACE), min_size=1, max_size=200))
def test_writes_in_any_period_are_bounded(pauses: list[float]) -> None:
    clock = SimpleNamespace(now=1000.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dra_kit.slices.publisher.time", SimpleNamespace(monotonic=lambda: clock.now))
        pace = WritePace()
        written: list[float] = []
        for pause in pauses:
            clock.now += pause
            clock.now += pace.seconds()
            pace.wrote()
            written.append(clock.now)
    for first, begin in enumerate(written):
        for last, end in enumerate(written[first:], first):
            assert last - first + 1 <= BURST + (end - begin) / PACE + 1e-6


def test_a_change_now_and_then_is_never_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("dra_kit.slices.publisher.time", SimpleNamespace(monotonic=lambda: now))
    pace = WritePace()
    for _ in range(10 * BURST):
        assert pace.seconds() == 0.0
        pace.wrote()
        now += PACE


@pytest.mark.parametrize("attempt", range(8))
def test_nodes_that_fail_together_do_not_try_again_together(attempt: int) -> None:
    found: list[Any] = [retry_delay(attempt) for _ in range(50)]
    low = RETRY[min(attempt, len(RETRY) - 1)]
    assert low <= min(found) < max(found) <= 1.5 * low
    assert max(found) - min(found) > 0.1 * low  # fifty nodes within a tenth: less often than once in a trillion
