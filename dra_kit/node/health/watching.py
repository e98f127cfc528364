"""Runs an author's ``watch`` in a thread of its own and hands its reports to the main loop, never faster than it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, Callable
from typing import Any, Final

from dra_kit.author.calling import as_error
from dra_kit.author.devices.health import HealthReport, HealthSource
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.process.tracebacks import from_author, named, place_of

logger: logging.Logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
_WAITING_MAX: Final = 1024
"""Reports that may wait for the main loop; a source that has more of them waits."""


class Watching:
    """The thread of one source.

    Args:
        source: the author's.
        arrived: called in the main loop when there are reports to :meth:`take`.
    """

    def __init__(self, source: HealthSource[Any, Any, Any], arrived: Callable[[], None]) -> None:
        self._source = source
        self._arrived = arrived
        self._changed = threading.Condition()
        self._reports: deque[HealthReport] = deque()
        self._stopping = False
        self._failure = ""  # why it failed the last time, empty when it did not
        self._asked: float | None = None  # since when it is asked for its next report

    def start(self) -> None:
        """Start the thread; from the main loop."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._work, args=(loop,), name="health", daemon=True).start()

    def stop(self) -> None:
        """Take no report any more; a thread that blocks in the author's code ends with the process."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def take(self) -> list[HealthReport]:
        """Return the reports that have come, in their order."""
        with self._changed:
            reports = list(self._reports)
            self._reports.clear()
            self._changed.notify_all()
        return reports

    def hanging(self, patience: float) -> list[str]:
        """Return a line while a source that reports regularly, as its ``stale_after`` says, has long reported nothing.

        Any other one may wait for the next event as long as it likes. May be asked from any thread.

        Args:
            patience: seconds beyond ``stale_after``.
        """
        asked, stale_after, now = self._asked, self._source.stale_after, time.monotonic()
        if asked is None or stale_after is None or not self._source.devices or now - asked <= stale_after + patience:
            return []
        return [f"{type(self._source).__name__}.watch has not reported anything for {now - asked:.0f} s"]

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        attempt = 0
        while not self._stopping:
            began = time.monotonic()
            try:
                self._once(loop)
            except BaseException as raised:  # noqa: BLE001 - the author's code may raise anything; reported and tried again
                error = as_error(raised)
            else:
                return  # it has nothing more to say
            finally:
                self._asked = None
            if time.monotonic() - began > RETRY_SECONDS[-1]:
                attempt, self._failure = 0, ""  # it worked for a while: this is a new trouble
            delay = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
            attempt += 1
            self._report(error, delay)
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, timeout=delay)

    def _once(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run one life of the generator."""
        self._asked = time.monotonic()
        produced: object = self._source.watch()
        if isinstance(produced, AsyncIterable):
            asyncio.run(self._drain(produced, loop))
        elif inspect.isgenerator(produced):
            for report in produced:
                self._deliver(report, loop)
                if self._stopping:
                    break
        else:
            if inspect.iscoroutine(produced):
                produced.close()
            raise ConfigurationError(
                f"{type(self._source).__name__}.watch must be a generator; write 'yield dra_kit.Healthy(device)'",
                code="invalid-health-report",
            )

    async def _drain(self, produced: AsyncIterable[HealthReport], loop: asyncio.AbstractEventLoop) -> None:
        async for report in produced:
            self._deliver(report, loop)
            if self._stopping:
                break

    def _deliver(self, report: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._asked = None
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or len(self._reports) < _WAITING_MAX)
            self._reports.append(report)
            first = len(self._reports) == 1
        if first:
            try:
                loop.call_soon_threadsafe(self._arrived)
            except RuntimeError:
                self._stopping = True  # the main loop has ended: the process is going down
        self._asked = time.monotonic()

    def _report(self, error: Exception, delay: float) -> None:
        expected = isinstance(error, DraKitError)
        text = str(error) if expected else named(error)
        if text == self._failure:
            logger.info("health not watched again", extra={"again_in": delay})  # nothing new to say
            return
        self._failure = text
        module = type(self._source).__module__
        fields: dict[str, object] = {"error": text, "again_in": delay}
        if isinstance(error, DraKitError):
            fields["code"] = error.code
        if place := place_of(error, module):
            fields["at"] = place
        logger.error(
            "health not watched, all stays as it was reported last",
            extra=fields,
            exc_info=None if expected else from_author(error, module),
        )
