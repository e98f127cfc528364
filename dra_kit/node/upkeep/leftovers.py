"""What a process that was killed leaves behind, on a node where others of the same driver may be at work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from dra_kit.errors import DraKitError
from dra_kit.node.claims.epochs import Epochs
from dra_kit.node.claims.unasked import Unasked
from dra_kit.node.files.strays import StrayFiles
from dra_kit.node.locks.processes import Processes
from dra_kit.plugin.sockets import remove_stale_sockets

logger: logging.Logger = logging.getLogger(__name__)


class Leftovers:
    """A part of the node process: finds out whose work is over, and removes what it left.

    Args:
        driver: the driver's name.
        kubelet_dir: the kubelet's root directory.
        processes: those of the driver on this node.
        strays: files that no record stands for.
        epochs: of claims.
        unasked: finishes what was begun.
        process_ended: called when another process has ended, in order or not.
        every: seconds between two looks; a look lists one directory.
    """

    name = "leftovers"

    def __init__(
        self,
        driver: str,
        kubelet_dir: Path,
        processes: Processes,
        strays: StrayFiles,
        *,
        epochs: Epochs,
        unasked: Unasked,
        process_ended: Callable[[], None],
        every: float,
    ) -> None:
        self._driver = driver
        self._kubelet_dir = kubelet_dir
        self._processes = processes
        self._epochs = epochs
        self._unasked = unasked
        self._strays = strays
        self._process_ended = process_ended
        self._every = every
        self._others = 0  # other processes at the last look
        self._killed = False  # a process was killed, and what it had begun has not been finished yet
        self._logged = ""

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once; the author's code may be called."""
        ready.set()
        self._killed = False  # before the start, which has just finished what was left
        others = self._others  # when this process began
        while True:
            try:
                before, others = others, self._look()
                if self._killed or others < before:
                    self._process_ended()
                if self._killed or (before and not others):
                    await self.sweep()
                elif not others:  # one may have come and gone between two looks
                    await self._epochs.forget_unneeded(self._alone)
                if self._killed:  # what it had begun without the kubelet, nobody asks for again
                    await self._unasked.resume()
                    self._killed = False
                self._logged = ""
            except DraKitError as error:  # a disk that does not work now is no reason to end
                self._report(error)
            await asyncio.sleep(self._every)

    def _report(self, error: DraKitError) -> None:
        if str(error) != self._logged:
            logger.error("leftovers not looked for", extra={"error": str(error), "code": error.code})
        self._logged = str(error)

    async def sweep(self) -> None:
        """Remove what nobody needs any more; a leftover that stays is no reason not to serve, or not to end."""
        alone = False
        try:
            alone = self._alone()
            await self._epochs.forget_unneeded(self._alone)
        except DraKitError as error:
            self._report(error)
        try:
            for path in remove_stale_sockets(self._kubelet_dir, self._driver, alone=alone):
                logger.info("stale socket removed", extra={"path": str(path)})
        except OSError as error:
            logger.error("stale sockets not removed", extra={"error": str(error)})
        await self._strays.sweep()

    def _alone(self) -> bool:
        return not self._look()

    def _look(self) -> int:
        """Return how many other processes are there."""
        removed, self._others = self._processes.sweep()
        self._killed = self._killed or removed > 0
        return self._others
