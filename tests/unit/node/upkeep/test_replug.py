"""A device that is replugged while its claim is being prepared, or released."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import dra_kit as dra
from dra_kit.node.locks import NamedLocks
from dra_kit.process.supervisor import PartState
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, Oven, dough_of, driver, pizza, replug
from tests.unit.node.hardware import Heat, kitchen
from tests.unit.node.role import DRIVER, PLENTY, Node


def doughs(node: Node) -> set[str]:
    """What is published of the pizzas; nothing before the first publication."""
    devices = [device for item in node.slices() for device in item["devices"]]
    return {device["attributes"]["dough"]["string"] for device in devices}


async def test_a_device_replugged_during_prepare_is_prepared_again(node: Node) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        entered.set()
        await go_on.wait()
        return dra.Prepared(env={"DOUGH": dough_of(device)})

    oven, lunch = Oven(pizza("thin")), node.claim()
    async with node.running(driver(Doing(slowly), oven)):
        preparing = asyncio.create_task(node.prepare(lunch))
        await entered.wait()
        replug(oven, "pan")
        await eventually(lambda: "pan" in doughs(node))
        go_on.set()
        await preparing
        await eventually(lambda: node.env(lunch) == ["DOUGH=pan"])


async def test_a_claim_prepared_by_an_exiting_process_from_an_older_inventory_is_prepared_again(node: Node) -> None:
    node.given["leftovers_interval"] = 0.05
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def prepare(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        if dough_of(device) == "thin":
            entered.set()
            await go_on.wait()
        return dra.Prepared(env={"DOUGH": dough_of(device)})

    lunch = node.claim()
    async with node.running(driver(Doing(prepare), Oven(pizza("thin"))), pod_uid="old", drain=PLENTY) as old:
        preparing = asyncio.create_task(node.kubelet.plugin(DRIVER).prepare([lunch]))
        await entered.wait()
        async with node.running(driver(Doing(prepare), Oven(pizza("pan"))), pod_uid="new") as new:
            await eventually(lambda: new.supervisor.status()["replugging"].state is PartState.READY)
            go_on.set()
            old.stop()
            await asyncio.wait([preparing])
            await eventually(lambda: node.contents() and node.env(lunch) == ["DOUGH=pan"])


async def test_a_device_replugged_during_release_is_released(node: Node) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Doing):
        async def unprepare(self, claim: dra.ClaimReference, devices: Sequence[dra.PreparedDevice]) -> None:
            """Waits for the preparing of dinner: one call at a time in the whole driver."""

    async def slowly(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        if claim.name == "dinner":
            entered.set()
            await go_on.wait()
        return dra.Prepared(env={"DOUGH": dough_of(device)})

    oven = Oven(pizza("thin"), dra.Device(name="pizza-1", attributes={"dough": "thin"}))
    lunch, dinner = node.claim(), node.claim("dinner", ["pizza-1"])
    async with node.running(driver(Slow(slowly), oven, concurrency="driver")):
        await node.prepare(lunch)
        asked = node.gets(lunch)
        preparing = asyncio.create_task(node.prepare(dinner))
        await entered.wait()
        releasing = asyncio.create_task(node.unprepare(lunch))
        others = NamedLocks(node.root / "state" / "locks" / "claims.lock")
        await eventually(lambda: others.held_elsewhere(lunch.uid))
        replug(oven, "pan")  # while its record is still there
        await eventually(lambda: "pan" in doughs(node))
        go_on.set()
        await asyncio.gather(preparing, releasing)
    assert node.records() == ["dinner"]
    assert node.gets(lunch) == asked, "it was not prepared again"


async def test_the_effect_of_the_former_device_is_reverted(node: Node) -> None:
    async def heated(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        await device.ensure(Heat(oven="oven", temperature=200 if dough_of(device) == "thin" else 300))
        return dra.Prepared(env={"DOUGH": dough_of(device)})

    kitchen()
    oven, lunch = Oven(pizza("thin")), node.claim()
    async with node.running(driver(Doing(heated), oven, effects=[Heat])):
        await node.prepare(lunch)
        replug(oven, "pan")
        await eventually(lambda: node.env(lunch) == ["DOUGH=pan"])
        assert Heat.hardware.on == {"oven": 300}
        assert node.effects() == [("heat", "applied", ["lunch"])]
        await node.unprepare(lunch)
        assert node.is_clean()
    assert Heat.hardware.on == {}


class Picky(dra.Preparer):
    """Fails with what a test says as long as it says so; remembers the dough of each call."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.calls: list[str] = []

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        self.calls.append(dough_of(device))
        if self.error is not None:
            raise self.error
        return dra.Prepared(env={"DOUGH": dough_of(device)})


async def test_a_transient_failure_is_retried_without_a_kubelet_call(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.node.claims.updates.RETRY", (0.02,))
    oven, picky, lunch = Oven(pizza("thin")), Picky(), node.claim()
    async with node.running(driver(picky, oven)):
        await node.prepare(lunch)
        picky.error = dra.TransientError("the oven is cold")
        replug(oven, "pan")
        await eventually(lambda: len(picky.calls) > 3)
        assert node.env(lunch) == ["DOUGH=thin"], "what was prepared before stays until then"
        picky.error = None
        await eventually(lambda: node.env(lunch) == ["DOUGH=pan"])


async def test_a_permanent_failure_is_retried_after_the_next_change(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.node.claims.updates.RETRY", (0.02,))
    oven, picky, lunch = Oven(pizza("thin")), Picky(), node.claim()
    async with node.running(driver(picky, oven)):
        await node.prepare(lunch)
        picky.error = dra.PermanentError("no pans here")
        replug(oven, "pan")
        await eventually(lambda: picky.calls == ["thin", "pan"])
        await eventually(node.events)
        await asyncio.sleep(0.2)  # ten times as long as until another try
        assert picky.calls == ["thin", "pan"]
        picky.error = None
        replug(oven, "thick")
        await eventually(lambda: node.env(lunch) == ["DOUGH=thick"])
