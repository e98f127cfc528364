"""The rows of the table, as defined in the README of this folder."""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import floors
from benchmarks.requests import counting_proxy
from benchmarks.table import Row
from benchmarks.turns import RIVAL_FSYNC, RIVAL_GET
from benchmarks.world import DRIVER, World, state, timed
from dra_kit.client.credentials import Credentials
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager


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
    """Measure from exec to the registration with the kubelet, and to all devices in slices."""
    registered, published = [], []
    for _ in range(3):
        begun = time.perf_counter()
        process = world.spawn()
        async with PluginManager(world.kubelet_dir, release=UNMODIFIED) as kubelet:
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


async def crash(world: World, claims: Sequence[ClaimReference]) -> list[Row]:
    """kill -9 in the middle of a hundred; from the restart until all are prepared, and what is left over then."""
    process = world.spawn()
    async with PluginManager(world.kubelet_dir, release=UNMODIFIED) as kubelet:
        await kubelet.wait_for_plugin(DRIVER)
        call = asyncio.ensure_future(kubelet.prepare(DRIVER, list(claims)))
        while not any(world.cdi_dir.glob("*.json")) and not call.done():  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.001)
        world.stop(process, signal.SIGKILL)
        await asyncio.gather(call, return_exceptions=True)
    begun = time.perf_counter()
    process = world.spawn()
    async with PluginManager(world.kubelet_dir, release=UNMODIFIED) as kubelet:
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
    """Count requests to the API server: at start, while idle, and for one claim."""
    await world.withdraw()
    group = await world.client.get_path("/apis/resource.k8s.io")
    async with counting_proxy(credentials, world.directory) as counted:
        process = world.spawn(kubeconfig=counted.kubeconfig)
        async with PluginManager(world.kubelet_dir, release=UNMODIFIED) as kubelet:
            await kubelet.wait_for_plugin(DRIVER)
            await world.until_published()
            await asyncio.sleep(5)
            ours, kopf = counted.ours.total(), counted.kopf.total()
            await kubelet.prepare(DRIVER, [claim])
            per_claim = counted.ours.total() - ours
            await kubelet.unprepare(DRIVER, [claim])
            await asyncio.sleep(55)  # for the second check after the first publication
            ours_before, kopf_before = counted.ours.copy(), counted.kopf.copy()
            await asyncio.sleep(30)
            idle, kopf_idle = counted.ours - ours_before, counted.kopf - kopf_before
            if idle or kopf_idle:
                print(f"requests while idle: ours {dict(idle)}, kopf's {dict(kopf_idle)}", file=sys.stderr)
        world.stop(process)
        await world.withdraw()
    return [
        Row("API requests at start, ours", ours, "", 6, 3),
        # kopf sends one request for each served version of the group: 10 in total for three versions
        Row("API requests at start, kopf's", kopf, "", 7 + len(group["versions"])),
        Row("API requests in 30 s idle", idle.total() + kopf_idle.total(), "", 0, 0),
        Row("API requests for one claim", per_claim, "", 1, 1),
    ]


def floors_rows(get: float, fsync: float, claim: dict[str, Any]) -> list[Row]:
    """Measure the floors, and the cost of a pause for the code after it."""
    text = json.dumps(claim).encode()
    return [
        Row("floor: GET of one claim", get, "ms", None, RIVAL_GET),
        Row("floor: fsync of 4 KiB", fsync, "ms", None, RIVAL_FSYNC),
        Row("one claim read from JSON, again and again", floors.decode_us(text, 0), "us", None),
        Row("one claim read from JSON, after 3 ms of rest", floors.decode_us(text, 0.003), "us", None),
    ]
