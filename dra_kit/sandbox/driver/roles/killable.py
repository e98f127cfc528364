"""A process of a driver that can be killed as by ``kill -9``: from outside, or by itself after a step."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_kit.node.failpoints import Failpoint, set_listener

_SAFE_PATH: Final = "PYTHONSAFEPATH"
FILE_CHANGE: Final = "change of a file"
_CHANGES: Final = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "open"}
# what every process loads is loaded once, in the server that the processes are forked from
_LOADED: Final = [
    "dra_kit.cli.roles.node",
    "dra_kit.client.operator",
    "dra_kit.node.agent",
    "dra_kit.node.slice_handlers",
    __name__,
]


class Crash(Struct, frozen=True):
    """Where a process ends: at the ``count``-th time, from the command on, that something happens.

    Attributes:
        at: a step, or ``FILE_CHANGE``: just before a file is made, renamed or removed.
        count: 1 for the first time.
    """

    at: str
    count: int = 1


class KillableProcess:
    """One process of the node role.

    Args:
        directory: made; where its plan and its last words are.
        work: what it does until it ends; pickled.
        watched: the directory in which changes of files count; None for nowhere.
    """

    def __init__(self, directory: Path, work: Callable[[], object], *, watched: Path | None = None) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._plans = 0
        multiprocessing.set_forkserver_preload(_LOADED)
        kept = _SAFE_PATH in os.environ
        self._process = ForkServerProcess(target=_run, args=(directory, work, watched, kept), daemon=True)

    def start(self, crash: Crash | None = None) -> None:
        """Start it; with a crash on the way, perhaps."""
        self.arm(crash)
        with _safe_path():
            self._process.start()

    def arm(self, crash: Crash | None) -> None:
        """Crash there from now on, or nowhere; what was planned before is forgotten."""
        plan = self._directory / "plan"
        self._plans += 1  # tells it from one that is alike, or has its inode
        text = json.dumps({"plan": self._plans, **({"at": crash.at, "count": crash.count} if crash else {})})
        fresh = plan.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(plan)

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """0, or the signal's number below zero; None while it lives."""
        return self._process.exitcode

    @property
    def crashed_at(self) -> str:
        """Where it ended itself; empty when it did not."""
        path = self._directory / "crashed"
        return path.read_text() if path.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it has not ended."""
        if self._process.pid is not None and self.alive:
            os.kill(self._process.pid, number)

    def join(self) -> None:
        """Wait until it has ended."""
        self._process.join()

    def close(self) -> None:
        """End it, and give up what is known of it."""
        self.send(signal.SIGKILL)
        self._process.join()
        self._process.close()


class _Killer:
    """Counts down in whatever thread something happens."""

    def __init__(self, directory: Path, watched: Path | None) -> None:
        self._directory = directory
        self._watched = f"{watched}/"
        self._lock = threading.RLock()
        self._known = 0
        self._at = ""
        self._left = 0

    def step(self, step: Failpoint) -> None:
        self._happened(step.value)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CHANGES or not str(arguments[0]).startswith(self._watched):
            return
        if event == "open" and not arguments[2] & os.O_CREAT:
            return
        self._happened(FILE_CHANGE)

    def _happened(self, what: str) -> None:
        with self._lock:
            self._look()
            if what == self._at:
                self._left -= 1
                if not self._left:
                    (self._directory / "crashed").write_text(what)
                    os.kill(os.getpid(), signal.SIGKILL)

    def _look(self) -> None:
        given = json.loads((self._directory / "plan").read_text())
        if given["plan"] != self._known:
            self._known = given["plan"]
            self._at, self._left = given.get("at", ""), given.get("count", 0)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Start Python without the working directory as a place of imports: the server of forks is started by ``-c``."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _run(directory: Path, work: Callable[[], object], watched: Path | None, safe_path: bool) -> None:
    if not safe_path:
        os.environ.pop(_SAFE_PATH, None)  # what the driver starts is the driver's
    killer = _Killer(directory, watched)
    set_listener(killer.step)
    if watched is not None:
        sys.addaudithook(killer.audit)
    work()
