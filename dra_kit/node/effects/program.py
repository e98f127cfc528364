"""One program that this process owns: started or found, watched until it exits; its output; processes in /proc."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from dra_kit.author.effect import RunningProcess
from dra_kit.node.locks import HeldLock

logger: logging.Logger = logging.getLogger(__name__)
_KILL_WAIT: Final = 5.0  # seconds for the kernel to end a process after SIGKILL, unless a kernel driver hangs
_POLL: Final = 0.1  # seconds between two checks if the kernel cannot notify


class Program:
    """A running program; created in the event loop.

    Args:
        ours: this process has started it, and can read its exit status.
        end_within: seconds that it gets to exit when asked to.
        lock: proves ownership; released together with the program.
        ended: called once when the program has exited.
        stop: asks the program to exit in its own way; returns whether it did ask.
        level: returns the log level of a line of its output.
    """

    def __init__(
        self,
        title: str,
        process: RunningProcess,
        *,
        ours: bool,
        end_within: float,
        output: ProgramOutput,
        lock: HeldLock,
        ended: Callable[[Program], None],
        stop: Callable[[], Awaitable[bool]],
        level: Callable[[str], int],
    ) -> None:
        self.title = title
        self.process = process
        self.ready: bool = not ours  # an earlier process of the driver has seen it ready
        self.since: float = time.monotonic()
        self._ours = ours
        self._end_within = end_within
        self._code: int | None = None
        self._unread = ""
        self._output = output
        self._lock = lock
        self._ended = ended
        self._stop = stop
        self._level = level
        self._gone = asyncio.Event()
        self._watch = asyncio.ensure_future(self._wait())

    @property
    def runs(self) -> bool:
        """Whether it has not exited."""
        return not self._gone.is_set() and identify(self.process.pid) == self.process

    @property
    def last_line(self) -> str:
        """The last line of its output."""
        self.log_output()
        return self._output.last

    def exit_text(self) -> str:
        """Return how it exited, as far as that is known."""
        code = self._code
        if code is None:
            return "exited"
        if code >= 0:
            return f"exited with code {code}"
        try:
            return f"was terminated by {signal.Signals(-code).name}"
        except ValueError:
            return f"was terminated by signal {-code}"

    def log_output(self) -> None:
        """Log what the program has written since the last check."""
        try:
            lines = self._output.lines() if not self._gone.is_set() else self._output.rest()
        except OSError as error:  # a failing disk must stop neither the process nor a program
            why = error.strerror or str(error)
            if why != self._unread:
                self._unread = why
                fields = {"program": self.title, "pid": self.process.pid, "error": self._unread}
                logger.warning("output of a program not read", extra=fields)
            return
        self._unread = ""
        for line in lines:
            fields = {"program": self.title, "pid": self.process.pid, "line": line}
            logger.log(self._level_of(line), "program output", extra=fields)

    def _level_of(self, line: str) -> int:
        try:
            return int(self._level(line))
        except Exception:  # noqa: BLE001 - of the author's code; no line is lost
            return logging.INFO

    async def end(self, *, hangs: bool = False) -> bool:
        """Ask the program to exit, unless it ``hangs``, then kill its whole session; return whether nothing is left."""
        if self.runs and self.ready and not hangs:
            await self._end_by_itself()
        if self.runs:
            send_signal(self.process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._end_within):
                    await self._gone.wait()
        return await self.end_session()

    async def _end_by_itself(self) -> None:
        try:
            async with asyncio.timeout(self._end_within):
                if await self._stop():
                    await self._gone.wait()
        except Exception as error:  # noqa: BLE001 - of the author's code; signals still end the program
            fields = {"program": self.title, "pid": self.process.pid, "error": str(error) or type(error).__name__}
            logger.warning("program does not stop when asked to", extra=fields)

    async def end_session(self) -> bool:
        """Kill the program and the rest of its session at once; return whether nothing is left."""
        deadline = time.monotonic() + _KILL_WAIT
        while left := await asyncio.to_thread(self._session):
            if time.monotonic() > deadline:
                return False
            for pid in left:
                send_signal(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)
        await self._gone.wait()  # unless waited for, it stays in the process table
        return True

    def _session(self) -> list[int]:
        leader = identify(self.process.pid)
        if leader not in {None, self.process}:
            return []  # its ID belongs to another process, so its session has no members
        return session_of(self.process.pid)

    def give_up(self) -> None:
        """Release the program, running or not, so that another process can own it."""
        self._watch.cancel()
        self.log_output()
        self._lock.give_up()

    async def _wait(self) -> None:
        await _exit_of(self.process)
        if self._ours:
            with suppress(ChildProcessError):  # other code in this process has waited for all children
                _, status = os.waitpid(self.process.pid, 0)  # noqa: ASYNC222 - it has exited
                self._code = os.waitstatus_to_exitcode(status)
        self._gone.set()
        self.log_output()
        self._ended(self)


def start_program(command: Sequence[str], environment: Mapping[str, str], mark: Path, output: ProgramOutput) -> int:
    """Start a program in its own session, so that it outlives this process; return its process ID.

    Raises:
        OSError: it cannot be started.
        ValueError: the command is empty, or an argument or variable contains a NUL.
    """
    with output.open() as descriptor:
        return os.posix_spawnp(
            command[0] if command else "",
            list(command),
            {**os.environ, **environment, MARK: str(mark)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, descriptor, 1),
                (os.POSIX_SPAWN_DUP2, descriptor, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGTERM, signal.SIGINT),
        )


async def _exit_of(process: RunningProcess) -> None:
    """Wait until a process has exited, whether or not it is a child."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:  # it is gone; or a kernel without pidfd_open(2), or a sandbox that forbids it
        while identify(process.pid) == process:  # noqa: ASYNC110 - no notification exists
            await asyncio.sleep(_POLL)
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        if identify(process.pid) == process:  # otherwise another process has its ID by now
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


MARK: Final = "DRA_KIT_CHILD"
"""The environment variable by which a program is found that was started but not recorded."""
_PROC: Final = Path("/proc")
_EXEC_LOOKS: Final = 5
_EXEC_PAUSE: Final = 0.01  # seconds; during execve(2) a process has no environment
_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD of the kernel's sched.h: kernel threads never have an environment


def identify(pid: int) -> RunningProcess | None:
    """Return the process with that ID; None if there is none, or if it is a zombie."""
    fields = _stat(pid)
    if fields is None or fields[0] in {"Z", "X"}:
        return None
    return RunningProcess(pid, int(fields[19]))


def is_running(process: RunningProcess) -> bool:
    """Return whether exactly that process runs: its ID may belong to another one by now."""
    return identify(process.pid) == process


def session_of(pid: int) -> list[int]:
    """Return the processes of the session that a process leads or led, including itself while it runs."""
    return [other for other in _all() if (fields := _stat(other)) and int(fields[3]) == pid and fields[0] != "Z"]


def find_marked(path: Path) -> list[RunningProcess]:
    """Return the session leaders whose mark is this path or a path below it, oldest first.

    Blocks for a short time while a process executes execve(2). Any user can give such a mark to a process. Environments
    that cannot be read are skipped.
    """
    found, pids = [], list(_all())
    exact, below = f"{MARK}={path}".encode(), f"{MARK}={path}/".encode()
    for _ in range(_EXEC_LOOKS):
        starting = []
        for pid in pids:
            with suppress(OSError):
                environment = (_PROC / str(pid) / "environ").read_bytes()
                fields = _stat(pid)
                if not environment and fields is not None and _is_program(fields):
                    starting.append(pid)
                if not any(item == exact or item.startswith(below) for item in environment.split(b"\0")):
                    continue
                process = identify(pid)
                if fields is not None and process is not None and int(fields[3]) == pid:
                    found.append(process)
        if not (pids := starting):
            break
        time.sleep(_EXEC_PAUSE)
    return sorted(found, key=lambda process: process.started)


def reap_orphans(sessions: Collection[int]) -> int:
    """Read the exit status of orphans in these sessions, and return how many there were.

    PID 1 inherits the orphans of programs. Processes that the author's code started itself are in other sessions, and
    that code waits for them.
    """
    me, reaped = str(os.getpid()), 0
    for pid in _all():
        fields = _stat(pid)
        if fields is None or fields[0] != "Z" or fields[1] != me:
            continue
        if int(fields[3]) in sessions and pid not in sessions:
            with suppress(ChildProcessError):
                reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
    return reaped


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that has exited is ignored."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_program(fields: list[str]) -> bool:
    return fields[0] not in {"Z", "X"} and not int(fields[6]) & _KERNEL_THREAD


def _all() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _stat(pid: int) -> list[str] | None:
    """Return state, parent, group, session, … of proc_pid_stat(5), starting at its third field."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the program's name, in parentheses, may contain anything


LARGEST: Final = 1 << 20
"""Bytes after which the file is truncated: its lines are in the log by then, except those above :data:`LINES_MAX`."""
LINE_MAX: Final = 2000
LINES_MAX: Final = 500
"""Maximum lines of one check: a program that writes more would flood the log and delay all other programs."""
_READ: Final = 1 << 18  # maximum bytes of one check, likewise


class ProgramOutput:
    """A program's output file, read from where the last check ended.

    Args:
        path: of the file; created if missing, readable by its owner only. Existing content was logged by an earlier
            process, or belongs to an earlier program.
        written: whether this program, not an earlier one, wrote the content.
    """

    def __init__(self, path: Path, *, written: bool) -> None:
        self._path = path
        with self.open() as descriptor:
            self._offset = os.fstat(descriptor).st_size
        self._rest = b""
        self._last: deque[str] = deque(maxlen=1)
        if written:
            self._last.extend(self._lines_of_old()[-1:])

    @contextmanager
    def open(self) -> Iterator[int]:
        """Open the file for appending, for a program or for reading on; yield its descriptor."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @property
    def last(self) -> str:
        """The last line, empty if there is none."""
        return self._last[-1] if self._last else _text(self._rest)

    def lines(self) -> list[str]:
        """Return the lines since the last check; an incomplete line waits until it is complete or too long."""
        with self.open() as descriptor:
            size = os.fstat(descriptor).st_size
            if size < self._offset:  # another process has truncated it
                self._offset = 0
            passed_over = max(0, size - self._offset - _READ)
            self._offset += passed_over
            block = os.pread(descriptor, _READ, self._offset)
            self._offset += len(block)
            if self._offset > LARGEST:
                os.ftruncate(descriptor, 0)  # the program appends, so it continues at the beginning
                self._offset = 0
        if passed_over:
            self._rest = b""
            _, _, block = block.partition(b"\n")  # the rest of a line whose beginning was skipped
        *whole, self._rest = (self._rest + block).split(b"\n")
        found = [text for line in whole if (text := _text(line))]
        if len(self._rest) > LINE_MAX:
            found.append(_text(self._rest))
            self._rest = b""
        self._last.extend(found[-1:])
        if passed_over or len(found) > LINES_MAX:
            more = f"{passed_over} bytes and {max(0, len(found) - LINES_MAX)} lines more, not logged"
            found[:-LINES_MAX] = [more]
        return found

    def rest(self) -> list[str]:
        """Return what is left when the program has exited, including an incomplete last line."""
        found = self.lines()
        if text := _text(self._rest):
            found.append(text)
            self._last.append(text)
        self._rest = b""
        return found

    def _lines_of_old(self) -> list[str]:
        with self.open() as descriptor:
            block = os.pread(descriptor, _READ, max(0, self._offset - _READ))
        return [text for line in block.split(b"\n") if (text := _text(line))]


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()[:LINE_MAX]
