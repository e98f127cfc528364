"""A claim in use is prepared again after a change of its device: what stays unchanged."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import dra_kit as dra
from tests.support.api import eventually
from tests.unit.node.claims.test_status import metadata, ready, statuses
from tests.unit.node.drivers import Doing, Oven, dough_of, driver, pizza, replug
from tests.unit.node.hardware import Baker, Heat, kitchen
from tests.unit.node.role import Node


@pytest.fixture(autouse=True)
def _asked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is not tried again by itself."""
    monkeypatch.setattr("dra_kit.node.claims.updates.RETRY", (3600.0,))


async def test_preparing_again_keeps_later_device_updates(node: Node) -> None:
    oven, lunch = Oven(pizza("thin")), node.claim()

    def serve(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        told = dra.DeviceMetadata(attributes={"dough": dough_of(device)})
        return dra.Prepared(env={"DOUGH": dough_of(device)}, status=ready("False"), metadata=told)

    async with node.running(driver(Doing(serve), oven)):
        await node.prepare(lunch)
        oven.context.update("pizza-0", status=ready("True"))
        await eventually(lambda: statuses(node) and statuses(node)[0]["conditions"][0]["status"] == "True")
        [before] = statuses(node)
        replug(oven, "pan")
        await eventually(lambda: node.env(lunch) == ["DOUGH=pan"])
        replug(oven, "thick")  # the second time, too
        await eventually(lambda: node.env(lunch) == ["DOUGH=thick"])
        assert node.state()["claims"][0]["devices"][0]["status"] == {
            name: value for name, value in before.items() if name not in {"driver", "pool", "device"}
        }
        attributes = metadata(node, lunch)["requests"][0]["devices"][0]["attributes"]
        assert attributes == {"dough": {"string": "thick"}}, "no update has changed it"


async def test_a_reboot_discards_later_device_updates(node: Node) -> None:
    """An address, for example, that the device had before it."""
    oven, lunch = Oven(pizza("thin")), node.claim()
    made = driver(Doing(lambda claim, device: dra.Prepared(status=ready("False"))), oven)
    async with node.running(made):
        await node.prepare(lunch)
        oven.context.update("pizza-0", status=ready("True"))
        await eventually(lambda: statuses(node) and statuses(node)[0]["conditions"][0]["status"] == "True")
    node.boot_id.write_text("boot-2")
    async with node.running(made):
        await node.prepare(lunch)
        await eventually(lambda: statuses(node)[0]["conditions"][0]["status"] == "False")


@pytest.mark.parametrize("rebooted", [False, True])
async def test_an_unchanged_condition_keeps_its_transition_time(node: Node, rebooted: bool) -> None:
    oven, lunch = Oven(pizza("thin")), node.claim()
    since: list[datetime | None] = [datetime(2025, 1, 2, tzinfo=UTC)]

    def serve(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        condition = dra.Condition(
            type="Ready", status="True", reason=dough_of(device).title(), last_transition_time=since[0]
        )
        return dra.Prepared(env={"DOUGH": dough_of(device)}, status=dra.DeviceStatus(conditions=[condition]))

    def told() -> list[tuple[Any, Any]]:
        return [(item["reason"], item["lastTransitionTime"]) for item in statuses(node)[0]["conditions"]]

    made = driver(Doing(serve), oven)
    async with node.running(made):
        await node.prepare(lunch)
        await eventually(lambda: statuses(node) and told() == [("Thin", "2025-01-02T00:00:00Z")])
        since[0] = None
        if not rebooted:
            replug(oven, "pan")
            await eventually(lambda: told() == [("Pan", "2025-01-02T00:00:00Z")])
    if rebooted:
        oven.devices = (pizza("pan"),)
        node.boot_id.write_text("boot-2")
        async with node.running(made):
            await node.prepare(lunch)
            await eventually(lambda: told() == [("Pan", "2025-01-02T00:00:00Z")])


class Picky(dra.Preparer):
    """Heats an oven for the claim, and one more for each dough but the first; then fails for doughs of a list."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        dough = dough_of(device)
        first = await device.ensure(Heat(oven="first", temperature=200))
        if dough != "thin":
            await device.ensure(Heat(oven="second", temperature=200))
        if dough == "hot":
            await device.ensure(Heat(oven="third", temperature=300))
        if dough in self.refused:
            raise dra.PermanentError(f"no {dough} here")
        return dra.Prepared(env={"DOUGH": dough, "FLAME": str(first["flame"])})


async def test_a_failing_second_prepare_leaves_the_claim_unchanged_and_records_an_event(node: Node) -> None:
    kitchen()
    oven, lunch = Oven(pizza("thin")), node.claim()
    async with node.running(driver(Picky("pan"), oven, effects=[Heat])):
        answer = await node.prepare(lunch)
        before = node.contents()
        replug(oven, "pan")
        await eventually(lambda: [event["reason"] for event in node.events()] == ["FailedPrepareDevices"])
        assert "no pan here" in node.events()[0]["note"]
        for _ in range(2):  # of a kubelet that was restarted, for example
            assert await node.prepare(lunch) == answer
            assert node.contents() == before
            assert Heat.hardware.on == {"first": 200}
            assert node.effects() == [("heat", "applied", ["lunch"])]
        assert [entry[:2] for entry in Heat.hardware.log[:3]] == [("apply", 200), ("apply", 200), ("revert", 200)]
        replug(oven, "thick")
        await eventually(lambda: node.env(lunch) == ["DOUGH=thick", "FLAME=1"])
        assert Heat.hardware.on == {"first": 200, "second": 200}
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_a_claim_whose_second_prepare_failed_can_be_released(node: Node) -> None:
    kitchen()
    oven, lunch = Oven(pizza("thin")), node.claim()
    async with node.running(driver(Picky("pan"), oven, effects=[Heat])):
        await node.prepare(lunch)
        replug(oven, "pan")
        await eventually(node.events)
        await node.unprepare(lunch)
        assert Heat.hardware.on == {}
        assert node.is_clean()


async def test_a_failing_second_prepare_is_an_error_if_an_effect_was_reverted(node: Node) -> None:
    kitchen()
    oven, lunch = Oven(pizza("thin")), node.claim()
    refused: set[str] = set()

    async def heated(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        await device.ensure(Heat(oven="oven", temperature=200 if dough_of(device) == "thin" else 300))
        if dough_of(device) in refused:
            raise dra.TransientError("burnt")
        return dra.Prepared(env={"DOUGH": dough_of(device)})

    async with node.running(driver(Doing(heated), oven, effects=[Heat])):
        await node.prepare(lunch)
        refused.add("pan")
        replug(oven, "pan")
        await eventually(node.events)
        assert await node.error(lunch) == "burnt"
        refused.clear()
        await node.prepare(lunch)
        assert node.env(lunch) == ["DOUGH=pan"]
        assert Heat.hardware.on == {"oven": 300}
        assert node.effects() == [("heat", "applied", ["lunch"])]


async def test_a_failing_prepare_after_a_reboot_keeps_its_effects(node: Node) -> None:
    baker, lunch = Baker(), node.claim()
    await node.prepared_by(kitchen(baker), lunch)
    node.boot_id.write_text("boot-2")
    async with node.running(kitchen(baker)):
        baker.fail_after = {"lunch"}
        assert await node.error(lunch) == "burnt"
        baker.fail_after = set()
        await node.prepare(lunch)
        assert Heat.hardware.log == [("apply", 200, 1)], "once, with the outcome of the time before"
        assert node.env(lunch) == ["PIZZA_0_FLAME=1"]
        await node.unprepare(lunch)
        assert node.is_clean()
