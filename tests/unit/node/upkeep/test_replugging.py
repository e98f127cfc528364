"""Devices that change while claims use them, and failing prepares after that."""

from __future__ import annotations

import pytest

import dra_kit as dra
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, Oven, dough_of, driver, pizza, replug
from tests.unit.node.hardware import Heat, kitchen
from tests.unit.node.role import DRIVER, Node


class Heated:
    """A pan needs another temperature, and is not served in the end; every dough needs the oven.

    Attributes:
        asked: the doughs, in the order in which they were asked for.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        kitchen()

    async def prepare(self, _: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        dough = dough_of(device)
        self.asked.append(dough)
        await device.ensure(Heat(oven="oven", temperature=200 if dough == "thin" else 300))
        if dough == "pan":
            raise dra.TransientError("no pan")
        return dra.Prepared(env={"DOUGH": dough})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kit.node.claims.updates.RETRY", (0.02,))


async def test_a_device_that_changes_back_gets_its_effects_again(node: Node) -> None:
    heated, oven, lunch = Heated(), Oven(pizza("thin")), node.claim()
    async with node.running(driver(Doing(heated.prepare), oven, effects=[Heat])):
        await node.prepare(lunch)
        replug(oven, "pan")
        await eventually(lambda: Heat.hardware.on == {"oven": 300})
        replug(oven, "thin")
        await eventually(lambda: Heat.hardware.on == {"oven": 200})
        await node.prepare(lunch)
        assert node.effects() == [("heat", "applied", ["lunch"])]


async def test_an_outdated_record_is_not_answered_by_another_process(node: Node) -> None:
    heated, lunch = Heated(), node.claim()
    cook = Doing(heated.prepare)
    async with node.running(driver(cook, Oven(pizza("thin")), effects=[Heat]), pod_uid="old") as old:
        await node.prepare(lunch)
        [former] = node.kubelet.plugins(DRIVER)
        async with node.running(driver(cook, Oven(pizza("pan")), effects=[Heat]), pod_uid="new"):
            await eventually(lambda: "pan" in heated.asked and Heat.hardware.on == {"oven": 300})
            before = heated.asked.count("thin")
            answer = (await former.prepare([lunch]))[lunch.uid]
            assert answer.error or heated.asked.count("thin") > before, "not without the author"
            old.stop()
