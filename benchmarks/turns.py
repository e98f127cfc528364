"""Durations of alternating calls to dra-kit's driver and the rival, consecutive and after rest."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import rival
from benchmarks.calls import Caller, Figures, Side
from benchmarks.table import Row
from benchmarks.world import DRIVER, World, cpu_seconds, memory_mib
from dra_kit.kubernetes.resource.objects import ClaimReference


@dataclass(frozen=True)
class Scale:
    """The ratio of this machine's floors to those of the rival's machine."""

    get: float
    fsync: float


# The rival's floors and best figures (Go example driver, helper 0.36): GET 1.0 ms, fsync 0.18 ms. Where two figures
# were measured, the better one counts.
RIVAL_GET, RIVAL_FSYNC = 1.0, 0.18

REST = 0.05
"""Idle seconds before a call after rest: caches that stay warm between consecutive calls are cold then."""

_TURNS, _ROUNDS = 3, 5
_PART = 10  # claims per turn: turns are shorter than changes in the load of a shared machine


@dataclass(frozen=True)
class Pace:
    """How far calls are apart.

    Attributes:
        name: completes the name of a row.
        rest: seconds before each call.
        claims: in each turn, each of them new and alone.
        rounds: of 20 calls at once in each turn.
    """

    name: str
    rest: float
    claims: int
    rounds: int


AFTER_REST = Pace("after rest", REST, claims=60, rounds=_ROUNDS)
SPARSE = Pace("after 2 s of rest", 2.0, claims=6, rounds=1)
"""As the kubelet of a node that starts a pod now and then: all caches of the processor have been used by others."""


async def prepares(world: World, claims: Sequence[ClaimReference], scale: Scale, binary: Path | None) -> list[Row]:
    """Prepare and release claims one by one, at the same time, and a hundred in one call.

    With the rival's ``binary`` both run at once and are called in turn, and the budgets follow from its figures;
    without it, from those that it had elsewhere.
    """
    async with AsyncExitStack() as stack:
        kubelet, process = await stack.enter_async_context(world.running())
        idle = memory_mib(process.pid)
        ours = Side(Caller(kubelet, DRIVER), claims)
        theirs: Side | None = None
        if binary:
            rivals_claims = await world.make_claims(len(claims), rival.DRIVER, rival.DEVICE)
            rivals_kubelet = await stack.enter_async_context(rival.running(world, binary))
            theirs = Side(Caller(rivals_kubelet, rival.DRIVER), rivals_claims)
        sides = [side for side in (ours, theirs) if side]
        loaded = 0.0
        for turn in range(_TURNS):
            for what in Side.ONE_BY_ONE:
                _in_turn(what, sides)
                if turn == 0 and what is Side.prepare_again:
                    loaded = memory_mib(process.pid)
            for _ in range(_ROUNDS):
                for call in Side.MANY:
                    for side in sides:
                        call(side)
                sides.reverse()
        rested = [
            row
            for pace in (AFTER_REST, SPARSE)
            for row in await at_pace(pace, world, ours.caller, theirs.caller if theirs else None)
        ]
        for side in sides:
            side.caller.close()
        cpu = await _idle_cpu(process.pid)
    if theirs:
        await world.delete_claims(theirs.claims)
    return [
        *_beside(ours.figures, theirs.figures if theirs else None, scale),
        *rested,
        Row("memory idle (RSS)", idle, "MiB", 84, 43),
        Row("memory with 100 claims (RSS)", loaded, "MiB", 90, 48),
        Row("CPU idle", cpu, "mCPU", 2, 0.25),
    ]


async def at_pace(pace: Pace, world: World, ours: Caller, theirs: Caller | None) -> list[Row]:
    """Calls with rest between them, as the kubelet of a node that is not busy makes them."""
    figures = Figures(), Figures()
    many = max(pace.claims, 20)
    for _ in range(_TURNS):
        sides = [Side(ours, await world.make_claims(many), figures[0], pace.rest)]
        if theirs:
            claims = await world.make_claims(many, rival.DRIVER, rival.DEVICE)
            sides.append(Side(theirs, claims, figures[1], pace.rest))
        made = [claim for side in sides for claim in side.claims]
        for number in range(pace.claims):
            for side in sides:
                for what in Side.ONE_BY_ONE:
                    what(side, slice(number, number + 1))
            sides.reverse()
        for _ in range(pace.rounds):
            for side in sides:
                side.prepare_twenty()
            sides.reverse()
        await world.delete_claims(made)
    return _beside_at_pace(pace, figures[0], figures[1] if theirs else None)


def _in_turn(what: Callable[[Side, slice], None], sides: list[Side]) -> None:
    for part in range(0, len(sides[0].claims), _PART):
        for side in sides:
            what(side, slice(part, part + _PART))
        sides.reverse()  # alternate which one finds the API server idle


async def _idle_cpu(pid: int) -> float:
    await asyncio.sleep(5)
    before = cpu_seconds(pid)
    await asyncio.sleep(30)
    return (cpu_seconds(pid) - before) / 30 * 1000


def _beside(ours: Figures, theirs: Figures | None, scale: Scale) -> list[Row]:
    # figure, field, milliseconds of the rival on its machine, its floor, and our budget relative to it
    what = [
        ("prepare one claim, p50", "one", 2.9, scale.get, 1.2),
        ("prepare 100 claims in one call", "hundred", 280, scale.get, 0.5),
        ("20 calls of one claim each at once", "twenty", 46, scale.get, 1.0),
        ("prepare the same claim again, p50", "again", 1.5, scale.get, 1.2),
        ("unprepare one claim, p50", "released", 0.9, scale.fsync, 1.2),
        ("unprepare 100 claims in one call", "released_hundred", 89, scale.fsync, 0.5),
    ]
    rows = []
    for name, field, elsewhere, floor, share in what:
        best = statistics.median(getattr(theirs, field)) if theirs else elsewhere * floor
        rows.append(Row(name, statistics.median(getattr(ours, field)), "ms", share * best, best))
    return rows


def _beside_at_pace(pace: Pace, ours: Figures, theirs: Figures | None) -> list[Row]:
    what = [
        (f"prepare one claim {pace.name}, p50", "one", 1.2),
        (f"the same claim again {pace.name}, p50", "again", 1.2),
        (f"unprepare one claim {pace.name}, p50", "released", 1.2),
        (f"20 calls at once {pace.name}", "twenty", 1.0),
    ]
    rows = []
    for name, field, share in what:
        best = statistics.median(getattr(theirs, field)) if theirs else None
        rows.append(Row(name, statistics.median(getattr(ours, field)), "ms", share * best if best else None, best))
    return rows
