"""The rows of the table: each measures one thing, by the definitions in the README of this folder."""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.calls import Caller
from benchmarks.requests import counting_proxy
from benchmarks.table import Row
from benchmarks.world import DRIVER, World, cpu_seconds, memory_mib, state, timed
from dra_kit.kube.credentials import Credentials
from dra_kit.kubelet.kubelet import Kubelet
from dra_kit.resource.reference import ClaimReference


@dataclass(frozen=True)
class Scale:
    """How much slower than the rival's machine this one is, by the floors."""

    get: float
    fsync: float


# The rival's floors and best figures (Go example driver, helper 0.36): GET 1.0 ms, fsync 0.18 ms. Where two figures
# were measured, the better one counts.
RIVAL_GET, RIVAL_FSYNC = 1.0, 0.18


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
        await _withdraw(world)
    return [
        Row("exec to registration answered", statistics.median(registered), "ms", 1500, 23),
        Row("exec to all 128 devices published", statistics.median(published), "ms", 2000, 1040),
    ]


async def _withdraw(world: World) -> None:
    from dra_kit.kube.resources import RESOURCE_SLICES

    for item in (await world.client.list(RESOURCE_SLICES, field_selector=f"spec.driver={DRIVER}")).items:
        await world.client.delete(RESOURCE_SLICES, item["metadata"]["name"])


async def prepares(world: World, claims: Sequence[ClaimReference], scale: Scale) -> list[Row]:
    """Claims prepared and released, one by one and a hundred in one call."""
    async with world.running() as (kubelet, process):
        idle = memory_mib(process.pid)
        caller = Caller(kubelet, DRIVER)
        one = [caller.prepare([claim]) for claim in claims]
        again = [caller.prepare([claim]) for claim in claims]
        loaded = memory_mib(process.pid)
        released = [caller.unprepare([claim]) for claim in claims]
        hundred, released_hundred, twenty = [], [], []
        for _ in range(5):
            hundred.append(caller.prepare(claims))
            released_hundred.append(caller.unprepare(claims))
        for claim in claims[:10]:
            twenty.append(caller.prepare_at_once(claim, 20))
            caller.unprepare([claim])
        caller.close()
        await asyncio.sleep(5)
        before = cpu_seconds(process.pid)
        await asyncio.sleep(30)
        cpu = (cpu_seconds(process.pid) - before) / 30 * 1000
    best = 2.9 * scale.get
    return [
        Row("prepare one claim, p50", statistics.median(one), "ms", 1.2 * best, best),
        Row("prepare 100 claims in one call", statistics.median(hundred), "ms", 140 * scale.get, 280 * scale.get),
        Row("20 calls of one claim at once", statistics.median(twenty), "ms", 46 * scale.get, 46 * scale.get),
        Row("prepare the same claim again, p50", statistics.median(again), "ms", 1.8 * scale.get, 1.5 * scale.get),
        Row("unprepare one claim, p50", statistics.median(released), "ms", 1.08 * scale.fsync, 0.9 * scale.fsync),
        Row("unprepare 100 claims in one call", statistics.median(released_hundred), "ms", 44.5 * scale.fsync,
            89 * scale.fsync),
        Row("memory idle (RSS)", idle, "MiB", 80, 43),
        Row("memory with 100 claims (RSS)", loaded, "MiB", 85, 48),
        Row("CPU idle", cpu, "mCPU", 2, 0.25),
    ]  # fmt: skip


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
    await _withdraw(world)
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
            before = counted.ours.total() + counted.kopf.total()
            await asyncio.sleep(30)
            idle = counted.ours.total() + counted.kopf.total() - before
        world.stop(process)
        await _withdraw(world)
    return [
        Row("API requests at start, ours", ours, "", 6, 3),
        # kopf asks once for each served version of the group: 10 in all where there are three
        Row("API requests at start, kopf's", kopf, "", 7 + len(group["versions"])),
        Row("API requests in 30 s idle", idle, "", 0, 0),
        Row("API requests for one claim", per_claim, "", 1, 1),
    ]


def floors_rows(get: float, fsync: float) -> list[Row]:
    """The floors themselves."""
    return [
        Row("floor: GET of one claim", get, "ms", None, RIVAL_GET),
        Row("floor: fsync of 4 KiB", fsync, "ms", None, RIVAL_FSYNC),
    ]
