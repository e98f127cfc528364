"""Sandboxes that run in the background: how they are found again, and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_kit.errors import DraKitError, SandboxError
from dra_kit.sandbox.cluster import private
from dra_kit.sandbox.cluster.workload.handle import ProcessHandle
from dra_kit.sandbox.run.bounded_file import bounded

STATE_VARIABLE: Final = "DRA_KIT_SANDBOX_STATE"
"""Environment of a sandbox in the background: the file that it writes once it is up."""

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 40.0
_POLL: Final = 0.05


class DetachedSandbox(Struct, frozen=True):
    """A sandbox in the background.

    Attributes:
        pid: of its process.
        began: when the process began, in clock ticks since the machine did; tells it from a later one of that pid.
        drivers: names of its drivers.
        kubeconfig: where it is.
        state: the file that tells all this.
    """

    pid: int
    began: str
    drivers: tuple[str, ...]
    kubeconfig: str
    state: Path

    @property
    def title(self) -> str:
        """Which one it is, for people."""
        return " and ".join(self.drivers) or "no driver"

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.state.with_suffix(".log")

    @property
    def runs(self) -> bool:
        """Whether the process is there."""
        return _began(self.pid) == self.began

    def has_kubeconfig(self, path: Path) -> bool:
        """Return whether it wrote the kubeconfig at a path."""
        return Path(self.kubeconfig).resolve() == path.resolve()


def state_directory() -> Path:
    """Return where sandboxes in the background leave their records, for this user alone.

    Raises:
        SandboxError: there is no such place.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    directory = Path(runtime or tempfile.gettempdir()) / f"dra-kit-sandbox-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SandboxError(
            f"{directory} cannot be made: {error.strerror}; set XDG_RUNTIME_DIR to a directory of your own"
        ) from None
    if not private.is_own_directory(directory):
        raise SandboxError(
            f"{directory} is not yours alone (mode 0700, no link); remove it, or set XDG_RUNTIME_DIR to a directory of "
            "your own"
        )
    return directory


def is_detached() -> bool:
    """Return whether this process is a sandbox in the background."""
    return STATE_VARIABLE in os.environ


def detach(arguments: Sequence[str]) -> DetachedSandbox:
    """Start ``dra-kit sandbox`` in the background and wait until it is up.

    Args:
        arguments: of ``dra-kit sandbox``.

    Raises:
        SandboxError: it did not come up; the text and the code are those of its error, or what it printed last.
    """
    name = f"{time.time_ns():x}"
    directory = state_directory()
    state, log = directory / f"{name}.json", directory / f"{name}.log"
    # without -P the working directory would be the first place of imports, which it is not for the command itself
    command = [sys.executable, "-P", "-c", "from dra_kit.cli import main; main()", "sandbox", *arguments]
    with os.fdopen(private.create(log), "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, STATE_VARIABLE: str(state)},
        )
    try:
        return _up(state, process, log)
    except BaseException:
        _take_down(process)
        for path in (log, state):
            path.unlink(missing_ok=True)
        raise


def bounded_log() -> AbstractContextManager[None]:
    """Keep the log of this process from growing without bound, if it is a sandbox in the background."""
    path = os.environ.get(STATE_VARIABLE)
    return bounded(Path(path).with_suffix(".log")) if path else nullcontext()


def _up(state: Path, process: subprocess.Popen[bytes], log: Path) -> DetachedSandbox:
    """Wait until a sandbox has left word that it is up."""
    end = time.monotonic() + _START_SECONDS
    while (sandbox := _read(state)) is None:
        if process.poll() is not None or time.monotonic() > end:
            raise _reason(state, log)
        time.sleep(_POLL)
    return sandbox


def _reason(state: Path, log: Path) -> SandboxError:
    """Return the error that a sandbox ended with, or else the last lines that it printed."""
    fields = _fields(state)
    text, code = fields.get("error"), fields.get("code")
    if not isinstance(text, str) or not isinstance(code, str):
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        text, code = " ".join(lines[-3:]) or "it printed nothing", None
    return SandboxError(f"the sandbox did not come up: {text}", code=code)


def _take_down(process: subprocess.Popen[bytes]) -> None:
    """End a sandbox that nobody will know of."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def announce(drivers: Sequence[str], kubeconfig: Path) -> None:
    """Tell whoever started this process in the background that it is up; does nothing in the foreground."""
    path = os.environ.get(STATE_VARIABLE)
    if not path:
        return
    pid = os.getpid()
    state_fields = {
        "pid": pid,
        "began": _began(pid),
        "drivers": list(drivers),
        "kubeconfig": str(kubeconfig.absolute()),
    }
    private.replace(Path(path), json.dumps(state_fields).encode())


def announce_failure(error: DraKitError) -> None:
    """Tell whoever started this process in the background why it does not come up; does nothing in the foreground."""
    path = os.environ.get(STATE_VARIABLE)
    if path and not Path(path).exists():  # later ones are in its log
        private.replace(Path(path), json.dumps({"error": str(error), "code": error.code}).encode())


def running() -> list[DetachedSandbox]:
    """Return the sandboxes of this user in the background, oldest first; remove the records of those that ended.

    Raises:
        SandboxError: the place where they leave word is not this user's alone.
    """
    known = [sandbox for path in sorted(state_directory().glob("*.json")) if (sandbox := _read(path))]
    for sandbox in known:
        if not sandbox.runs:
            _forget(sandbox)
    return [sandbox for sandbox in known if sandbox.runs]


def end(sandbox: DetachedSandbox) -> None:
    """End a sandbox in the background and wait until it is gone."""
    with suppress(ProcessLookupError), ProcessHandle(sandbox.pid) as process:
        if sandbox.runs and not process.end(signal.SIGTERM, _STOP_SECONDS):
            process.end(signal.SIGKILL, _STOP_SECONDS)
    _forget(sandbox)


def _forget(sandbox: DetachedSandbox) -> None:
    for path in (sandbox.log, sandbox.state):
        path.unlink(missing_ok=True)


def _read(path: Path) -> DetachedSandbox | None:
    """Return the record of a sandbox; None when it is of no sandbox."""
    fields = _fields(path)
    found: list[Any] = [fields.get(name) for name in ("pid", "began", "drivers", "kubeconfig")]
    pid, began, drivers, kubeconfig = found
    texts = isinstance(drivers, list) and all(isinstance(item, str) for item in (began, kubeconfig, *drivers))
    if not texts or not began or type(pid) is not int or pid <= 1:
        return None
    return DetachedSandbox(pid, began, tuple(drivers), kubeconfig, path)


def _fields(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file that a process of this user wrote; empty when there is none."""
    try:
        found = json.loads(private.read(path) or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _began(pid: int) -> str:
    """Start time of a process (field 22 of /proc/<pid>/stat); empty when there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
