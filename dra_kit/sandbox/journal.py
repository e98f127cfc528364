"""What the driver's roles log in a sandbox, kept apart from the rest of the process."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from dra_kit.errors import DraKitError
from dra_kit.process.logging import TextFormatter

_CAPACITY: Final = 20_000  # lines
# rooms of dra-kit that run the cluster here, not the driver
_CLUSTER: Final = ("dra_kit.sandbox", "dra_kit.kubelet", "dra_kit.apiserver", "dra_kit.cli", "aiohttp", "asyncio")


class DriverLog(logging.Handler):
    """Keeps the lines of the driver's code and of dra-kit's roles around it; a logging handler for the root logger."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(TextFormatter())
        self._lines: deque[str] = deque(maxlen=_CAPACITY)
        self._problems: deque[logging.LogRecord] = deque(maxlen=_CAPACITY)

    @property
    def lines(self) -> Sequence[str]:
        """Everything so far, oldest first."""
        return tuple(self._lines)

    @property
    def problems(self) -> Sequence[str]:
        """The warnings and errors among them, one line each: what, why, and where in the author's code."""
        return tuple(dict.fromkeys(map(_told, self._problems)))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        if record.name.startswith(_CLUSTER):
            return
        self._lines.append(self.format(record))
        if record.levelno >= logging.WARNING:
            self._problems.append(record)


def _told(record: logging.LogRecord) -> str:
    text = record.getMessage()
    raised = record.exc_info[1] if record.exc_info else None
    if raised is not None and not isinstance(raised, DraKitError):
        text += f": {type(raised).__name__}: {raised}"
    elif error := getattr(record, "error", raised):
        text += f": {error}"
    if place := getattr(record, "at", None):
        text += f" at {place}"
    return " ".join(text.split())
