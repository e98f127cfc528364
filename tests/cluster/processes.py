"""Processes that a test starts, and ends by their id."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DEADLINE_SECONDS = 90
DRA_KIT = Path(sys.executable).with_name("dra-kit")


class ProcessFailed(Exception):
    """A process ended, or does not get ready; the text holds the end of its log."""


@dataclass(frozen=True)
class Running:
    """A process and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[str]:
        """What it logged so far."""
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()

    def wait_until(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until something is true, as long as the process lives.

        Raises:
            ProcessFailed: it ended, or it is not true in the end.
        """
        end = time.monotonic() + DEADLINE_SECONDS
        while not ready():
            code = self.process.poll()
            if code is not None:
                raise ProcessFailed(f"{what}: {self.process.args!r} ended with {code}\n{self.tail()}")
            if time.monotonic() > end:
                raise ProcessFailed(f"{what}: not within {DEADLINE_SECONDS} s\n{self.tail()}")
            time.sleep(0.5)

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.lines()[-30:])


@contextmanager
def running(
    command: Sequence[object],
    *,
    log: Path,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """A process in a session of its own (Ctrl-C in the terminal does not reach it); ended by SIGTERM, then SIGKILL."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            cwd=directory,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield Running(process, log)
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ip(*arguments: str) -> str:
    """What the command prints; empty if it fails."""
    command = [shutil.which("ip") or "/sbin/ip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout
