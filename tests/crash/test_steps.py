"""kill -9 after each step of the node's list, once in a life that passes them all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dra_kit.node.failpoints import Failpoint
from tests.crash.invariants import check, check_end
from tests.crash.launch import CrashPoint
from tests.crash.world import NODE, Counted, World, world
from tests.support.api import eventually

pytestmark = pytest.mark.timeout(300)  # longer than all waits of a busy machine


async def life(world: World, crash: CrashPoint | None) -> None:
    """Every step at least once: start, publication, claims that come and go, hot-plug, and the end."""
    await world.start(crash)
    await check(world)
    first = world.allocate(["pan-0", "pan-1"], coating="teflon")
    second = world.allocate(["pan-2"])
    await world.prepare(first, second)
    await check(world)
    # an effect is lost: it is applied again, with another outcome
    world.lose("oven-left")
    world.lose("pan-pan-0")
    await check(world)
    # a pan stays unhealthy without further reports
    world.smell("pan-4")
    await check(world)
    world.smell()
    await check(world)
    # hot-plug: a pan is replugged, a pool comes and goes
    world.publish({NODE: world.menu[NODE] | {"pan-0": "steel"}, "cellar": {"pan-9": "iron"}})
    await check(world)
    world.publish({NODE: world.menu[NODE]})
    await check(world)
    world.put_out("pan-4")
    await check(world)
    # released while it is being prepared
    third = world.allocate(["pan-3"], gate="slow")
    preparing = asyncio.create_task(world.prepare_once(third))
    await asyncio.wait({preparing, asyncio.create_task(_entered(world, "slow"))}, return_when="FIRST_COMPLETED")
    releasing = asyncio.create_task(world.unprepare(third))
    # the gate opens when the release has come, or when one of the two is answered without the other
    await eventually(lambda: preparing.done() or releasing.done() or third.uid in world.dump()["epochs"])
    world.open_gate("slow")
    await asyncio.gather(preparing, releasing)
    await check(world)
    # reallocated
    world.allocate(["pan-4"], second, coating="enamel")
    second.answer = None
    await world.prepare(second)
    await check(world)
    await world.unprepare(first)
    await check(world)
    await _end(world)


async def _entered(world: World, gate: str) -> None:
    while not world.entered(gate):  # noqa: ASYNC110 - another process enters
        await asyncio.sleep(0.01)


async def _end(world: World) -> None:
    await world.running()
    await world.stop_all()
    await world.running()
    await check(world)
    await check_end(world)


async def life_beside_another(world: World, crash: CrashPoint | None) -> None:
    """A rolling update: the new process is asked to release what the old one is preparing."""
    await world.start()
    kept, slow = world.allocate(["pan-0"], coating="teflon"), world.allocate(["pan-3"], gate="slow")
    await world.prepare(kept)
    [old] = world.processes
    preparing = asyncio.create_task(world.prepare_once(slow))
    await _entered(world, "slow")
    world.new_pod()
    new = await world.start(crash)
    releasing = asyncio.create_task(world.unprepare(slow))
    await eventually(lambda: slow.uid in world.dump()["epochs"] or not new.alive)
    world.open_gate("slow")
    await asyncio.gather(preparing, releasing)
    await world.stop(old)
    await check(world)
    await _end(world)


async def life_with_corrupt_state(world: World, crash: CrashPoint | None) -> None:
    """The state is corrupt at a start: first while another process uses it, then while none does."""
    first, second = world.allocate(["pan-0"], coating="teflon"), world.allocate(["pan-2"])
    await world.prepare(first, second)
    [old] = world.processes
    world.corrupt_state()
    world.new_pod()
    await world.start(crash)
    await world.prepare(first)
    await world.stop(old)
    await check(world)
    await world.unprepare(second)
    await check(world)
    await _end(world)


async def life_in_a_new_pod(world: World, crash: CrashPoint | None) -> None:
    """The process is killed at its start and its pod is replaced: no later process has the same socket names."""
    await world.start(crash)
    world.new_pod()
    await check(world)
    await _end(world)


LIVES = {
    Failpoint.SERVICE_BOUND: life_in_a_new_pod,
    Failpoint.REGISTRATION_BOUND: life_in_a_new_pod,
    Failpoint.EPOCH_ENDED_ELSEWHERE: life_beside_another,
    Failpoint.STATE_REBUILT: life_with_corrupt_state,
    Failpoint.STATE_MOVED_AWAY: life_with_corrupt_state,
}


@pytest.mark.parametrize("step", Failpoint, ids=lambda step: step.name)
async def test_killed_after(step: Failpoint, counted: Counted) -> None:
    async with world() as made:
        await LIVES.get(step, life)(made, CrashPoint(step))
        assert made.counts.crashes == [step.value], "a step that is in the list is reached"
        counted(made.counts)


@pytest.mark.parametrize(
    "lived", [life, life_beside_another, life_with_corrupt_state], ids=lambda lived: lived.__name__
)
async def test_not_killed(lived: Callable[[World, CrashPoint | None], Awaitable[None]]) -> None:
    async with world() as made:
        await lived(made, None)


async def test_rebooted(counted: Counted) -> None:
    """Effects that a reboot undid are applied again, with new outcomes in the files and in the same answers."""
    async with world() as made:
        first, second = made.allocate(["pan-0", "pan-1"], coating="teflon"), made.allocate(["pan-2"])
        await made.prepare(first, second)
        made.reboot()
        await made.running([CrashPoint(Failpoint.OUTCOME_STORED)])
        await made.prepare(first, second)
        await check(made)
        made.reboot()
        await made.running()
        await made.unprepare(second)
        await made.prepare(first)
        await check(made)
        await _end(made)
        counted(made.counts)
