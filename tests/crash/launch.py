"""``dra-kit node`` in a process that kills itself where it is told to: after a step, or before a change of a file."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

# what every process loads is loaded once, in the server that the processes are forked from
import dra_kit.cli.node
import dra_kit.kube.operator
import dra_kit.node.agent
import dra_kit.node.handlers
from dra_kit import cli
from dra_kit.node import settings, steps

FILE_CHANGE = "change of a file"
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "open"}

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


@dataclass(frozen=True, slots=True)
class Crash:
    """Where the process ends: at the ``count``-th time, from when it is told, that something happens.

    Attributes:
        at: a step, or ``FILE_CHANGE``: just before a file is made, renamed or removed.
        count: 1 for the first time.
    """

    at: str
    count: int = 1


class NodeProcess:
    """One process of the node role.

    Args:
        directory: where its log, its plan and its last words are.
        arguments: of ``dra-kit node``.
        pod_uid: its pod's.
        environment: further variables.
        watched: the directory in which changes of files count.
        boot_id: the file that tells one boot from another.
        further: fields of ``NodeSettings``, whatever the flags say.
    """

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        pod_uid: str,
        watched: Path,
        boot_id: Path,
        further: Mapping[str, float] | None = None,
    ) -> None:
        directory.mkdir()
        self.pod_uid = pod_uid
        self._directory = directory
        self._plans = 0
        self._process = ForkServerProcess(
            target=_run,
            args=(
                directory,
                [*arguments, "--pod-uid", pod_uid],
                dict(environment),
                watched,
                {"boot_id": boot_id, **(further or {})},
            ),
            daemon=True,
        )

    def start(self, crash: Crash | None) -> None:
        self.arm(crash)
        self._process.start()

    def arm(self, crash: Crash | None) -> None:
        """From now on end there, or nowhere; what was planned before is forgotten."""
        plan = self._directory / "plan"
        self._plans += 1  # tells it from one that is alike, or has its inode
        text = json.dumps({"plan": self._plans, **({"at": crash.at, "count": crash.count} if crash else {})})
        fresh = plan.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(plan)

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    @property
    def crashed_at(self) -> str:
        """Where it ended itself, empty when it did not."""
        path = self._directory / "crashed"
        return path.read_text() if path.exists() else ""

    def log(self) -> str:
        path = self._directory / "log"
        return path.read_text() if path.exists() else ""

    def send(self, number: signal.Signals) -> None:
        if self._process.pid is not None and self.alive:
            os.kill(self._process.pid, number)

    def join(self) -> None:
        self._process.join()

    def close(self) -> None:
        self.send(signal.SIGKILL)
        self._process.join()
        self._process.close()


class _Killer:
    """Counts down in whatever thread something happens."""

    def __init__(self, directory: Path, watched: Path) -> None:
        self._directory = directory
        self._watched = f"{watched}/"
        self._lock = threading.RLock()
        self._known = 0
        self._at = ""
        self._left = 0

    def step(self, step: steps.Step) -> None:
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


def _run(
    directory: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    watched: Path,
    further: Mapping[str, Any],
) -> None:
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(environment)
    # no flags: nobody but a test has another kernel than the one that runs, or another kubelet's patience
    vars(dra_kit.cli.node)["NodeSettings"] = lambda **given: settings.NodeSettings(**{**given, **further})
    killer = _Killer(directory, watched)
    steps.listen(killer.step)
    sys.addaudithook(killer.audit)
    sys.argv = ["dra-kit", "node", *arguments]
    cli.main()
