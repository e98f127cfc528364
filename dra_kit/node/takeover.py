"""When a process takes over the kubelet's calls, the slices and the upkeep from an older process of its driver.

The kubelet calls the process that registered last. So a process beside an older one registers when it can serve, and
what the older one does meanwhile it leaves alone. Without an older one, or when that stops, it registers at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from dra_kit.errors import DraKitError, StoreError
from dra_kit.node.locks.processes import Processes
from dra_kit.publishing.pace import pause

logger: logging.Logger = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.1
"""Seconds between two looks whether the older process still serves, and whether this one can."""
LOG_AFTER: Final = 10.0
"""Seconds until it is logged what this process waits for: an ordinary update takes less."""
_TRY_AGAIN: Final = 10.0
"""Seconds between two tries of the publication while a process has to prove itself."""
_DOUBLED_AT_MOST: Final = 4


class Takeover:
    """Waits until it is this process's turn.

    Args:
        processes: those of the driver on this node.
        missing: returns what this process needs before it can serve, a line each; nothing when it can.
        publishable: returns when the API server would take the slices.
        settle: seconds that this process must have been able to serve where another one took over from the same older
            process and has ended; twice as long after the second one, and so on, up to sixteen times as long.
        clock: gives seconds that only rise.

    Attributes:
        done: set once the kubelet calls this process.
        waits_for: what it waits for, in words; empty while it does not. May be read from any thread.
    """

    def __init__(
        self,
        processes: Processes,
        *,
        missing: Callable[[], Sequence[str]],
        publishable: Callable[[], Awaitable[None]],
        settle: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processes = processes
        self._missing = missing
        self._publishable = publishable
        self._settle = settle
        self._clock = clock
        self._logged = ""
        self.done: asyncio.Event = asyncio.Event()
        self.waits_for: str = ""

    async def turn(self) -> bool:
        """Wait until this process may register; return whether an older one serves beside it.

        Without an older one nothing is awaited.
        """
        if not self._is_preceded():
            return False
        logger.info("registration is deferred until this process can serve; an older one serves meanwhile")
        self._defer("it starts")
        able = asyncio.create_task(self._until_able())
        logging_ = asyncio.get_running_loop().call_later(LOG_AFTER, self._log)
        try:
            while (preceded := self._is_preceded()) and not able.done():
                await asyncio.wait({able}, timeout=LOOK_EVERY)
            if able.done():
                able.result()
        finally:
            logging_.cancel()
            able.cancel()
            await asyncio.wait({able})
        self.waits_for = ""
        why = "it can serve" if preceded else "the older process has ended"
        logger.info("this process takes over", extra={"reason": why})
        if preceded:
            self._note()
        return preceded

    async def confirmed(self, is_registered: Callable[[], bool]) -> None:
        """Wait until the kubelet has registered this process, or no older one is there that it could call instead."""
        self.waits_for = "the kubelet has not registered this process yet; an older one serves meanwhile"
        while not is_registered() and self._is_preceded():  # noqa: ASYNC110 - other processes, and a thread
            await asyncio.sleep(LOOK_EVERY)
        self.waits_for = ""

    def ends(self) -> None:
        """Note that this process takes no more calls."""
        try:
            self._processes.stops()
        except StoreError as error:  # a younger process then waits until this one has ended
            logger.warning("end not noted", extra={"error": str(error), "code": error.code})

    async def _until_able(self) -> None:
        """Return when this process can serve, and has been able to for as long as it must."""
        since: float | None = None
        attempt = 0
        while True:
            if missing := self._missing():
                since = None
                self._defer("; ".join(missing))
                await asyncio.sleep(LOOK_EVERY)
                continue
            try:
                await self._publishable()
            except DraKitError as error:
                since = None
                self._defer(f"its devices cannot be published: {error}", error)
                await asyncio.sleep(max(pause(attempt), LOOK_EVERY))
                attempt += 1
                continue
            attempt = 0
            since = self._clock() if since is None else since
            outlived, settle = self._needed()
            seconds = self._clock() - since
            if seconds >= settle:
                return
            others = "1 process" if outlived == 1 else f"{outlived} processes"
            self._defer(f"it has been able to for {seconds:.0f} of {settle:.0f} s; {others} before it ended early")
            await asyncio.sleep(min(settle - seconds, _TRY_AGAIN))

    def _needed(self) -> tuple[int, float]:
        """Return how many have ended too early, and the seconds that follow from it."""
        try:
            outlived = self._processes.outlived()
        except StoreError:  # reported when it is asked whether an older one is there
            outlived = 0
        return outlived, self._settle * 2 ** min(outlived - 1, _DOUBLED_AT_MOST) if outlived else 0.0

    def _defer(self, reason: str, error: DraKitError | None = None) -> None:
        self.waits_for = (
            f"registration is deferred until this process can serve, and an older one serves meanwhile: {reason}"
        )
        if error is not None and str(error) != self._logged:
            self._logged = str(error)
            logger.error("slices cannot be published yet", extra={"error": str(error), "code": error.code})

    def _log(self) -> None:
        logger.warning("update waits", extra={"reason": self.waits_for})

    def _note(self) -> None:
        try:
            self._processes.takes_over()
        except StoreError as error:  # the next one then takes over sooner
            logger.warning("takeover not noted", extra={"error": str(error), "code": error.code})

    def _is_preceded(self) -> bool:
        try:
            return self._processes.is_preceded()
        except StoreError as error:  # a disk that does not work now says nothing of another process
            if str(error) != self._logged:
                self._logged = str(error)
                logger.error("other processes not looked for", extra={"error": str(error), "code": error.code})
            return bool(self.waits_for)
