"""What drivers log, as records: from any thread, and no more of it than the cluster can bear."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dra_kit.sandbox.timeline.container_output import Allowance
from dra_kit.sandbox.timeline.records import DriverLogged

_LINES: Final = (1_000, 5_000)  # in a second, and at once after silence


class DriverLines:
    """Hands records over to the event loop that makes this; :meth:`logged` is a listener of a driver's log.

    Args:
        driver: name of the driver; empty for several.
        append: takes the records.
        clock: gives seconds.
    """

    def __init__(
        self, driver: str, append: Callable[[DriverLogged], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._driver = driver
        self._append = append
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._allowance = Allowance(*_LINES)
        self._left_out = 0

    def logged(self, record: logging.LogRecord, line: str) -> None:
        """Take a line; the handler of the log calls it in one thread at a time."""
        if not self._allowance.left(self._clock()):
            self._left_out += 1
            return
        self._allowance.take(1)
        item = DriverLogged(driver=self._driver, level=record.levelname, text=line, left_out=self._left_out)
        self._left_out = 0
        if threading.get_ident() == self._thread:
            self._append(item)
        else:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._append, item)
