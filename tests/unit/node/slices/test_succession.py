"""Two processes of an update, or of a rollback, that find different devices: the one that began later publishes."""

from __future__ import annotations

import asyncio
import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import dra_kit as dra
from dra_kit.author.inventory import Inventory
from dra_kit.errors import Forbidden, Invalid, Unavailable
from dra_kit.process.supervisor import PartState
from tests.support.api import eventually
from tests.unit.node.drivers import Oven, driver
from tests.unit.node.role import SLICES, Node
from tests.unit.node.slices.test_publication_pace import publish, publishing

LEFT = "a younger process publishes the slices"


def change(oven: Oven, *devices: dra.Device | str) -> None:
    oven.devices = devices
    oven.context.rescan()


def logged(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in item.getMessage() for item in caplog.records)


@pytest.fixture(autouse=True)
def _quick(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.given["leftovers_interval"] = 0.05
    caplog.set_level(logging.INFO)


@contextmanager
def process_of_another_release(node: Node, content: bytes = b"") -> Iterator[None]:
    """A younger process of an old release, which only locks its file."""
    path = node.root / "state" / "locks" / "processes" / "other.lock"
    with path.open("xb", buffering=0) as file:
        file.write(content)
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        path.unlink()


async def test_each_change_is_one_write_while_two_processes_find_different_devices(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = Oven("old"), Oven("new")
    async with node.running(driver(provider=older), pod_uid="old") as old:
        await eventually(lambda: node.published() == ["old"])
        async with node.running(driver(provider=newer), pod_uid="new"):
            await eventually(lambda: node.published() == ["new"])
            before = node.slice_writes()
            for number in range(3):
                change(older, f"old-{number}")
                change(newer, f"new-{number}")
                await eventually(lambda number=number: node.published() == [f"new-{number}"])  # type: ignore[misc]
            assert node.slice_writes() == before + 3
            old.stop()
            # one that has not ended yet publishes again when the newer one ends
            await eventually(lambda: old.supervisor.status()["publisher"].state is PartState.STOPPED)
    assert logged(caplog, LEFT) == 1
    assert not logged(caplog, "by another client")


async def test_older_process_publishes_again_when_the_younger_one_exits(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    older = Oven("old")
    async with node.running(driver(provider=older), pod_uid="old"):
        await eventually(lambda: node.published() == ["old"])
        agent = await node.agent(driver(provider=Oven("new")), pod_uid="new")
        running = asyncio.create_task(agent.run())
        await eventually(lambda: node.published() == ["new"])
        change(older, "old", "hot-plugged")
        await eventually(lambda: logged(caplog, LEFT))
        before = node.slice_writes()
        agent.stop()
        await running
        await eventually(lambda: node.published() == ["old", "hot-plugged"])
        assert node.slice_writes() == before + 1
    assert not logged(caplog, "by another client")


async def test_younger_process_of_an_older_release_publishes_in_a_rollback(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    oven = Oven("a")
    async with node.running(driver(provider=oven)):
        await eventually(lambda: node.published() == ["a"])
        before = node.slice_writes()
        with process_of_another_release(node):
            change(oven, "b")
            await eventually(lambda: logged(caplog, LEFT))
            assert node.slice_writes() == before
        await eventually(lambda: node.published() == ["b"])


async def test_younger_process_without_inventory_changes_nothing(node: Node) -> None:
    oven = Oven("a")
    async with node.running(driver(provider=oven)):
        await eventually(lambda: node.published() == ["a"])
        with process_of_another_release(node, b"starting"):
            change(oven, "b")
            await eventually(lambda: node.published() == ["b"])


# -- a publication is tried out before it is made


@pytest.mark.parametrize("change", ["create", "update", "delete"])
async def test_try_out_validates_on_the_server_and_stores_nothing(node: Node, change: str) -> None:
    async with publishing(node) as publisher:
        if change != "create":
            publish(publisher, "before")
            await publisher.reconcile()
        stored = node.api.objects("resourceslices")
        if change == "delete":
            publisher.publish(Inventory(pools=[]))
        else:
            publish(publisher, "after")
        before = node.slice_writes()
        await publisher.try_out()
        assert node.slice_writes() == before + 1
        assert node.api.objects("resourceslices") == stored
        with node.api.failing(403, "POST", "PUT", "DELETE", below=SLICES), pytest.raises(Forbidden):
            await publisher.try_out()
        await publisher.reconcile()
        assert node.api.objects("resourceslices") != stored


async def test_try_out_of_published_slices_still_reads_them(node: Node) -> None:
    async with publishing(node) as publisher:
        publish(publisher, "same")
        await publisher.reconcile()
        before = node.slice_writes()
        await publisher.try_out()
        assert node.slice_writes() == before
        node.api.go_away()
        with pytest.raises(Unavailable):
            await publisher.try_out()


async def test_webhook_without_dry_run_support_does_not_block_an_update(node: Node) -> None:
    async with publishing(node) as publisher:
        publish(publisher, "pizza")
        with node.api.failing(400, "POST", below=SLICES):
            await publisher.try_out()
        with node.api.failing(422, "POST", below=SLICES), pytest.raises(Invalid):
            await publisher.try_out()
