"""Run an attacked command like users do, within hard limits, and measure its time and memory."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
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


def dra_kit(
    *arguments: str | Path,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    limit: float = 60,
) -> Outcome:
    """Run ``dra-kit`` with arguments."""
    return run([*DRA_KIT, *map(str, arguments)], directory=directory, environment=environment, limit=limit)


def run(
    command: Sequence[str],
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    limit: float = 60,
) -> Outcome:
    """Run a command with additional environment variables; kill it and fail after ``limit`` seconds."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        begin = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=directory,
            env={**os.environ, **(environment or {})},
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
