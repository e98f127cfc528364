from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from dra_kit.sandbox.kubelet.plugin_manager import SliceWiper
from dra_kit.sandbox.records import PluginConnected, PluginDisconnected, Record, SlicesWiped
from tests.unit.client.wire import Handler, Wire, answer, served, status

NODE = "node-a"
DONE = answer({"kind": "Status", "status": "Success"})


class Wiping:
    """A wiper, what it was asked for, and what it recorded."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.records: list[Record] = []
        self.connected: set[str] = set()
        self.wiper = SliceWiper(
            wire.client(), NODE, self.connected.__contains__, time_scale=1000, observer=self.records.append
        )

    def connect(self, driver: str) -> None:
        self.connected.add(driver)
        self.wiper.changed(driver)

    def lose(self, driver: str) -> None:
        self.connected.discard(driver)
        self.wiper.changed(driver)

    async def wiped(self, driver: str, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.records.count(SlicesWiped(node=NODE, driver=driver)) < times:  # noqa: ASYNC110 (the observer is a plain function)
                await asyncio.sleep(0.005)

    @property
    def selectors(self) -> list[str]:
        return [query["fieldSelector"] for query in self.wire.queries]


@asynccontextmanager
async def wiping(*answers: Handler) -> AsyncIterator[Wiping]:
    async with served(*answers or [DONE]) as wire:
        made = Wiping(wire)
        running = asyncio.create_task(made.wiper.run())
        yield made
        running.cancel()
        await asyncio.wait([running])


async def test_slices_of_a_disconnected_driver_are_wiped_once() -> None:
    async with wiping() as made:
        made.connect("dra.pizza")
        made.lose("dra.pizza")
        made.lose("dra.pizza")
        await made.wiped("dra.pizza")
        assert made.selectors == ["spec.nodeName=node-a,spec.driver=dra.pizza"]
        assert made.records == [
            PluginConnected(node=NODE, driver="dra.pizza"),
            PluginDisconnected(node=NODE, driver="dra.pizza"),
            SlicesWiped(node=NODE, driver="dra.pizza"),
        ]


async def test_reconnected_driver_keeps_its_slices() -> None:
    async with wiping() as made:
        for driver in ("dra.pizza", "dra.pasta"):
            made.connect(driver)
            made.lose(driver)
        made.connect("dra.pizza")
        # lost at the same time, so the pizza's would be gone by then
        await made.wiped("dra.pasta")
        assert made.selectors == ["spec.nodeName=node-a,spec.driver=dra.pasta"]


async def test_slices_are_wiped_again_if_the_driver_reconnects_during_the_wipe() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def late(request: web.Request) -> web.StreamResponse:
        asked.set()
        await go_on.wait()
        return await DONE(request)

    async with wiping(late, DONE) as made:
        made.connect("dra.pizza")
        made.lose("dra.pizza")
        await asked.wait()
        made.connect("dra.pizza")
        made.lose("dra.pizza")
        go_on.set()
        await made.wiped("dra.pizza", times=2)
        assert made.selectors == ["spec.nodeName=node-a,spec.driver=dra.pizza"] * 2


async def test_slices_of_a_never_connected_driver_are_kept() -> None:
    async with wiping() as made:
        made.lose("dra.pizza")
        made.connect("dra.pasta")
        made.lose("dra.pasta")
        await made.wiped("dra.pasta")
        assert made.selectors == ["spec.nodeName=node-a,spec.driver=dra.pasta"]


async def test_wipe_is_retried_after_an_error() -> None:
    async with wiping(status(500, "InternalError", "no"), status(403, "Forbidden", "no"), DONE) as made:
        await made.wiper.wipe_all()
        assert made.selectors == ["spec.nodeName=node-a"] * 3
        assert made.records == [SlicesWiped(node=NODE, driver="")]
