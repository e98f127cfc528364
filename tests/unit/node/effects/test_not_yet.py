"""Effects that are still coming up: retried within the call, then reported, and never reverted for that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.support.api import eventually
from tests.unit.node.drivers import Doing, driver
from tests.unit.node.role import PLENTY, Node, set_deadline


class Firmware:
    """Boots as long as a test wants."""

    def __init__(self) -> None:
        self.booted = threading.Event()
        self.hold = threading.Event()
        self.hold.set()
        self.log: list[Any] = []


class Boot(dra.Effect[str, Firmware], id="boot"):
    name: str = "fpga"

    def keys(self) -> Iterable[str]:
        return [self.name]

    def title(self) -> str:
        return f"the firmware of {self.name}"

    def apply(self, previous: str | None) -> str:
        self.hardware.log.append("apply")
        self.hardware.hold.wait()
        if not self.hardware.booted.is_set():
            raise dra.NotYet("it boots")
        return "up"

    def revert(self, outcome: str | None) -> None:
        self.hardware.log.append(("revert", outcome))


async def ensured(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
    return dra.Prepared(env={"STATE": await device.ensure(Boot())})


class Blocking(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={"STATE": device.ensure(Boot()).result()})


async def grouped(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
    async with asyncio.TaskGroup() as group:
        boot = group.create_task(_one(device))
    return dra.Prepared(env={"STATE": boot.result()})


async def _one(device: dra.AllocatedDevice) -> str:
    return await device.ensure(Boot())


async def reworded(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
    try:
        return await ensured(claim, device)
    except dra.NotYet:
        raise dra.TransientError("patience") from None


def fpga(firmware: Firmware, preparer: dra.Preparer[Any, Any] | None = None) -> dra.Driver[Any, Any]:
    return driver(preparer or Doing(ensured), effects=[Boot], hardware=lambda _: firmware)


async def too_late(node: Node, claim: ClaimReference, firmware: Firmware, text: str) -> str:
    """Return the answer of a call whose deadline came after the effect had asked for time.

    On a busy machine the deadline may come before: then another call is made.
    """
    async with asyncio.timeout(PLENTY):
        while True:
            firmware.log.clear()
            if text in (answer := await node.error(claim)):
                return answer


async def test_an_effect_is_retried_until_it_is_ready(node: Node) -> None:
    firmware, lunch = Firmware(), node.claim()
    async with node.running(fpga(firmware)):
        asked = asyncio.create_task(node.prepare(lunch))
        await eventually(lambda: len(firmware.log) > 1)
        firmware.booted.set()
        await asked
        assert set(firmware.log) == {"apply"}
        assert node.env(lunch) == ["STATE=up"]


LATE = "effect the firmware of fpga is still coming up: it boots; nothing is undone, and the driver retries it"


@pytest.mark.parametrize(
    ("preparer", "told"),
    [(Doing(ensured), LATE), (Blocking(), LATE), (Doing(grouped), LATE), (Doing(reworded), "patience")],
    ids=["async", "def", "task group", "reworded"],
)
async def test_an_effect_still_coming_up_at_the_deadline_is_reported_and_continues(
    node: Node, preparer: dra.Preparer[Any, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    firmware, lunch = Firmware(), node.claim()
    async with node.running(fpga(firmware, preparer)) as agent:
        set_deadline(agent, 1.0)
        answer = await too_late(node, lunch, firmware, told)
        assert node.effects() == [("boot", "intent", ["lunch"])]
        set_deadline(agent, PLENTY)
        firmware.booted.set()
        await node.prepare(lunch)
        assert set(firmware.log) == {"apply"}
        assert node.env(lunch) == ["STATE=up"]
    if answer == LATE:
        assert "not-yet" in {vars(item).get("code") for item in caplog.records}


@pytest.mark.processes
async def test_a_deadline_during_a_retry_reverts_nothing(node: Node) -> None:
    firmware, lunch = Firmware(), node.claim()
    async with node.running(fpga(firmware)) as agent:
        set_deadline(agent, 3.0)
        answer = ""
        async with asyncio.timeout(PLENTY):
            while answer != f"not prepared within 3 s: {LATE}; the kubelet tries again":
                firmware.log.clear()  # on a busy machine the deadline may come between two tries
                asked = asyncio.create_task(node.error(lunch))
                await eventually(lambda: len(firmware.log) > 1 or asked.done())  # noqa: B023 - awaited here
                firmware.hold.clear()
                answer = await asked
                firmware.hold.set()
        firmware.booted.set()
        set_deadline(agent, PLENTY)
        await node.prepare(lunch)
        assert set(firmware.log) == {"apply"}


async def test_a_restart_keeps_an_effect_that_is_coming_up_for_an_allocated_claim(node: Node) -> None:
    firmware, lunch = Firmware(), node.claim()
    async with node.running(fpga(firmware), deadline=1.0):
        await too_late(node, lunch, firmware, LATE)
    async with node.running(fpga(firmware)):
        firmware.booted.set()
        await node.prepare(lunch)
        assert set(firmware.log) == {"apply"}
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_a_restart_reverts_an_effect_that_is_coming_up_for_a_deleted_claim(node: Node) -> None:
    firmware, lunch = Firmware(), node.claim()
    async with node.running(fpga(firmware), deadline=1.0):
        await too_late(node, lunch, firmware, LATE)
    node.api.delete("resourceclaims", "lunch", "default")
    async with node.running(fpga(firmware)):
        await eventually(node.is_clean)
        assert firmware.log[-1] == ("revert", None)


async def test_an_unprepare_reverts_an_effect_that_is_coming_up(node: Node) -> None:
    firmware, lunch = Firmware(), node.claim()
    async with node.running(fpga(firmware)) as agent:
        set_deadline(agent, 1.0)
        await too_late(node, lunch, firmware, LATE)
        set_deadline(agent, PLENTY)
        await node.unprepare(lunch)
        assert firmware.log[-1] == ("revert", None)
        assert node.is_clean()


async def test_another_failure_reverts_all_effects(node: Node) -> None:
    async def fail(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        try:
            return await ensured(claim, device)
        except dra.NotYet:
            raise dra.PermanentError("it will never boot") from None

    firmware, lunch = Firmware(), node.claim()
    async with node.running(fpga(firmware, Doing(fail))) as agent:
        set_deadline(agent, 1.0)
        assert await too_late(node, lunch, firmware, "it will never boot") == "it will never boot"
        await eventually(node.is_clean)
        assert firmware.log[-1] == ("revert", None)
