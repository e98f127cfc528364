"""kill -9 of `dra-kit decommission` at each step: all effects are reverted, and no pod hangs."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Final

import pytest

from dra_kit.node.failpoints import Failpoint
from dra_kit.node.processes import DriverProcesses
from tests.crash.decommission import decommissioned
from tests.crash.invariants import check, check_decommissioned
from tests.crash.launch import FILE_CHANGE, CrashPoint
from tests.crash.world import NODE, Counted, World, exited, world
from tests.support.api import eventually

pytestmark = [pytest.mark.timeout(300), pytest.mark.processes]  # longer than all waits of a busy machine

STARTING: Final = (
    Failpoint.SLICE_DELETED,
    Failpoint.STATE_REBUILT,
    Failpoint.STATE_MOVED_AWAY,
    Failpoint.STATE_OPENED,
    Failpoint.FILES_SWEPT,
    Failpoint.SERVICE_BOUND,
    Failpoint.SERVING,
    Failpoint.REGISTRATION_BOUND,
    Failpoint.REGISTERED,
    Failpoint.RESUMED,
)
RELEASING: Final = (
    Failpoint.RELEASE_BEGUN,
    Failpoint.FILES_REMOVED,
    Failpoint.EFFECT_RELEASED,
    Failpoint.EFFECT_REVERTED,
    Failpoint.EFFECT_FORGOTTEN,
    Failpoint.AUTHOR_UNPREPARED,
    Failpoint.CLAIM_FORGOTTEN,
)
STOPPING: Final = (Failpoint.DRAINING, Failpoint.UNREGISTERED, Failpoint.DRAINED)


async def _starting(world: World, steps: Sequence[Failpoint]) -> None:
    for step in steps:
        if step is Failpoint.STATE_REBUILT:
            world.corrupt_state()
        process = await world.start(CrashPoint(step))
        await exited(process)
        world.bury(process)


async def test_decommission_is_killed_after_each_step(counted: Counted) -> None:
    async with world() as made:
        made.publish({NODE: {f"pan-{number}": "iron" for number in range(len(RELEASING) + 1)}})
        await made.start()
        claims = [made.allocate([pan], oven=pan, coating="teflon") for pan in made.menu[NODE]]
        await made.prepare(*claims)
        await check(made)
        made.remove_driver(stays=False)
        await made.stop_all()
        await _starting(made, STARTING)
        for step, claim in zip(RELEASING, claims, strict=False):
            await made.running()
            made.processes[0].arm(CrashPoint(step))
            await made.unprepare(claim)
        made.processes[0].arm(CrashPoint(STOPPING[0]))
        await made.unprepare(claims[-1])
        await decommissioned(made, map(CrashPoint, STOPPING[1:]))
        check_decommissioned(made)
        assert made.counts.crashes == [*STARTING, *RELEASING, *STOPPING], "a step that is in the list is reached"
        counted(made.counts)


async def test_next_decommission_answers_the_kubelet_after_a_kill(counted: Counted) -> None:
    """A process killed before it answers leaves nothing; its successor does not exit before it has answered."""
    async with world("effects") as made:
        await made.start()
        claim = made.allocate(["pan-0"])
        await made.prepare(claim)
        made.remove_driver(stays=False)
        await made.stop(made.processes[0])
        await made.start(CrashPoint(Failpoint.CLAIM_FORGOTTEN))
        assert not await made.unprepare_once(claim)
        await made.running()
        successor = made.processes[0]
        await eventually(lambda: '"message": "not removed yet"' in successor.log())
        await made.unprepare(claim)
        await decommissioned(made, iter(()))
        check_decommissioned(made)
        counted(made.counts)


async def test_decommission_is_killed_before_each_file_change_at_the_end(counted: Counted) -> None:
    """The next process removes the rest, at any point of the removal."""
    async with world("effects") as made:
        await made.start()
        await made.prepare(claim := made.allocate(["pan-0"]))
        made.remove_driver(stays=True)
        await made.stop(made.processes[0])
        while not made.ended:
            # from before its start, another process of the driver that serves no more calls: it only defers the end, so
            # that the crash can be armed just before
            other = DriverProcesses(made.state / "locks" / "processes")
            with other.present():
                other.stops()
                await made.running()
                if claim.uid in made.claims:
                    await made.unprepare(claim)
                [process] = made.processes
                await eventually(lambda process=process: '"processes": true' in process.log())  # type: ignore[misc]
                process.arm(CrashPoint(FILE_CHANGE, len(made.past)))
            await eventually(
                lambda process=process: not process.alive or '"message": "answering late calls"' in process.log()  # type: ignore[misc]
            )
            if process.alive:
                process.send(signal.SIGTERM)
            await exited(process)
            made.bury(process)
        assert len(made.counts.crashes) > len(("three sockets", "a link", "a lock", "transactions", "database"))
        check_decommissioned(made)
        counted(made.counts)
