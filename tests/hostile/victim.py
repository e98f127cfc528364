"""Run an attacked command like users do, within hard limits, and measure its time and memory."""

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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
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
    """Run ``dra-kit`` with arguments; kill it and fail after ``limit`` seconds.

    It is a new process, a copy of one that has imported the code of some commands and has done nothing else.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr", "mebibytes")]
        given = [*map(str, arguments)], directory or Path.cwd(), *files
        process = context.Process(target=_command, args=given)
        begin = time.monotonic()
        process.start()
        process.join(limit)
        seconds = time.monotonic() - begin
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"dra-kit {arguments} still runs after {limit} s")
        stdout, stderr = (file.read_text(encoding="utf-8", errors="replace") for file in files[:2])
        mebibytes = float(files[2].read_text(encoding="utf-8")) if files[2].exists() else math.inf
        return Outcome(process.exitcode, stdout, stderr, seconds, mebibytes)


_IMPORTED = ["dra_kit.cli.lint", "dra_kit.cli.explain", "dra_kit.diagnosis.explain.documents"]


def _command(arguments: list[str], directory: Path, stdout: Path, stderr: Path, mebibytes: Path) -> None:
    """Be the command, in a process of its own."""
    from dra_kit.cli import main

    resource.setrlimit(resource.RLIMIT_AS, (_LIMIT_BYTES, _LIMIT_BYTES))
    os.chdir(directory)
    for number, file in ((1, stdout), (2, stderr)):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["dra-kit", *arguments]
    try:
        main()
    finally:
        mebibytes.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), encoding="utf-8")


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
