"""Two processes of a rolling update: claims come and go, the old one is killed in the middle, or ends late."""

from __future__ import annotations

import asyncio
import signal

import pytest

from dra_kit.node.failpoints import Failpoint
from tests.crash.invariants import check, check_end
from tests.crash.launch import CrashPoint
from tests.crash.world import Claim, Counted, World, exited, world
from tests.support.api import eventually

pytestmark = pytest.mark.timeout(300)  # longer than all waits of a busy machine


async def test_old_process_is_killed_during_a_prepare(counted: Counted) -> None:
    async with world() as made:
        old = await made.start()
        kept = made.allocate(["pan-0"])
        await made.prepare(kept)
        slow = made.allocate(["pan-1"], coating="teflon", gate="slow")
        preparing = asyncio.create_task(made.prepare(slow))
        await eventually(lambda: made.entered("slow"))
        made.new_pod()
        await made.start()
        await _come_and_go(made)
        old.arm(CrashPoint(Failpoint.EFFECT_APPLIED))
        made.open_gate("slow")
        await preparing
        assert old.crashed_at == Failpoint.EFFECT_APPLIED
        await check(made)
        await _end(made, counted)


async def test_old_process_is_killed_during_a_release(counted: Counted) -> None:
    async with world() as made:
        old = await made.start()
        first, second = made.allocate(["pan-0"], coating="teflon"), made.allocate(["pan-1"])
        await made.prepare(first, second)
        old.arm(CrashPoint(Failpoint.EFFECT_REVERTED))
        client = made.kubelet.plugin("dra.bakery")
        made.new_pod()
        await made.start()
        # the kubelet's call is on its way to the old process when the new one appears
        await asyncio.gather(client.unprepare([first.reference]), _come_and_go(made), return_exceptions=True)
        assert old.crashed_at == Failpoint.EFFECT_REVERTED
        await made.unprepare(first)
        await check(made)
        await _end(made, counted)


async def test_prepare_during_the_stop_of_the_old_process_is_in_the_status(counted: Counted) -> None:
    async with world() as made:
        old = await made.start()
        slow = made.allocate(["pan-1"], gate="slow")
        preparing = asyncio.create_task(made.prepare_once(slow))
        await eventually(lambda: made.entered("slow"))
        made.new_pod()
        await made.start()
        await _come_and_go(made)  # the new process has begun to resume, and waits for the old one's claim
        stopping = asyncio.create_task(made.stop(old))
        await eventually(lambda: len(made.kubelet.plugins("dra.bakery")) == 1)
        made.open_gate("slow")
        await asyncio.gather(preparing, stopping)
        await made.prepare(slow)  # the connection was cut when its socket went: asked again, answered from the record
        await check(made)
        await _end(made, counted)


async def test_new_process_fails_to_start(counted: Counted) -> None:
    async with world() as made:
        await made.start()
        claim = made.allocate(["pan-0"])
        await made.prepare(claim)
        made.new_pod()
        new = await made.start()
        new.send(signal.SIGKILL)
        await exited(new)
        await _come_and_go(made)
        await check(made)
        await _end(made, counted)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_old_process_exits_before_the_new_one_can_serve(counted: Counted, signal_number: signal.Signals) -> None:
    async with world() as made:
        old = await made.start()
        former = made.kubelet.plugin("dra.bakery")
        claim = made.allocate(["pan-0"], coating="teflon")
        await made.prepare(claim)
        made.new_pod()
        made.hold_up_discovery(closed=True)
        new = await made.start(waits=True)
        await _come_and_go(made)
        assert made.kubelet.plugins("dra.bakery") == (former,)
        if signal_number == signal.SIGTERM:
            await made.stop(old)
        else:
            old.send(signal_number)
        await made.unprepare(claim)
        assert new.alive
        made.hold_up_discovery(closed=False)
        await _come_and_go(made)
        await check(made)
        await _end(made, counted)


async def _come_and_go(world: World) -> None:
    claims = [world.allocate([f"pan-{number}"]) for number in (3, 4, 5)]

    async def one(claim: Claim) -> None:
        await world.prepare(claim)
        await world.unprepare(claim)

    await asyncio.gather(*(one(claim) for claim in claims[:2]), world.prepare(claims[2]))
    await world.unprepare(claims[2])


async def _end(world: World, counted: Counted) -> None:
    await check_end(world)
    counted(world.counts)
