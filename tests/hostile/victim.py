"""Run an attacked command within hard limits, and measure its time and memory."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

DRA_KIT = (sys.executable, "-c", "from dra_kit.cli import main; main()")
_LIMIT_BYTES = 8 << 30  # a victim that needs more is killed


@dataclass(frozen=True)
class Outcome:
    """The result of a command; ``code`` is negative after a signal, ``mebibytes`` is the maximum resident memory."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    mebibytes: float


def dra_kit(*arguments: str | Path, directory: Path | None = None, limit: float = 60) -> Outcome:
    """Run ``dra-kit`` with arguments; kill it and fail after ``limit`` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr, mebibytes = (Path(folder, name) for name in ("stdout", "stderr", "mebibytes"))
        begin = time.monotonic()
        process = _copy(
            arguments, stdout=stdout, stderr=stderr, directory=directory, limit=_LIMIT_BYTES, mebibytes=mebibytes
        )
        process.join(limit)
        seconds = time.monotonic() - begin
        if process.exitcode is None:
            _end(process)
            raise AssertionError(f"dra-kit {arguments} still runs after {limit} s")
        return Outcome(
            process.exitcode,
            stdout.read_text(encoding="utf-8", errors="replace"),
            stderr.read_text(encoding="utf-8", errors="replace"),
            seconds,
            float(mebibytes.read_text(encoding="utf-8")) if mebibytes.exists() else math.inf,
        )


@contextmanager
def dra_kit_running(*arguments: str | Path, stderr: Path) -> Iterator[int]:
    """Run ``dra-kit`` until the block ends, and check that it has not exited before; yield its process ID."""
    process = _copy(arguments, stdout=Path(os.devnull), stderr=stderr)
    try:
        assert process.pid is not None
        yield process.pid
        assert process.exitcode is None
    finally:
        _end(process)


_IMPORTED = ["dra_kit.cli.lint", "dra_kit.cli.explain", "dra_kit.cli.roles", "dra_kit.diagnosis.explain.documents"]


def _copy(arguments: Sequence[str | Path], **how: Any) -> BaseProcess:
    """Start a command: a copy of a process that has imported the code of some commands and has done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    process = context.Process(target=_command, args=([*map(str, arguments)],), kwargs=how)
    process.start()
    return process


def _end(process: BaseProcess) -> None:
    process.kill()
    process.join()


def _command(
    arguments: list[str],
    *,
    stdout: Path,
    stderr: Path,
    directory: Path | None = None,
    limit: int | None = None,
    mebibytes: Path | None = None,
) -> None:
    """Be the command, in a process of its own.

    Args:
        arguments: of the command.
        stdout: a file for its output.
        stderr: a file for its messages.
        directory: where it runs.
        limit: bytes of memory that it can ask for.
        mebibytes: a file for the maximum of its resident memory, written at the end.
    """
    from dra_kit.cli import main

    if limit is not None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if directory is not None:
        os.chdir(directory)
    for number, file in ((1, stdout), (2, stderr)):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["dra-kit", *arguments]
    try:
        main()
    finally:
        if mebibytes is not None:
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            mebibytes.write_text(str(most), encoding="utf-8")


def run(
    command: Sequence[str],
    *,
    directory: Path | None = None,
    limit: float = 60,
) -> Outcome:
    """Run a command; kill it and fail after ``limit`` seconds."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        begin = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=directory,
        )
        resource.prlimit(process.pid, resource.RLIMIT_AS, (_LIMIT_BYTES, _LIMIT_BYTES))
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - begin > limit:
                process.kill()
                os.wait4(process.pid, 0)
                process.returncode = -9
                raise AssertionError(f"{command} still runs after {limit} s")
            time.sleep(0.01)
        process.returncode = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        return Outcome(
            process.returncode,
            stdout.read().decode(errors="replace"),
            stderr.read().decode(errors="replace"),
            time.monotonic() - begin,
            usage.ru_maxrss / 1024,
        )


@asynccontextmanager
async def running(*command: str, **streams: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program until the block ends, and check that it has not exited before."""
    process = await asyncio.create_subprocess_exec(*command, **streams)
    try:
        yield process
        assert process.returncode is None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
