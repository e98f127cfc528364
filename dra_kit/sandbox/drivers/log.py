"""The log of a driver, and the claims that it rejected permanently."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from dra_kit.errors import DraKitError
from dra_kit.process.logging import TextFormatter, fields_of

_CAPACITY: Final = 4 << 20  # characters
_LINE_MAX: Final = 1 << 14  # characters of one
_PROBLEMS: Final = 1_000
# log the result of each call for a claim
_CALLS: Final = frozenset({"dra_kit.node.claims.service", "dra_kit.node.claims.release"})
# rooms of dra-kit that run the cluster here, not the driver
_CLUSTER: Final = ("dra_kit.sandbox", "dra_kit.apiserver", "dra_kit.cli", "aiohttp", "asyncio")

# the driver whose role runs; empty in other code, and in threads that the author's code starts itself
_role_of: Final[ContextVar[str]] = ContextVar("role_of", default="")


def log_as_driver(name: str) -> None:
    """Attribute what is logged in this thread from now on, and in tasks and threads of the role in it, to a driver."""
    _role_of.set(name)


class DriverLog(logging.Handler):
    """Keeps the lines of the driver's code and of dra-kit's roles around it; a logging handler for the root logger."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(TextFormatter())
        self._lines: deque[str] = deque()
        self._size = 0
        self._gone = 0
        self._problems: dict[tuple[str, str], str] = {}  # what was logged, by driver and line
        self._listeners: list[Callable[[logging.LogRecord, str], None]] = []

    def listen(self, listener: Callable[[logging.LogRecord, str], None]) -> None:
        """Call a listener with each record and its line from now on, in the thread that logs."""
        self._listeners.append(listener)

    @property
    def lines(self) -> Sequence[str]:
        """The newest lines, oldest first; the first one says how many older lines were dropped, if any."""
        with self._held():
            gone = (f"({self._gone:,} older lines dropped: the limit is {_CAPACITY >> 20} MiB)",) if self._gone else ()
            return (*gone, *self._lines)

    @property
    def problems(self) -> Sequence[str]:
        """The warnings and errors among them, one line each: what, why, and where in the author's code."""
        with self._held():
            return tuple(dict.fromkeys(line for _, line in self._problems))

    def problems_of(self, message: str) -> Sequence[str]:
        """Return those of :attr:`problems` that were logged with a message, without fields: ``discover failed``."""
        with self._held():
            return tuple(line for (_, line), logged in self._problems.items() if logged == message)

    def problems_by(self, driver: str) -> Sequence[str]:
        """Return those of :attr:`problems` that the roles of a driver logged, or code of which no driver is known."""
        with self._held():
            return tuple(dict.fromkeys(line for of, line in self._problems if of in {driver, ""}))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        if record.name.startswith(_CLUSTER):
            return
        line = _cut(self.format(record))
        self._lines.append(line)
        self._size += len(line)
        while self._size > _CAPACITY:
            self._size -= len(self._lines.popleft())
            self._gone += 1
        if record.levelno >= logging.WARNING:
            self._problems.setdefault((_role_of.get(), _cut(_problem(record))), record.getMessage())
            if len(self._problems) > _PROBLEMS:
                del self._problems[next(iter(self._problems))]
        for listener in self._listeners:
            listener(record, line)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock: the driver logs in its own threads."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


def _cut(text: str) -> str:
    return text if len(text) <= _LINE_MAX else f"{text[:_LINE_MAX]}… ({len(text) - _LINE_MAX:,} characters more)"


def _problem(record: logging.LogRecord) -> str:
    text = record.getMessage()
    raised = record.exc_info[1] if record.exc_info else None
    if raised is not None and not isinstance(raised, DraKitError):
        text += f": {type(raised).__name__}: {raised}"
    elif error := getattr(record, "error", raised):
        text += f": {error}"
    if place := getattr(record, "at", None):
        text += f" at {place}"
    return " ".join(text.split())


class RefusedClaims(logging.Handler):
    """Permanent errors of claims in the driver's log; a logging handler for the root logger.

    The gRPC answer to the kubelet contains the text of an error, but not whether it is permanent.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._texts: Final[dict[str, str]] = {}
        self._guard: Final = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Store the claim's permanent error, or forget it when a call for the claim ends in another way."""
        if record.name not in _CALLS:
            return
        fields = fields_of(record)
        if not isinstance(claim := fields.get("claim"), str):
            return
        with self._guard:
            if fields.get("permanent"):
                self._texts[claim] = str(fields.get("error", ""))
            else:
                self._texts.pop(claim, None)

    def of(self, namespace: str, claim: str) -> str:
        """Return the permanent error that the driver gave last for a claim; empty without one."""
        with self._guard:
            return self._texts.get(f"{namespace}/{claim}", "")

    def forget(self, namespace: str) -> None:
        """Forget refusals: something has changed, so that claims of a namespace may be prepared after all."""
        with self._guard:
            for claim in [name for name in self._texts if name.startswith(f"{namespace}/")]:
                del self._texts[claim]
