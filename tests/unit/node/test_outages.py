"""Outages of the API server and the kubelet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.client.operator import kopf_settings
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager
from tests.support.api import eventually
from tests.unit.node.drivers import Oven, Waiter, driver, pizza, replug
from tests.unit.node.role import NODE, SLICES, Node


@pytest.fixture
def mortal_kopf(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf gives up after a moment without the API server; in production after 54 seconds."""

    def hurried(*arguments: Any) -> Any:
        settings = kopf_settings(*arguments)
        settings.networking.error_backoffs = (0.01, 0.01)
        return settings

    monkeypatch.setattr("dra_kit.client.operator.kopf_settings", hurried)


def kopf_died(caplog: pytest.LogCaptureFixture) -> bool:
    return any(item.getMessage() == "kopf ended and is started again" for item in caplog.records)


def doughs(node: Node) -> list[str]:
    return [device["attributes"]["dough"]["string"] for spec in node.slices() for device in spec["devices"]]


@pytest.mark.usefixtures("mortal_kopf")
async def test_prepares_continue_while_kopf_is_rejected_and_recovers(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    with ExitStack() as refusing:
        refusing.enter_context(node.api.failing(403, agent="kopf"))
        async with node.running(driver()):
            await eventually(node.slices)
            await eventually(lambda: kopf_died(caplog))
            answer = await node.prepare(lunch)
            await node.prepare(dinner)
            await node.unprepare(dinner)
            refusing.close()
            assert await node.prepare(lunch) == answer
            await eventually(lambda: node.api.asked("WATCH", SLICES))
            node.forge_slice()
            await eventually(lambda: node.published() == ["pizza-0", "pizza-1", "pizza-2", "pizza-3"])


@contextmanager
def no_connection(node: Node) -> Iterator[None]:
    node.api.go_away()
    yield
    node.api.listen()


@contextmanager
def overloaded(node: Node) -> Iterator[None]:
    with node.api.failing(503):
        # close open watches, as a server does on shutdown
        node.api.go_away()
        node.api.listen()
        yield


@pytest.mark.processes
@pytest.mark.usefixtures("mortal_kopf")
@pytest.mark.parametrize("outage", [no_connection, overloaded])
async def test_outage_loses_nothing(
    node: Node, caplog: pytest.LogCaptureFixture, outage: Callable[[Node], AbstractContextManager[None]]
) -> None:
    oven, waiter = Oven(pizza("thin")), Waiter()
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(waiter, oven)):
        answer = await node.prepare(lunch)
        await eventually(lambda: node.api.asked("WATCH", SLICES))
        with outage(node):
            assert "cannot be read" in await node.error(dinner)
            if outage is overloaded:  # kopf survives rejected connections
                await eventually(lambda: kopf_died(caplog))
            replug(oven, "pan")
            await eventually(lambda: any("slices not published" in item.getMessage() for item in caplog.records))
            watches = node.api.asked("WATCH", SLICES)
        await eventually(lambda: doughs(node) == ["pan"])
        await eventually(lambda: waiter.calls == ["lunch pizza-0"] * 2)  # unasked, since its device has changed
        assert await node.prepare(lunch) == answer
        await eventually(lambda: {item["reason"] for item in node.events()} == {"FailedPrepareDevices"})
        await eventually(lambda: node.api.asked("WATCH", SLICES) > watches)
        node.forge_slice()
        await eventually(lambda: node.published() == ["pizza-0"])


async def test_deleted_slices_are_all_published_again(node: Node) -> None:
    names = [f"pizza-{number:03}" for number in range(129)]
    async with node.running(driver(provider=Oven(*names))):
        await eventually(lambda: node.published() == names)
        await eventually(lambda: node.api.asked("WATCH", SLICES))
        node.delete_slices()
        await eventually(lambda: node.published() == names)
        assert {spec["pool"]["resourceSliceCount"] for spec in node.slices()} == {2}


async def test_restarted_kubelet_finds_the_driver_and_gets_the_same_answers(node: Node) -> None:
    waiter = Waiter()
    lunch, dinner = node.claim("lunch", ["pizza-0"]), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(waiter)):
        answer = await node.prepare(lunch)
        await node.kubelet.__aexit__(None, None, None)
        async with PluginManager(node.root, get_info_timeout=60, call_timeout=60, release=UNMODIFIED) as restarted:
            node.kubelet = restarted
            await restarted.wait_for_plugin("dra.pizza")
            assert await node.prepare(lunch) == answer
            assert waiter.calls == ["lunch pizza-0"]
            await node.prepare(dinner)
            await node.unprepare(lunch, dinner)
            assert node.is_clean()


async def test_kubelet_restart_during_a_call(node: Node) -> None:
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Waiter):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            entered.set()
            await asyncio.to_thread(go_on.wait)
            return await super().prepare(claim, device)

    waiter, lunch = Slow(), node.claim()
    async with node.running(driver(waiter)):
        cut_off = asyncio.create_task(node.kubelet.plugin("dra.pizza").prepare([lunch]))
        await eventually(entered.is_set)
        cut_off.cancel()
        await node.kubelet.__aexit__(None, None, None)
        async with PluginManager(node.root, get_info_timeout=60, call_timeout=60, release=UNMODIFIED) as restarted:
            node.kubelet = restarted
            await restarted.wait_for_plugin("dra.pizza")
            asking = asyncio.create_task(node.prepare(lunch))
            go_on.set()
            await asking
            assert waiter.calls == ["lunch pizza-0"], "the kubelet gets the result of the running call"
            assert node.records() == ["lunch"]
            await eventually(node.slices)
    assert node.slices()[0]["nodeName"] == NODE
