"""One program that this process owns: started or found, watched until it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_kit.author.effects.child_process import RunningProcess
from dra_kit.node.children.output import Output
from dra_kit.node.children.process_table import MARK, identify, send, session_of
from dra_kit.node.locks.named import Holding

logger: logging.Logger = logging.getLogger(__name__)

_KILL_WAIT: Final = 5.0  # seconds in which the kernel ends what got SIGKILL, unless a driver of its hangs
_POLL: Final = 0.1  # seconds between two looks where the kernel cannot tell


class Program:
    """A running program; made in the event loop.

    Args:
        title: for people.
        process: the program.
        ours: this process has started it, and can learn its exit status.
        end_within: seconds that it gets to end when it is asked to.
        output: what it writes.
        holding: the lock that makes it ours; given up with it.
        ended: called once when the program has ended.
        stop: asks it to end in its own words; whether it was asked.
        level: at which a line of its output is logged.
    """

    def __init__(
        self,
        title: str,
        process: RunningProcess,
        *,
        ours: bool,
        end_within: float,
        output: Output,
        holding: Holding,
        ended: Callable[[Program], None],
        stop: Callable[[], Awaitable[bool]],
        level: Callable[[str], int],
    ) -> None:
        self.title = title
        self.process = process
        self.ready: bool = not ours  # an earlier process of the driver has seen that it is
        self.since: float = time.monotonic()
        self._ours = ours
        self._end_within = end_within
        self._code: int | None = None
        self._unread = ""
        self._output = output
        self._holding = holding
        self._ended = ended
        self._stop = stop
        self._level = level
        self._gone = asyncio.Event()
        self._watch = asyncio.ensure_future(self._wait())

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return not self._gone.is_set() and identify(self.process.pid) == self.process

    @property
    def last_line(self) -> str:
        """The last line that it wrote."""
        self.log_output()
        return self._output.last

    def exit_text(self) -> str:
        """Return how it ended, as far as that is known."""
        code = self._code
        if code is None:
            return "ended"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"

    def log_output(self) -> None:
        """Bring what it has written since the last look into the log."""
        try:
            lines = self._output.lines() if not self._gone.is_set() else self._output.rest()
        except OSError as error:  # a disk that does not work now is no reason to end, nor to end a program
            if str(error) != self._unread:
                self._unread = str(error)
                fields = {"program": self.title, "pid": self.process.pid, "error": self._unread}
                logger.warning("output of a program not read", extra=fields)
            return
        self._unread = ""
        for line in lines:
            fields = {"program": self.title, "pid": self.process.pid, "line": line}
            logger.log(self._level_of(line), "program says", extra=fields)

    def _level_of(self, line: str) -> int:
        try:
            return int(self._level(line))
        except Exception:  # noqa: BLE001 - of the author's code; no line is lost for it
            return logging.INFO

    async def end(self, *, hangs: bool = False) -> bool:
        """Ask it to end, then end it with all of its session; whether nothing is left.

        Args:
            hangs: it does not answer: a signal alone may reach it.
        """
        if self.runs and self.ready and not hangs:
            await self._end_by_itself()
        if self.runs:
            send(self.process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._end_within):
                    await self._gone.wait()
        return await self.end_session()

    async def _end_by_itself(self) -> None:
        try:
            async with asyncio.timeout(self._end_within):
                if await self._stop():
                    await self._gone.wait()
        except Exception as error:  # noqa: BLE001 - of the author's code; signals end it all the same
            words = str(error) or type(error).__name__
            fields = {"program": self.title, "pid": self.process.pid, "error": words}
            logger.warning("program does not end when it is asked to", extra=fields)

    async def end_session(self) -> bool:
        """End it, and what is left of its session, at once; whether nothing is left."""
        deadline = time.monotonic() + _KILL_WAIT
        while left := await asyncio.to_thread(self._session):
            if time.monotonic() > deadline:
                return False
            for pid in left:
                send(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)
        await self._gone.wait()  # what is not waited for stays in the process table
        return True

    def _session(self) -> list[int]:
        leader = identify(self.process.pid)
        if leader not in {None, self.process}:
            return []  # its ID belongs to another process, as it cannot while its session has members
        return session_of(self.process.pid)

    def give_up(self) -> None:
        """Leave it to whoever comes next, running or not."""
        self._watch.cancel()
        self.log_output()
        self._holding.give_up()

    async def _wait(self) -> None:
        await _exit_of(self.process)
        if self._ours:
            with suppress(ChildProcessError):  # somebody else in this process has waited for all children
                _, status = os.waitpid(self.process.pid, 0)  # noqa: ASYNC222 - it has ended
                self._code = os.waitstatus_to_exitcode(status)
        self._gone.set()
        self.log_output()
        self._ended(self)


def start(command: Sequence[str], environment: Mapping[str, str], mark: Path, output: Output) -> int:
    """Start a program in a session of its own, which outlives this process; its process ID.

    Raises:
        OSError: it cannot be started.
        ValueError: no command, or a NUL in an argument or variable.
    """
    with output.open() as file:
        return os.posix_spawnp(
            command[0] if command else "",
            list(command),
            {**os.environ, **environment, MARK: str(mark)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, file.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, file.fileno(), 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGTERM, signal.SIGINT),
        )


async def _exit_of(process: RunningProcess) -> None:
    """Wait until a process has ended, be it a child or not."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:  # it is gone; or a kernel without pidfd_open(2), or a sandbox that forbids it
        while identify(process.pid) == process:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(_POLL)
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        if identify(process.pid) == process:  # else another one has its ID by now
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
