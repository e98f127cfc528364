"""A process that was found by its number, held so that no later one gets its number."""

from __future__ import annotations

import os
import select
import signal
from types import TracebackType
from typing import Self


class ProcessHandle:
    """A context manager; what is to be known of the process is looked up inside, when it can be no other any more.

    Args:
        process: its ID.

    Raises:
        ProcessLookupError: there is none.
    """

    def __init__(self, process: int) -> None:
        self._descriptor = os.pidfd_open(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def end(self, number: signal.Signals, seconds: float) -> bool:
        """Send it a signal, and wait for so many seconds; whether it has ended then.

        Raises:
            PermissionError: it is somebody else's.
        """
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            return True
        waiting = select.poll()  # select(2) knows no descriptors beyond 1023
        waiting.register(self._descriptor, select.POLLIN)
        return bool(waiting.poll(max(0.0, seconds) * 1000))
