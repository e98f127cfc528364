"""``python -m benchmarks.page``: the page of a sandbox with 500 nodes of 8 devices, in a headless Chromium."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable
from statistics import median

from benchmarks.table import Row, part
from dra_kit.sandbox.page.server import PageServer
from tests.support.browser import Tab, open_tab
from tests.support.page_world import PageWorld, large_cluster

NODES = 500
PODS = 1_000
TIMES = 30
_DRAWINGS = "performance.getEntriesByName('drawing').map(entry => entry.duration)"


async def drawn(tab: Tab, before: int) -> list[float]:
    """Wait until the page has drawn again; return the milliseconds of all drawings since ``before`` of them."""
    found: list[float] = await tab.until(f"(found => found.length > {before} && found)({_DRAWINGS})")
    return found[before:]


async def count(tab: Tab) -> int:
    return len(await tab.run(_DRAWINGS))


async def updates(tab: Tab, world: PageWorld) -> list[float]:
    """A claim gets a device, again and again."""
    found: list[float] = []
    for number in range(TIMES):
        before = await count(tab)
        world.claim(f"more-{number}", f"node-{NODES - number}/gpu-0")
        found += await drawn(tab, before)
    return found


async def moments(tab: Tab) -> list[float]:
    """The slider is dragged over the whole timeline."""
    found: list[float] = []
    for number in range(TIMES):
        before = await count(tab)
        await tab.run(
            "(slider => { slider.value = slider.max * %f; slider.dispatchEvent(new Event('input')); })"
            "(document.getElementById('slider'))" % (1 - number / TIMES)
        )
        found += await drawn(tab, before)
    return found


async def selections(tab: Tab) -> list[float]:
    """One pod after the other is selected."""
    found: list[float] = []
    for number in range(TIMES):
        before = await count(tab)
        await tab.run(f"document.querySelector('tr[data-row=pod-pod-{number}] button').click()")
        found += await drawn(tab, before)
    return found


async def measured(tab: Tab, work: Awaitable[list[float]]) -> tuple[float, float]:
    """Return the milliseconds of one drawing: of CPU time in the page's thread, with layout and paint, and elapsed."""
    before = await _cpu(tab)
    elapsed = await work
    return (await _cpu(tab) - before) / len(elapsed) * 1000, median(elapsed)


async def _cpu(tab: Tab) -> float:
    metrics = (await tab.command("Performance.getMetrics"))["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


async def figures() -> list[Row]:
    world = large_cluster(NODES, PODS)
    async with PageServer(world.history) as server:
        begin = time.monotonic()
        async with open_tab(server.url) as tab:
            await tab.until(f"document.querySelectorAll('.mini').length === {NODES}")
            opened = time.monotonic() - begin
            await tab.command("Accessibility.disable")
            await tab.command("Performance.enable", timeDomain="threadTicks")
            found = {
                "an update": await measured(tab, updates(tab, world)),
                "a selection": await measured(tab, selections(tab)),
                "a moment on the slider": await measured(tab, moments(tab)),
            }
    rows = [Row(f"page, {NODES} nodes of 8 devices: browser started and drawn", opened, "s", None)]
    for name, (cpu, elapsed) in found.items():
        rows += [
            Row(f"  {name}, CPU", cpu, "ms", 50),
            Row(f"  {name}, elapsed in scripts, median", elapsed, "ms", None),
        ]
    return [*rows, Row("  other processes that wait for a CPU", os.getloadavg()[0], "", None)]


if __name__ == "__main__":
    sys.exit(part("python -m benchmarks.page", __doc__, lambda: asyncio.run(figures())))
