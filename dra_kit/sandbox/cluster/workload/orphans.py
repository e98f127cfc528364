"""Container processes that outlived their sandbox: both it and its reaper were killed.

The kernel then kills the main processes of the containers, but not what those have started. All of them have the mark
of their sandbox in their environment, where it stays whatever group, session or parent they move to.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_kit.sandbox.cluster.workload.handle import ProcessHandle

MARK_VARIABLE: Final = "DRA_KIT_SANDBOX_MARK"
"""Environment of every container process: a random text that nothing but its sandbox has."""

_PATIENCE_SECONDS: Final = 5.0  # a process that hangs in the kernel does not even heed SIGKILL


def end_orphans(marks: Collection[str]) -> int:
    """Kill every process that has one of the marks, wait until they are gone, and tell how many there were."""
    entries = {f"{MARK_VARIABLE}={mark}".encode() for mark in marks}
    killed: set[int] = set()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    # again until there are none: they may start others meanwhile
    while time.monotonic() < deadline:
        ended = [process for process in _marked(entries) if _kill(process, entries, deadline)]
        if not ended:
            break
        killed.update(ended)
    return len(killed)


def _marked(entries: Collection[bytes]) -> Iterator[int]:
    own = os.getpid()  # it may have been started in a container of that sandbox
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != own and _has_mark(int(directory.name), entries):
            yield int(directory.name)


def _has_mark(process: int, entries: Collection[bytes]) -> bool:
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False  # somebody else's, or gone
    return any(entry in entries for entry in environment.split(b"\0"))


def _kill(process: int, entries: Collection[bytes], deadline: float) -> bool:
    """Kill a process unless it is another by now, and wait for its end; whether it was killed."""
    with suppress(OSError), ProcessHandle(process) as found:
        if _has_mark(process, entries):
            found.end(signal.SIGKILL, deadline - time.monotonic())
            return True
    return False
