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
        started: when it was started, in clock ticks since boot (field 22 of proc_pid_stat(5)): with the process ID it
            tells one process from every other of this boot.
    """

    pid: int
    started: int


class ChildRunner(Protocol):
    """Starts, finds and ends programs; the node role and ``dra_kit.testing`` implement it."""

    async def start(self, child: ChildProcess[Any]) -> RunningProcess:
        """Find the program where it still runs, else call its ``clear`` and start it.

        Raises:
            PrepareError: it cannot be started, or has ended at once.
        """
        ...

    async def runs(self, child: ChildProcess[Any], process: RunningProcess) -> bool:
        """Return whether that very process still runs."""
        ...

    async def is_ready(self, child: ChildProcess[Any], *, ready: bool) -> str:
        """Note whether the program can be used; what it wrote last, empty when that is nothing.

        Raises:
            TransientError: it is not ready, and has ended.
        """
        ...

    async def end(self, child: ChildProcess[Any], *, hangs: bool = False) -> None:
        """End the program, wherever it came from; nothing to do where it does not run.

        Args:
            child: the effect.
            hangs: it does not answer, and is not asked.

        Raises:
            TransientError: it belongs to the driver's other process, which has not ended it in time.
        """
        ...


class ChildProcess(Effect[RunningProcess, HardwareT]):
    """A program in the foreground, such as a daemon that shares a device, supervised as an effect::

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

    It is started once for all claims that ensure it, in a session of its own, with /dev/null as its input; what it
    writes stands in the driver's log. ``prepare`` goes on when ``ready`` says so. When it ends by itself it is started
    again, and claims that use it get an Event. It outlives a killed driver, and is found again by the next process; of
    two processes in a rolling update one owns it and the other takes it over. In a container it ends with the
    container: the replaced pod's driver starts it anew. When the last claim is released ``stop`` is called; the program
    gets SIGTERM when that did not end it within ``end_within`` seconds, after as many seconds SIGKILL, and what it
    started in its session with it.

    ``keys()`` names it: one program for a set of keys.
    """

    end_within: ClassVar[float] = 10.0
    _runner: ChildRunner | None = PrivateAttr(default=None)

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the program, by its path or its name on PATH, and its arguments; it must stay in the foreground."""

    def environment(self) -> Mapping[str, str]:
        """Return variables to add to those of the driver's own environment."""
        return {}

    def ready(self) -> bool | Awaitable[bool]:
        """Return whether the program can be used; by default as soon as it runs. Asked again until it says yes."""
        return True

    def alive(self) -> bool | Awaitable[bool]:
        """Return whether the program, which runs, still works; asked as ``holds`` is, and by default not doubted.

        A program that hangs is a process like any other: ask it something. False: it is ended and started anew. An
        exception means that it is not known, and changes nothing.
        """
        return True

    def stop(self) -> bool | Awaitable[bool]:
        """Ask the program to end in its own words, where it has such; whether it was asked, and so ends by itself.

        Called before SIGTERM where the program is ready and does not hang; by default it is not asked. It has
        ``end_within`` seconds, together with the program's end. An exception is logged, and SIGTERM follows at once.
        """
        return False

    def clear(self) -> Awaitable[None] | None:
        """Remove what a program that was killed leaves: a socket, a PID file, whatever ``ready`` looks at.

        Called before each start, and when the program has been ended; by default nothing.
        """

    def log_level(self, line: str) -> int:
        """Return the level at which a line of its output is logged, as :mod:`logging` counts; by default INFO.

        DEBUG is for what it writes again and again while all is well, such as whenever ``alive`` asks it.
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
        """Find or start the program and wait until it is ready; end it before where it runs and works no more."""
        runner = self._run_by()
        process = await runner.start(self)  # one that runs is found by its keys
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
        """Return whether it still is the process that was started, and works."""
        return await self._run_by().runs(self, outcome) and await call(self.alive)

    @final
    async def revert(self, outcome: RunningProcess | None) -> None:
        """End the program."""
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
