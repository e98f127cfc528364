"""``ChildProcess``: a program that runs as long as a claim needs it, as an effect."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, final

from pydantic import PrivateAttr

from dra_kit.author.calls import call
from dra_kit.author.effect import Effect
from dra_kit.author.model import HardwareT
from dra_kit.errors import ConfigurationError, NotYet


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """The outcome of a :class:`ChildProcess`.

    Attributes:
        pid: its process ID, as the driver sees it.
        started: when it was started, in clock ticks since boot (field 22 of proc_pid_stat(5)). Together with the
            process ID it identifies the process uniquely within this boot.
    """

    pid: int
    started: int


class ChildRunner(Protocol):
    """Starts, finds and stops programs; the node role and ``dra_kit.testing`` implement it."""

    async def start(self, child: ChildProcess[Any]) -> RunningProcess:
        """Find the program if it still runs; otherwise call its ``clear`` and start it.

        Raises:
            PrepareError: it cannot be started, or exited immediately.
        """
        ...

    async def runs(self, child: ChildProcess[Any], process: RunningProcess) -> bool:
        """Return whether this exact process still runs."""
        ...

    async def is_ready(self, child: ChildProcess[Any], *, ready: bool) -> str:
        """Record whether the program is ready; return the last output it wrote, empty if there is none.

        Raises:
            TransientError: it is not ready, and has exited.
        """
        ...

    async def end(self, child: ChildProcess[Any], *, hangs: bool = False) -> None:
        """Stop the program, no matter which process started it; do nothing if it does not run.

        Args:
            child: the effect.
            hangs: it does not respond, so its own ``stop`` is skipped.

        Raises:
            TransientError: it belongs to the driver's other process, which has not stopped it in time.
        """
        ...


class ChildProcess(Effect[RunningProcess, HardwareT]):
    """A foreground program, such as a daemon that shares a device, supervised as an effect::

        class MpsDaemon(dra.ChildProcess, id="mps"):
            gpu: str

            def keys(self) -> list[str]:
                return [f"gpu/{self.gpu}/sharing"]

            def command(self) -> list[str]:
                return ["nvidia-cuda-mps-control", "-f"]

            def environment(self) -> dict[str, str]:
                return {"CUDA_MPS_PIPE_DIRECTORY": f"/run/mps/{self.gpu}"}

            def ready(self) -> bool:
                return Path(f"/run/mps/{self.gpu}/control").exists()

    It is started once for all claims that ensure it, in its own session, with /dev/null as its input. Its output goes
    to the driver's log. ``prepare`` continues when ``ready`` returns True. If it exits by itself, it is started
    again, and claims that use it get an Event. It survives a killed driver, and the next process finds it. During a
    rolling update one of the two processes owns it and the other takes it over. In a container it stops with the
    container: the driver in the replacement pod starts it again. When the last claim is released, ``stop`` is called.
    If the program has not exited within ``end_within`` seconds it gets SIGTERM, and after the same time again SIGKILL,
    together with everything it started in its session.

    ``keys()`` identifies it: one program for each set of keys.
    """

    end_within: ClassVar[float] = 10.0
    _runner: ChildRunner | None = PrivateAttr(default=None)

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the program, by its path or its name on PATH, and its arguments; it must stay in the foreground."""

    def environment(self) -> Mapping[str, str]:
        """Return variables to add to the driver's own environment for the program."""
        return {}

    def ready(self) -> bool | Awaitable[bool]:
        """Return whether the program is ready; by default as soon as it runs. Called again until it returns True."""
        return True

    def alive(self) -> bool | Awaitable[bool]:
        """Return whether the running program still works; called when ``holds`` is, and True by default.

        A hung program still has a process, so send it a request. False: it is stopped and started again. An exception
        means that its state is unknown, and changes nothing.
        """
        return True

    def stop(self) -> bool | Awaitable[bool]:
        """Ask the program to exit through its own interface, if it has one; return whether it was asked and will exit.

        Called before SIGTERM if the program is ready and does not hang; by default it does nothing. The call and the
        exit of the program share ``end_within`` seconds. An exception is logged, and SIGTERM follows immediately.
        """
        return False

    def clear(self) -> Awaitable[None] | None:
        """Remove what a killed program leaves behind: a socket, a PID file, anything ``ready`` checks.

        Called before each start, and after the program was stopped; by default it does nothing.
        """

    def log_level(self, line: str) -> int:
        """Return the level at which a line of its output is logged, as in :mod:`logging`; by default INFO.

        Return DEBUG for lines that it writes repeatedly in normal operation, such as each time ``alive`` queries it.
        """
        del line
        return logging.INFO

    def with_runner(self, runner: ChildRunner) -> Self:
        """Return the same effect run by this runner; the framework calls it."""
        bound = self.model_copy()
        bound._runner = runner  # noqa: SLF001 - of the same class
        return bound

    @final
    async def apply(self, previous: RunningProcess | None) -> RunningProcess:
        """Find or start the program and wait until it is ready; stop it first if it runs but no longer works."""
        runner = self._run_by()
        process = await runner.start(self)  # a running program is found by its keys
        if process == previous and not await call(self.alive):
            await runner.end(self, hangs=True)
            process = await runner.start(self)
        ready = await call(self.ready)
        words = await runner.is_ready(self, ready=ready)
        if not ready:
            raise NotYet(f"{self.title()} is not ready yet" + (f"; it says: {words}" if words else ""))
        return process

    @final
    async def holds(self, outcome: RunningProcess) -> bool:
        """Return whether the process is still the one that was started, and works."""
        return await self._run_by().runs(self, outcome) and await call(self.alive)

    @final
    async def revert(self, outcome: RunningProcess | None) -> None:
        """Stop the program."""
        del outcome
        await self._run_by().end(self)
        await call(self.clear)

    def _run_by(self) -> ChildRunner:
        if self._runner is None:
            raise ConfigurationError(
                f"effect {type(self).__name__}: nothing runs its program; ensure it in prepare, in a test with "
                "dra_kit.testing.unit"
            )
        return self._runner
