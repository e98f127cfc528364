"""Take the pictures of the page of the sandbox: ``make page-pictures``. Needs Chromium."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from dra_kit.sandbox.page.server import PageServer
from tests.support.browser import Tab, open_tab
from tests.support.page_world import large_cluster

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "_static"
COMMAND = (
    "sandbox", "examples/gpu-driver", "--nodes", "2", "--fake-gpus", "a100-80gb", "--shared-memory", "memory",
    "--no-monitor", "--no-passthrough", "-f", "docs/site_parts/page-story.yaml", "--ui",
)  # fmt: skip
URL = re.compile(r"page: (\S+)")
SIZE = (1280, 800)


@asynccontextmanager
async def sandbox() -> AsyncIterator[str]:
    """Run the story of the GPUs; yield the URL of its page."""
    with tempfile.TemporaryDirectory() as folder:
        source = f"{ROOT}:{ROOT / 'examples/gpu-driver/src'}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dra_kit", *COMMAND, "--fake-folder", f"{folder}/{{node}}",
            cwd=ROOT, env={**os.environ, "PYTHONPATH": source}, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        reading = asyncio.create_task(_read(process, url))
        try:
            yield await url
        finally:
            process.terminate()
            await reading
            await process.wait()


async def _read(process: asyncio.subprocess.Process, url: asyncio.Future[str]) -> None:
    """Read what the sandbox prints to the end: it would wait otherwise."""
    while line := await process.stdout.readline() if process.stdout else b"":
        if (found := URL.search(line.decode())) and not url.done():
            url.set_result(found[1])
    if not url.done():
        url.set_exception(RuntimeError("the sandbox did not come up"))


async def take(tab: Tab, name: str, scheme: str = "light") -> None:
    """Write a picture of what the page shows now."""
    await tab.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    await tab.run("document.activeElement.blur()")
    await asyncio.sleep(1)  # until answers are there, and all is drawn
    await tab.picture(PICTURES / f"{name}.webp", "webp", 70)


async def of_gpus() -> None:
    """Show a pod that waits, and one that runs."""
    async with sandbox() as url, open_tab(url) as tab:
        await tab.resize(*SIZE)
        await tab.until("document.querySelectorAll('td.good').length === 4")
        await tab.click("td.wait")
        await tab.until_text(".explanation", "cannot be scheduled")
        await take(tab, "page-pending")
        await tab.run("[...document.querySelectorAll('.row')].find(row => row.innerText.includes('serve')).click()")
        await tab.until_text("#panel section pre", "serving")
        await take(tab, "page-running", "dark")


async def of_many_nodes() -> None:
    """Show 500 nodes of 8 devices, which are made up."""
    world = large_cluster()
    world.devices("node-77", gpu_2={"taints": [{"key": "example.com/overheated", "effect": "NoSchedule"}]})
    async with PageServer(world.history) as server, open_tab(server.url) as tab:
        await tab.resize(*SIZE)
        await tab.until("document.querySelectorAll('.mini').length === 500")
        await tab.click("[data-node=node-77].mini")
        await tab.run("document.querySelector('main').scrollTop = 0")
        await take(tab, "page-many")


async def main() -> None:
    """Take all pictures."""
    await of_gpus()
    await of_many_nodes()


if __name__ == "__main__":
    asyncio.run(main())
