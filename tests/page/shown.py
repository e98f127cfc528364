"""A page in a browser, which must neither report errors nor ask other servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

from dra_kit.sandbox.page.server import PageServer
from tests.support.browser import Tab, chromium, open_tab
from tests.support.page_world import PageWorld


@asynccontextmanager
async def shown(
    world: PageWorld, *, mode: Literal["live", "replay"] = "live", reduced_motion: bool = False
) -> AsyncIterator[Tab]:
    """The page of a world; afterwards no error may be on the console, and no request gone elsewhere."""
    chromium()
    async with PageServer(world.history, mode=mode, title="story.jsonl") as server:
        flags = ["--force-prefers-reduced-motion"] if reduced_motion else []
        async with open_tab(server.url, flags) as tab:
            await tab.until("!['', '○ connecting'].includes(document.getElementById('mode').innerText)")
            yield tab
            base = server.url.partition("#")[0]
            assert tab.problems == []
            assert [url for url in tab.requests if not url.startswith((base, "blob:"))] == []


async def rows(tab: Tab) -> list[list[str]]:
    """The cells of the table of pods."""
    found: list[list[str]] = await tab.run(
        "[...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    )
    return found


async def tiles(tab: Tab, selector: str = ".device") -> dict[str, str]:
    """The devices, by name: what a screen reader says of each."""
    found: list[list[str]] = await tab.run(
        f"[...document.querySelectorAll('{selector}')].map(tile => [tile.dataset.device, tile.ariaLabel])"
    )
    return {device.partition("/")[2]: label for device, label in found}


class Relay:
    """Passes connections on to a port until it is cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._tasks = set[asyncio.Task[None]]()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        except asyncio.CancelledError:
            pass
        finally:
            for each in (writer, far_writer):
                each.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()
