"""The end of a driver whose `dra-kit decommission` is killed: it is started again until nothing is left."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

from tests.crash.launch import CrashPoint, NodeProcess
from tests.crash.world import PATIENCE, World


async def decommissioned(world: World, crashes: Iterator[CrashPoint | None]) -> None:
    """Wait until `dra-kit decommission` has ended by itself, or was asked to when nothing was left.

    Args:
        world: whose driver was removed, and whose pods have ended.
        crashes: of the next processes, should this one be killed.

    Raises:
        AssertionError: it does not end.
    """
    asked: set[int] = set()
    try:
        async with asyncio.timeout(PATIENCE):
            while not world.ended:
                await world.running(crashes)
                for process in world.processes:
                    if world.removed == "stays" and id(process) not in asked and nothing_left(process):
                        asked.add(id(process))
                        process.send(signal.SIGTERM)
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"`dra-kit decommission` does not end\n{world.logs()}") from None


def nothing_left(process: NodeProcess) -> bool:
    """Whether a `dra-kit decommission` process reported this."""
    return '"message": "nothing is left"' in process.log()
