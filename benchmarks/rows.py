"""The rows of the table: each measures one thing, by the definitions in the README of this folder."""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import floors, rival
from benchmarks.calls import Caller, Figures, Side
from benchmarks.requests import counting_proxy
from benchmarks.table import Row
from benchmarks.world import DRIVER, World, cpu_seconds, memory_mib, state, timed
from dra_kit.kube.credentials import Credentials
from dra_kit.resource.reference import ClaimReference
from dra_kit.sandbox.kubelet.dra.kubelet import Kubelet


@dataclass(frozen=True)
class Scale:
    """How much slower than the rival's machine this one is, by the floors."""

    get: float
    fsync: float


# The rival's floors and best figures (Go example driver, helper 0.36): GET 1.0 ms, fsync 0.18 ms. Where two figures
# were measured, the better one counts.
RIVAL_GET, RIVAL_FSYNC = 1.0, 0.18

_TURNS, _ROUNDS = 3, 5
_PART = 10  # claims: whose turn it is changes quicker than the load of a shared machine


def import_time() -> Row:
    """``import dra_kit`` in a fresh interpreter, less the interpreter itself."""

    def median(code: str) -> float:
        figures = []
        for _ in range(9):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            figures.append(timed(start))
        return statistics.median(figures)

    return Row("import dra_kit", max(0.0, median("import dra_kit") - median("pass")), "ms", 100)


async def start(world: World) -> list[Row]:
    """From exec to a kubelet that has its answer, and to all devices in slices."""
    registered, published = [], []
    for _ in range(3):
        begun = time.perf_counter()
        process = world.spawn()
        async with Kubelet(world.kubelet_dir) as kubelet:
            await kubelet.wait_for_plugin(DRIVER)
            registered.append(timed(begun))
        await world.until_published()
        published.append(timed(begun))
        world.stop(process)
        await world.withdraw()
    return [
        Row("exec to registration answered", statistics.median(registered), "ms", 1500, 23),
        Row("exec to all 128 devices published", statistics.median(published), "ms", 2000, 1040),
    ]


async def prepares(world: World, claims: Sequence[ClaimReference], scale: Scale, binary: Path | None) -> list[Row]:
    """Claims prepared and released: one by one, at once, a hundred in one call.

    With the rival's ``binary`` both run at once and are called in turn, and the budgets follow from its figures;
    without it, from those that it had elsewhere.
    """
    async with AsyncExitStack() as stack:
        kubelet, process = await stack.enter_async_context(world.running())
        idle = memory_mib(process.pid)
        ours = Side(Caller(kubelet, DRIVER), claims)
        sides = [ours]
        theirs: Side | None = None
        if binary:
            rivals_claims = await world.make_claims(len(claims), rival.DRIVER, rival.DEVICE)
            rivals_kubelet = await stack.enter_async_context(rival.running(world, binary))
            theirs = Side(Caller(rivals_kubelet, rival.DRIVER), rivals_claims)
            sides.append(theirs)
        loaded = 0.0
        for turn in range(_TURNS):
            for what in Side.ONE_BY_ONE:
                for part in range(0, len(claims), _PART):
                    for side in sides:
                        what(side, slice(part, part + _PART))
                    sides.reverse()  # neither is always the one that finds the API server at rest
                if turn == 0 and what is Side.prepare_again:
                    loaded = memory_mib(process.pid)
            for _ in range(_ROUNDS):
                for call in Side.MANY:
                    for side in sides:
                        call(side)
                sides.reverse()
        for side in sides:
            side.caller.close()
        cpu = await _idle_cpu(process.pid)
    if theirs:
        await world.delete_claims(theirs.claims)
    return [
        *_beside(ours.figures, theirs.figures if theirs else None, scale),
        Row("memory idle (RSS)", idle, "MiB", 80, 43),
        Row("memory with 100 claims (RSS)", loaded, "MiB", 85, 48),
        Row("CPU idle", cpu, "mCPU", 2, 0.25),
    ]


async def _idle_cpu(pid: int) -> float:
    await asyncio.sleep(5)
    before = cpu_seconds(pid)
    await asyncio.sleep(30)
    return (cpu_seconds(pid) - before) / 30 * 1000


def _beside(ours: Figures, theirs: Figures | None, scale: Scale) -> list[Row]:
    # what is measured, what the rival took elsewhere (milliseconds), its floor, and how much of that ours may take
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


async def crash(world: World, claims: Sequence[ClaimReference]) -> list[Row]:
    """kill -9 in the middle of a hundred; from the restart until all are prepared, and what is left over then."""
    process = world.spawn()
    async with Kubelet(world.kubelet_dir) as kubelet:
        await kubelet.wait_for_plugin(DRIVER)
        call = asyncio.ensure_future(kubelet.prepare(DRIVER, list(claims)))
        while not any(world.cdi_dir.glob("*.json")) and not call.done():  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.001)
        world.stop(process, signal.SIGKILL)
        await asyncio.gather(call, return_exceptions=True)
    begun = time.perf_counter()
    process = world.spawn()
    async with Kubelet(world.kubelet_dir) as kubelet:
        await kubelet.wait_for_plugin(DRIVER)
        await kubelet.prepare(DRIVER, list(claims))
        figure = timed(begun)
        files = len(list(world.cdi_dir.iterdir()))
        await kubelet.unprepare(DRIVER, list(claims))
    world.stop(process)
    left = len(list(world.cdi_dir.iterdir())) + len(state(world)["claims"]) + files - len(claims)
    return [
        Row("kill -9 amid 100, restart, all prepared", figure, "ms", 2000, 250),
        Row("files and records left over after that", left, "", 0),
    ]


async def requests(world: World, credentials: Credentials, claim: ClaimReference) -> list[Row]:
    """Requests to the API server: at start, while idle, and for one claim."""
    await world.withdraw()
    group = await world.client.get_path("/apis/resource.k8s.io")
    async with counting_proxy(credentials, world.directory) as counted:
        process = world.spawn(kubeconfig=counted.kubeconfig)
        async with Kubelet(world.kubelet_dir) as kubelet:
            await kubelet.wait_for_plugin(DRIVER)
            await world.until_published()
            await asyncio.sleep(5)
            ours, kopf = counted.ours.total(), counted.kopf.total()
            await kubelet.prepare(DRIVER, [claim])
            per_claim = counted.ours.total() - ours
            await kubelet.unprepare(DRIVER, [claim])
            await asyncio.sleep(40)  # the second look after the first publication
            ours_before, kopf_before = counted.ours.copy(), counted.kopf.copy()
            await asyncio.sleep(30)
            idle, kopf_idle = counted.ours - ours_before, counted.kopf - kopf_before
            if idle or kopf_idle:
                print(f"requests while idle: ours {dict(idle)}, kopf's {dict(kopf_idle)}", file=sys.stderr)
        world.stop(process)
        await world.withdraw()
    return [
        Row("API requests at start, ours", ours, "", 6, 3),
        # kopf asks once for each served version of the group: 10 in all where there are three
        Row("API requests at start, kopf's", kopf, "", 7 + len(group["versions"])),
        Row("API requests in 30 s idle", idle.total() + kopf_idle.total(), "", 0, 0),
        Row("API requests for one claim", per_claim, "", 1, 1),
    ]


def floors_rows(get: float, fsync: float, claim: dict[str, Any]) -> list[Row]:
    """The floors themselves, and what a pause costs the code after it."""
    text = json.dumps(claim).encode()
    return [
        Row("floor: GET of one claim", get, "ms", None, RIVAL_GET),
        Row("floor: fsync of 4 KiB", fsync, "ms", None, RIVAL_FSYNC),
        Row("one claim read from JSON, again and again", floors.decode_us(text, 0), "us", None),
        Row("one claim read from JSON, after 3 ms of rest", floors.decode_us(text, 0.003), "us", None),
    ]
