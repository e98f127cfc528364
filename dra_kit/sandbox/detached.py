"""Sandboxes that run in the background: how they are found again, and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dra_kit.errors import SandboxError
from dra_kit.sandbox.bounded_file import bounded

STATE_VARIABLE: Final = "DRA_KIT_SANDBOX_STATE"
"""Environment of a sandbox in the background: the file that it writes once it is up."""

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 40.0
_POLL: Final = 0.05
_ERROR: Final = re.compile(r"error: (?P<text>.*) \[(?P<code>[a-z0-9-]+)\]")  # as the command line tells it


@dataclass(frozen=True, slots=True)
class DetachedSandbox:
    """A sandbox in the background.

    Attributes:
        pid: of its process.
        began: when the process began, in clock ticks since the machine did; tells it from a later one of that pid.
        driver: the driver's name.
        kubeconfig: where it is.
        log: what it prints.
    """

    pid: int
    began: str
    driver: str
    kubeconfig: str
    log: str

    @property
    def runs(self) -> bool:
        """Whether the process is there."""
        return _began(self.pid) == self.began

    def has_kubeconfig(self, path: Path) -> bool:
        """Whether it wrote this one."""
        return Path(self.kubeconfig).resolve() == path.resolve()


def state_directory() -> Path:
    """Where sandboxes in the background leave word of themselves, for this user alone."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime else Path(tempfile.gettempdir())
    directory = base / (f"dra-kit-sandbox-{os.getuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise SandboxError(f"{directory} belongs to somebody else; set XDG_RUNTIME_DIR to a directory of your own")
    return directory


def is_detached() -> bool:
    """Whether this process is a sandbox in the background."""
    return STATE_VARIABLE in os.environ


def detach(arguments: Sequence[str]) -> DetachedSandbox:
    """Start ``dra-kit sandbox`` in the background and wait until it is up.

    Args:
        arguments: of ``dra-kit sandbox``.

    Raises:
        SandboxError: it did not come up; the text and the code are those of its error, or what it printed last.
    """
    name = f"{time.time_ns():x}"
    state, log = state_directory() / f"{name}.json", state_directory() / f"{name}.log"
    command = [sys.executable, "-c", "from dra_kit.cli import main; main()", "sandbox", *arguments]
    with log.open("ab") as output:  # so that it can be made shorter meanwhile
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, STATE_VARIABLE: str(state)},
        )
    try:
        _await(state, process, log)
        return _read(state)
    except BaseException:
        _take_down(process)
        for path in (log, state):
            path.unlink(missing_ok=True)
        raise


def bounded_log() -> AbstractContextManager[None]:
    """Keep the log of this process from growing without bound, if it is a sandbox in the background."""
    path = os.environ.get(STATE_VARIABLE)
    return bounded(Path(path).with_suffix(".log")) if path else nullcontext()


def _await(state: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while not state.exists():
        if process.poll() is not None or time.monotonic() > end:
            raise _reason(log)
        time.sleep(_POLL)


def _reason(log: Path) -> SandboxError:
    """The error that a sandbox ended with, or else the last lines that it printed."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [found for line in lines if (found := _ERROR.fullmatch(line))]
    text = errors[-1]["text"] if errors else " ".join(lines[-3:]) or "it printed nothing"
    return SandboxError(f"the sandbox did not come up: {text}", code=errors[-1]["code"] if errors else None)


def _take_down(process: subprocess.Popen[bytes]) -> None:
    """End a sandbox that nobody will know of."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def announce(driver: str, kubeconfig: Path) -> None:
    """Tell whoever started this process in the background that it is up; does nothing in the foreground."""
    path = os.environ.get(STATE_VARIABLE)
    if not path:
        return
    state = Path(path)
    pid = os.getpid()
    found = DetachedSandbox(pid, _began(pid), driver, str(kubeconfig.absolute()), str(state.with_suffix(".log")))
    new = state.with_suffix(".new")
    new.write_text(json.dumps(asdict(found)), encoding="utf-8")
    new.replace(state)


def running() -> list[DetachedSandbox]:
    """The sandboxes of this user that run in the background, oldest first; word of others is removed."""
    found = []
    for path in sorted(state_directory().glob("*.json")):
        try:
            sandbox = _read(path)
        except (ValueError, TypeError, OSError):
            path.unlink(missing_ok=True)
            continue
        if sandbox.runs:
            found.append(sandbox)
        else:
            _forget(sandbox)
    return found


def end(sandbox: DetachedSandbox) -> None:
    """End a sandbox in the background and wait until it is gone."""
    os.kill(sandbox.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while sandbox.runs:
        if time.monotonic() > deadline:
            os.kill(sandbox.pid, signal.SIGKILL)
        time.sleep(_POLL)
    _forget(sandbox)


def _forget(sandbox: DetachedSandbox) -> None:
    log = Path(sandbox.log)
    for path in (log, log.with_suffix(".json")):
        path.unlink(missing_ok=True)


def _read(path: Path) -> DetachedSandbox:
    return DetachedSandbox(**json.loads(path.read_text(encoding="utf-8")))


def _began(pid: int) -> str:
    """Start time of a process (field 22 of /proc/<pid>/stat); empty when there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
