"""Runs the parts of one role: starts them in order, stops them in reverse, stops the process when one fails."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, Protocol

from msgspec import Struct, field

from dra_kit.author.calls import error_fields, error_text, unexpected_exc_info
from dra_kit.errors import ConfigurationError, InternalError

logger: logging.Logger = logging.getLogger(__name__)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_ONE_SIGNAL: Final = 2.0  # seconds in which repeated signals are one: timeout(1) and shells send two
_LAST_GRACE: Final = 1.0  # seconds a part gets to stop when the drain time is used up


class Part(Protocol):
    """One long-running part of a process: a server, a publisher, a watcher."""

    @property
    def name(self) -> str:
        """Short, unique within the process; shown in logs."""
        ...

    async def run(self, ready: asyncio.Event) -> None:
        """Work until cancelled; set ``ready`` once it is functional; it may be cleared in between."""
        ...


class PartState(StrEnum):
    """The state of a part."""

    WAITING = "waiting"  # not ready yet: it is starting, or waits for an earlier part
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class PartStatus(Struct, frozen=True):
    """The status of a part.

    Attributes:
        error: the text of its last error; empty if it never failed.
        waits_for: what it waits for, as text; empty if that is unknown, or it does not wait.
        after: parts that it starts after and that are not ready.
    """

    state: PartState
    error: str = ""
    waits_for: str = ""
    after: tuple[str, ...] = ()


class _Entry(Struct):
    part: Part
    after: Sequence[_Entry]
    stops_first: bool
    waits_for: Callable[[], str]
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: PartState | None = None
    error: str = ""

    @property
    def status(self) -> PartStatus:
        state = self.ended or (PartState.READY if self.ready.is_set() else PartState.WAITING)
        if state is not PartState.WAITING:
            return PartStatus(state, self.error)
        after = tuple(entry.part.name for entry in self.after if not entry.ready.is_set())
        return PartStatus(state, self.error, "" if after else self.waits_for(), after)

    def starts_after(self, part: Part) -> bool:
        """Return whether this is the part, or starts only when that part is ready."""
        return self.part is part or any(entry.starts_after(part) for entry in self.after)


class Supervisor:
    """Starts, watches and stops the parts of a process.

    Args:
        drain: seconds that all parts together may take to stop before they are cancelled a second time.

    Attributes:
        stopping: set as soon as the process is stopping, for any reason.
        signalled: whether a signal requested the stop, even if the process was already stopping.
    """

    def __init__(self, *, drain: float = 30.0) -> None:
        self.stopping: asyncio.Event = asyncio.Event()
        self.signalled: bool = False
        self._drain = drain
        self._entries: dict[str, _Entry] = {}
        self._exit_code = 0

    def add(
        self,
        part: Part,
        *,
        after: Part | Sequence[Part] = (),
        stops_first: bool = False,
        waits_for: Callable[[], str] = str,
    ) -> None:
        """Add a part; parts start in the order they were added, before :meth:`run`.

        Args:
            part: the part to run.
            after: parts added earlier that must be ready before this one starts; without them, it starts at once.
            stops_first: it is stopped, and drains, before the parts without this flag, including those added later.
            waits_for: returns what the part waits for while it is not ready; called from any thread.

        Raises:
            InternalError: the name is taken, or a part of ``after`` was not added.
        """
        if part.name in self._entries:
            raise InternalError(f"part {part.name!r} is added twice: give each part its own name")
        former = []
        for other in after if isinstance(after, Sequence) else (after,):
            entry = self._entries.get(other.name)
            if entry is None or entry.part is not other:
                raise InternalError(f"part {part.name!r} waits for {other.name!r}, which was not added before it")
            former.append(entry)
        self._entries[part.name] = _Entry(part, former, stops_first, waits_for)

    def before(self, part: Part) -> frozenset[str]:
        """Return the names of the parts that do not wait for this one."""
        return frozenset(name for name, entry in self._entries.items() if not entry.starts_after(part))

    def status(self) -> Mapping[str, PartStatus]:
        """Return the status of each part, in starting order; may be called from any thread."""
        return {name: entry.status for name, entry in self._entries.items()}

    def stop(self) -> None:
        """Ask the process to stop; :meth:`run` returns when all parts have stopped."""
        self.stopping.set()

    async def run(self) -> int:
        """Run all parts until SIGTERM, SIGINT, :meth:`stop`, cancellation, or the failure of a part.

        The first signal starts the ordered stop. Two seconds later the signals have their default action, so that
        another one kills the process immediately. Outside the main thread signals are not handled.

        Returns:
            The exit code of the process: 0, or 1 after a failure, or 2 if the failure is a ConfigurationError.
        """
        with self._signals():
            async with asyncio.TaskGroup() as group:
                tasks = [
                    (entry, group.create_task(self._supervise(entry), name=name))
                    for name, entry in self._entries.items()
                ]
                try:
                    await self.stopping.wait()
                finally:
                    self.stopping.set()
                    await self._stop_all(tasks)
        return self._exit_code

    async def _supervise(self, entry: _Entry) -> None:
        for former in entry.after:
            await former.ready.wait()
        try:
            await entry.part.run(entry.ready)
            end = "ended by itself: it should run until it is stopped"
        except asyncio.CancelledError:
            end = "was cancelled from within"
        except Exception as error:  # noqa: BLE001 - the boundary of a part: any error is reported
            self._failed(entry, error)
            return
        if self.stopping.is_set():
            entry.ended = PartState.STOPPED
        else:
            self._failed(entry, InternalError(f"part {entry.part.name!r} {end}"))

    def _failed(self, entry: _Entry, error: Exception) -> None:
        entry.ready.clear()
        entry.ended = PartState.FAILED
        entry.error = error_text(error)
        fields = {"part": entry.part.name, **error_fields(error)}
        logger.error("part failed", extra=fields, exc_info=unexpected_exc_info(error))
        self._exit_code = max(self._exit_code, 2 if isinstance(error, ConfigurationError) else 1)
        self.stopping.set()

    async def _stop_all(self, tasks: Sequence[tuple[_Entry, asyncio.Task[None]]]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._drain
        first, last = ([item for item in tasks if item[0].stops_first is first] for first in (True, False))
        for entry, task in (*reversed(first), *reversed(last)):
            task.cancel()
            await asyncio.wait((task,), timeout=max(deadline - loop.time(), _LAST_GRACE))
            while not task.done():
                logger.warning("part did not stop in time", extra={"part": entry.part.name, "drain": self._drain})
                task.cancel()
                await asyncio.wait((task,), timeout=_LAST_GRACE)
            entry.ended = entry.ended or PartState.STOPPED

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        insisting: asyncio.TimerHandle | None = None

        def receive(number: int, _frame: object) -> None:
            # a handler of the loop would run later, and never if it is removed before
            self.signalled = True
            loop.call_soon_threadsafe(begin, signal.Signals(number))

        def begin(number: signal.Signals) -> None:
            nonlocal insisting
            if self.stopping.is_set():
                return  # the same signal, sent to the process and to its group
            logger.info("stopping", extra={"signal": number.name})
            self.stopping.set()
            insisting = loop.call_later(_ONE_SIGNAL, insist)

        def insist() -> None:
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)

        before = {number: signal.signal(number, receive) for number in _SIGNALS}
        try:
            yield
        finally:
            if insisting is not None:
                insisting.cancel()
            for number, handler in before.items():
                if handler is not None:  # None: not installed by Python, cannot be restored
                    signal.signal(number, handler)
