"""What /proc tells of processes: which one it is, which belong together, which have ended and wait."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_kit.author.effects.child_process import RunningProcess

MARK: Final = "DRA_KIT_CHILD"
"""The environment variable by which a program is found again that was started and not written down."""

_PROC: Final = Path("/proc")

_EXEC_LOOKS: Final = 5
_EXEC_PAUSE: Final = 0.01  # seconds; in the middle of execve(2) a process has no environment
_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD of the kernel's sched.h: these never have one


def identify(pid: int) -> RunningProcess | None:
    """Return the process of that ID; None where there is none, or only its exit status waits to be read."""
    fields = _stat(pid)
    if fields is None or fields[0] in {"Z", "X"}:
        return None
    return RunningProcess(pid, int(fields[19]))


def runs(process: RunningProcess) -> bool:
    """Return whether that very process runs: its ID may belong to another one by now."""
    return identify(process.pid) == process


def session_of(pid: int) -> list[int]:
    """Return the processes of the session that a process leads or led, itself among them while it runs."""
    return [other for other in _all() if (fields := _stat(other)) and int(fields[3]) == pid and fields[0] != "Z"]


def marked(path: Path) -> list[RunningProcess]:
    """Return leaders of sessions whose mark is this path or one below it, oldest first.

    Blocks for a moment where a process is just being executed. Anybody may give a process of his own that mark.
    Environments that may not be read are passed over.
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
    """Read the exit status of what programs in these sessions started and left; how many there were.

    Whoever is PID 1 inherits them. Processes that the author's code started itself are in other sessions, and that code
    waits for them.
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


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that has ended needs none."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_program(fields: list[str]) -> bool:
    return fields[0] not in {"Z", "X"} and not int(fields[6]) & _KERNEL_THREAD


def _all() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _stat(pid: int) -> list[str] | None:
    """Return state, parent, group, session, … of proc_pid_stat(5), from its third field on."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name of the program, in parentheses, may contain anything
