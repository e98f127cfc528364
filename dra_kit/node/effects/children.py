"""All programs that this process owns; see :class:``dra_kit.ChildProcess`` for their lifecycle."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from dra_kit.author.calls import call
from dra_kit.author.effect import ChildProcess, RunningProcess
from dra_kit.errors import NotYet, StoreError, TransientError
from dra_kit.node.effects.classes import title_of
from dra_kit.node.effects.program import (
    Program,
    ProgramOutput,
    find_marked,
    identify,
    is_running,
    reap_orphans,
    start_program,
)
from dra_kit.node.effects.unrecorded import EffectMark
from dra_kit.node.locks import HeldLock, NamedLocks
from dra_kit.node.state.records import EffectRecord

logger: logging.Logger = logging.getLogger(__name__)
LOOK_EVERY: Final = 1.0
"""Seconds between two checks for program output, and for requests of another process to terminate a program."""
# suffixes of the files of a program: its output, a request to terminate it, its secret mark, its effect and claims
_OUTPUT, _ORDER, _MARK, _EFFECT = ".log", ".end", ".mark", ".effect"
_ORDER_WAIT: Final = 5.0  # seconds for the other process, in addition to the program's own time limit


class ChildProcesses:
    """A part of the node process, and the :class:`dra_kit.author.effect.ChildRunner` of its effects.

    Args:
        directory: for output and termination requests, shared by the driver's processes; part of each mark.
        locks: determine which process owns a program.
        environment: variables for every program, in addition to its own.
        calm: seconds that a program must have run to be restarted at once; otherwise it waits for the next check.
    """

    name = "children"

    def __init__(
        self,
        directory: Path,
        locks: NamedLocks,
        *,
        environment: Mapping[str, str] | None = None,
        records: Callable[[], Sequence[EffectRecord]] = tuple,
        calm: float = 10.0,
    ) -> None:
        self._directory = directory
        self._locks = locks
        self._ended: Callable[[], None] | None = None
        self._environment = dict(environment or {})
        self._records = records
        self._calm = calm
        self._programs: dict[str, Program] = {}
        self._described: dict[str, str] = {}  # the description written for each program
        self._sessions: set[int] = set()  # of all programs ever owned here, while PID 1 may have to reap in them

    def listen(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` when a program has exited by itself, so that effects are verified again."""
        self._ended = ended

    # -- for effects

    async def start(self, child: ChildProcess[Any]) -> RunningProcess:
        """See :class:`dra_kit.author.effect.ChildRunner`."""
        name = _name(child)
        program = self._programs.get(name)
        if program is not None:
            if program.runs:
                return program.process
            await self._forget(name, program)
            if not program.ready:
                raise self._ended_early(child, program)
        lock = self._locks.try_hold(name)
        if not await lock.take():
            raise NotYet(f"{title_of(child)} belongs to the driver's other process, which must restart it")
        try:
            program = await self._find(child, lock)
            if program is None:
                await call(child.clear)
                program = self._start(child, lock)
            self._path(name, _ORDER).unlink(missing_ok=True)  # it was for the previous program
        except BaseException:
            lock.give_up()
            raise
        self._own(name, program)
        return program.process

    async def runs(self, child: ChildProcess[Any], process: RunningProcess) -> bool:
        """See :class:`dra_kit.author.effect.ChildRunner`."""
        name = _name(child)
        program = self._programs.get(name)
        if program is not None:
            with suppress(OSError):  # only needed if the records are lost; the next check retries
                self._describe(name, child)
            return program.process == process and program.runs
        lock = self._locks.try_hold(name)
        if not await lock.take():
            return True  # the other process owns it and supervises it
        if is_running(process):
            try:
                self._own(name, self._taken_over(child, process, lock))
            except BaseException:
                lock.give_up()
                raise
            self._path(name, _ORDER).unlink(missing_ok=True)
            logger.info("program taken over", extra={"program": title_of(child), "pid": process.pid})
            return True
        lock.give_up()
        return False

    async def is_ready(self, child: ChildProcess[Any], *, ready: bool) -> str:
        """See :class:`dra_kit.author.effect.ChildRunner`."""
        program = self._programs.get(_name(child))
        if program is None:
            return ""
        if not program.runs:  # even if something looks ready
            await self._forget(_name(child), program)
            raise self._ended_early(child, program)
        program.ready = program.ready or ready
        return program.last_line

    async def end(self, child: ChildProcess[Any], *, hangs: bool = False) -> None:
        """See :class:`dra_kit.author.effect.ChildRunner`."""
        name = _name(child)
        program = self._programs.pop(name, None)
        if program is None:
            lock = await self._owned_to_end(child, name)
            try:
                program = await self._find(child, lock)
            except BaseException:
                lock.give_up()
                raise
            if program is None:
                lock.give_up()
        if program is not None and not await self._end(name, program, hangs=hangs):
            raise TransientError(
                f"{title_of(child)} does not exit, even after SIGKILL: process {program.process.pid} hangs in the "
                "kernel; termination is retried; a reboot also terminates it",
                code="child-hangs",
            )
        for suffix in (_OUTPUT, _ORDER, _MARK, _EFFECT):
            self._path(name, suffix).unlink(missing_ok=True)
        self._described.pop(name, None)

    async def found(self) -> list[EffectMark]:
        """See :class:`dra_kit.node.effects.unrecorded.EffectFinder`: finds running programs by their mark."""
        marks = []
        for path in sorted(self._directory.glob(f"*{_EFFECT}")):
            try:
                mark, secret = EffectMark.read(path.read_bytes()), self._mark(path.name.removesuffix(_EFFECT))
            except FileNotFoundError:  # it has just been terminated
                continue
            except OSError as error:
                raise StoreError(f"{path} cannot be read: {error.strerror}; check the disk (--state-dir)") from error
            running = [] if secret is None else await asyncio.to_thread(find_marked, secret)
            if mark is not None and running:
                marks.append(mark)
        return marks

    # -- as a part of the process

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; programs survive the process, unless it is PID 1."""
        ready.set()
        alone = os.getpid() == 1  # the kernel kills everything in the container with this process
        try:
            while True:
                for name, program in list(self._programs.items()):
                    program.log_output()
                    if self._programs.get(name) is program and self._is_ordered(name):
                        await self._end_by_order(name, program)
                if alone and self._sessions:
                    await asyncio.to_thread(reap_orphans, self._sessions)
                await asyncio.sleep(LOOK_EVERY)
        finally:
            if alone:
                await self.end_all()
            while self._programs:
                self._programs.popitem()[1].give_up()

    async def end_all(self) -> None:
        """Terminate all programs that this process owns, with their child processes."""
        owned = dict(self._programs)
        self._programs.clear()
        await asyncio.gather(*(self._end(name, program) for name, program in owned.items()))

    # -- internals

    def _own(self, name: str, program: Program) -> None:
        self._programs[name] = program
        self._sessions.add(program.process.pid)

    async def _forget(self, name: str, program: Program) -> None:
        """Forget a program that has exited, with its whole session."""
        await program.end_session()
        if self._programs.get(name) is program:  # last: if this is cut off before, the program is still found here
            del self._programs[name]
            program.give_up()

    async def _find(self, child: ChildProcess[Any], lock: HeldLock) -> Program | None:
        """Return the program that an earlier process started, found by its mark; it may have no record."""
        mark = self._mark(_name(child))
        found = await asyncio.to_thread(find_marked, mark) if mark is not None else []
        if not found:
            return None
        logger.info("program found again", extra={"program": title_of(child), "pid": found[0].pid})
        return self._taken_over(child, found[0], lock)

    def _start(self, child: ChildProcess[Any], lock: HeldLock) -> Program:
        """Start a program synchronously, as asyncio does: after an interruption, no process would own the program."""
        name = _name(child)
        command = list(child.command())
        environment = {**self._environment, **child.environment()}
        secret = secrets.token_hex(16)
        mark = self._directory / name / secret
        try:
            output = self._output(name, written=False)
            self._path(name, _MARK).touch(mode=0o600)
            self._path(name, _MARK).write_text(secret)
            self._describe(name, child)
        except OSError as error:
            raise StoreError(
                f"{title_of(child)}: {self._directory} cannot be written: {error.strerror or error}; check that the "
                "disk is writable and not full (--state-dir)"
            ) from error
        try:
            pid = start_program(command, environment, mark, output)
        except (OSError, ValueError, TypeError, IndexError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise TransientError(
                f"{title_of(child)}: program {command[0] if command else ''!r} cannot be started: {why}; correct "
                f"{type(child).__name__}.command, or put the program into the driver's image",
                code="child-not-started",
            ) from error
        process = identify(pid) or RunningProcess(pid, 0)  # it may have exited already
        logger.info("program started", extra={"program": title_of(child), "pid": pid, "command": command})
        return self._program(child, process, lock, output=output, ours=True)

    def _taken_over(self, child: ChildProcess[Any], process: RunningProcess, lock: HeldLock) -> Program:
        return self._program(child, process, lock, output=self._output(_name(child), written=True), ours=False)

    def _output(self, name: str, *, written: bool) -> ProgramOutput:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return ProgramOutput(self._path(name, _OUTPUT), written=written)

    def _program(
        self, child: ChildProcess[Any], process: RunningProcess, lock: HeldLock, *, output: ProgramOutput, ours: bool
    ) -> Program:
        return Program(
            title_of(child), process, ours=ours, end_within=child.end_within, output=output, lock=lock,
            ended=self._has_ended, stop=partial(call, child.stop), level=child.log_level,
        )  # fmt: skip

    def _has_ended(self, program: Program) -> None:
        if program not in self._programs.values():
            return  # it was terminated
        logger.warning(
            "program has exited",
            extra={"program": program.title, "pid": program.process.pid, "how": program.exit_text()},
        )
        if self._ended is not None and program.ready and time.monotonic() - program.since >= self._calm:
            self._ended()

    def _ended_early(self, child: ChildProcess[Any], program: Program) -> TransientError:
        output = f"; its last output: {program.last_line}" if program.last_line else ""
        return TransientError(
            f"{title_of(child)} {program.exit_text()} before it was ready{output}; it is restarted when the kubelet "
            "asks again",
            code="child-ended",
        )

    async def _end(self, name: str, program: Program, *, hangs: bool = False) -> bool:
        """Return whether the program is gone; otherwise this process still owns it."""
        gone = False
        try:
            gone = await program.end(hangs=hangs)
        finally:
            if not gone:
                self._own(name, program)
        if gone:
            program.give_up()
            logger.info("program terminated", extra={"program": program.title, "pid": program.process.pid})
        return gone

    async def _end_by_order(self, name: str, program: Program) -> None:
        """Terminate a program for the driver's other process, which has released the last claim."""
        self._path(name, _ORDER).unlink(missing_ok=True)  # it must not affect the next program of that name
        del self._programs[name]
        await self._end(name, program)

    def _is_ordered(self, name: str) -> bool:
        return os.path.lexists(self._path(name, _ORDER))

    async def _owned_to_end(self, child: ChildProcess[Any], name: str) -> HeldLock:
        """Return the lock of a program once the other process has terminated it.

        Raises:
            TransientError: the other process has not done so in time.
        """
        lock = self._locks.try_hold(name)
        if await lock.take():
            return lock
        self._path(name, _ORDER).touch(mode=0o600)
        lock = self._locks.hold(name)
        try:
            async with asyncio.timeout(2 * child.end_within + _ORDER_WAIT):
                await lock.take()
        except TimeoutError:
            raise TransientError(
                f"{title_of(child)} belongs to the driver's other process on this node, which has not yet "
                "terminated it; termination is retried",
                code="child-hangs",
            ) from None
        return lock

    def _mark(self, name: str) -> Path | None:
        """Return the mark of the program started last; it contains a secret, since any user can copy a plain mark."""
        try:
            return self._directory / name / (self._path(name, _MARK).read_text() or "none")
        except FileNotFoundError:
            return None

    def _path(self, name: str, suffix: str) -> Path:
        return self._directory / f"{name}{suffix}"

    def _describe(self, name: str, child: ChildProcess[Any]) -> None:
        """Write a file beside the program with its effect and the claims that need it, in case the record is lost."""
        wanted = (child.effect_id, {*child.keys()})
        record = next((item for item in self._records() if (item.effect, {*item.keys}) == wanted), None)
        text = "" if record is None else EffectMark.of(record).model_dump_json()
        if self._described.get(name) != text:
            self._path(name, _EFFECT).touch(mode=0o600)
            self._path(name, _EFFECT).write_text(text)
            self._described[name] = text


def _name(child: ChildProcess[Any]) -> str:
    """Return a name that every process can derive: it is made of the keys of the effect."""
    digest = hashlib.blake2b("\n".join([child.effect_id, *sorted(child.keys())]).encode(), digest_size=8).hexdigest()
    return f"{re.sub(r'[^a-z0-9-]', '-', child.effect_id.lower())[:40]}-{digest}"
