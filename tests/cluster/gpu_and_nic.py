"""A second driver on the real node, for network cards that pretend: a process that stories kill and start again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from dra_kit.testing.real import RemoteDriverControl
from tests.cluster.node_driver import NodeDriver, RealCluster, node_driver
from tests.cluster.plane import Plane
from tests.cluster.processes import running

CARDS: Final = "nic.example.com"


class NetworkCards(RemoteDriverControl):
    """The driver of the cards. It can be killed: it runs on this machine."""

    def __init__(self, driver: NodeDriver, ending: ExitStack) -> None:
        super().__init__(driver.name)
        self.node_driver = driver
        self._ending = ending

    async def in_process(self, wanted: bool, /) -> None:
        """It is a process already."""

    async def kill(self) -> None:
        process = self.node_driver.process.process
        process.kill()
        await asyncio.to_thread(process.wait)

    async def start(self) -> None:
        if self.node_driver.process.process.poll() is not None:
            log = self.node_driver.process.log.with_suffix(".again.log")
            started = self._ending.enter_context(running(self.node_driver.command, log=log))
            self.node_driver = replace(self.node_driver, process=started)

    async def restore(self) -> None:
        await self.start()


class WithCards(RealCluster):
    """The cluster of the GPUs, with the cards beside them."""

    def __init__(self, gpus: RealCluster, cards: NetworkCards) -> None:
        super().__init__(gpus.client, gpus.node_driver)
        self._cards = cards
        self._of_cards = RealCluster(gpus.client, cards.node_driver)

    @property
    def drivers(self) -> Sequence[str]:
        return [self.driver, CARDS]

    def control(self, driver: str = "") -> RemoteDriverControl:
        return self._cards if driver == CARDS else super().control(driver)

    async def node_state(self) -> Iterable[str]:
        return [*await super().node_state(), *await self._of_cards.node_state()]


@contextmanager
def network_cards(plane: Plane, target: Path) -> Iterator[NetworkCards]:
    """Their driver, whose devices are published."""
    with node_driver(plane, target, CARDS) as driver, ExitStack() as ending:
        yield NetworkCards(driver, ending)
