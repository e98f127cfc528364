"""Sandboxes in the background: started, found again, stopped; their records and logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from dra_kit.errors import DraKitError, SandboxError
from dra_kit.files import create_private, is_own_directory, read_private, replace_private
from dra_kit.sandbox.cluster import Sandbox
from dra_kit.sandbox.containers.processes import ProcessHandle
from dra_kit.sandbox.directory import running_directories

STATE_VARIABLE: Final = "DRA_KIT_SANDBOX_STATE"
"""Environment of a sandbox in the background: the file that it writes once it is up."""
_START_SECONDS: Final = 180.0  # longer than the sandbox itself waits for anything: it reports for what in vain
_STOP_SECONDS: Final = 120.0  # hooks of charts and drivers have their own limits
_POLL: Final = 0.05


class SandboxRecord(Struct, frozen=True):
    """What a sandbox reports of itself; ``kubeconfig`` is a path."""

    drivers: tuple[str, ...]
    kubeconfig: str

    @property
    def title(self) -> str:
        """Which one it is, for people."""
        return " and ".join(self.drivers) or "no driver"

    def has_kubeconfig(self, path: Path) -> bool:
        """Return whether it wrote the kubeconfig at a path."""
        return Path(self.kubeconfig).resolve() == path.resolve()


class DetachedSandbox(SandboxRecord, frozen=True):
    """A sandbox in the background; ``state`` is the file that stores this record.

    Attributes:
        began: the start time of the process, in clock ticks since boot; distinguishes it from a later process with
            the same ID.
        page: the URL of its page, with the token; empty without a page.
    """

    pid: int
    began: str
    state: Path
    page: str = ""

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.state.with_suffix(".log")

    @property
    def runs(self) -> bool:
        """Whether the process is there."""
        return _began(self.pid) == self.began


def state_directory() -> Path:
    """Return the directory where background sandboxes leave their records, accessible to this user only.

    Raises:
        SandboxError: the directory cannot be determined or used.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    directory = Path(runtime or tempfile.gettempdir()) / f"dra-kit-sandbox-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SandboxError(
            f"{directory} cannot be made: {error.strerror}; set XDG_RUNTIME_DIR to a directory of your own"
        ) from None
    if not is_own_directory(directory):
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

    Raises:
        SandboxError: it did not come up; message and code are those of its error, or the message is its last output.
    """
    name = f"{time.time_ns():x}"
    directory = state_directory()
    state, log = directory / f"{name}.json", directory / f"{name}.log"
    # without -P the working directory would be the first place of imports, which it is not for the command itself
    command = [sys.executable, "-P", "-c", "from dra_kit.cli import main; main()", "sandbox", *arguments]
    with os.fdopen(create_private(log), "ab") as output:
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
    return bounded_file(Path(path).with_suffix(".log")) if path else nullcontext()


def _up(state: Path, process: subprocess.Popen[bytes], log: Path) -> DetachedSandbox:
    """Wait until a sandbox has left word that it is up."""
    end = time.monotonic() + _START_SECONDS
    while (sandbox := _read_detached(state)) is None:
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
    """Stop a sandbox that has no record."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def report_ready(drivers: Sequence[str], kubeconfig: Path, page: str = "") -> None:
    """Report to the process that started this one in the background that it is up; a no-op in the foreground."""
    path = os.environ.get(STATE_VARIABLE)
    if not path:
        return
    pid = os.getpid()
    state_fields = {
        "pid": pid,
        "began": _began(pid),
        "drivers": list(drivers),
        "kubeconfig": str(kubeconfig.absolute()),
        "page": page,
    }
    replace_private(Path(path), json.dumps(state_fields).encode())


def report_failure(error: DraKitError) -> None:
    """Report to the process that started this one in the background why it failed; a no-op in the foreground."""
    path = os.environ.get(STATE_VARIABLE)
    if path and not Path(path).exists():  # later ones are in its log
        replace_private(Path(path), json.dumps({"error": str(error), "code": error.code}).encode())


def report_remaining(texts: Sequence[str]) -> None:
    """Report changes of hardware that remain to the process that stops this one; a no-op in the foreground."""
    path = os.environ.get(STATE_VARIABLE)
    if path and texts:
        replace_private(Path(path), json.dumps({**_fields(Path(path)), "remaining": list(texts)}).encode())


def running_in_background() -> list[DetachedSandbox]:
    """Return the sandboxes of this user in the background, oldest first; remove the records of those that ended.

    Raises:
        SandboxError: the place where they leave word is not this user's alone.
    """
    known = [sandbox for path in sorted(state_directory().glob("*.json")) if (sandbox := _read_detached(path))]
    for sandbox in known:
        if not sandbox.runs:
            _forget(sandbox)
    return [sandbox for sandbox in known if sandbox.runs]


def stop(sandbox: DetachedSandbox) -> list[str]:
    """End a sandbox in the background and wait until it is gone; return the changes of hardware that remain."""
    with suppress(ProcessLookupError), ProcessHandle(sandbox.pid) as process:
        if sandbox.runs and not process.end(signal.SIGTERM, _STOP_SECONDS):
            process.end(signal.SIGKILL, _STOP_SECONDS)
    remaining = _fields(sandbox.state).get("remaining")
    _forget(sandbox)
    return list(map(str, remaining)) if isinstance(remaining, list) else []


def _forget(sandbox: DetachedSandbox) -> None:
    for path in (sandbox.log, sandbox.state):
        path.unlink(missing_ok=True)


def _read_detached(path: Path) -> DetachedSandbox | None:
    """Return the record of a sandbox; None when it is of no sandbox."""
    fields = _fields(path)
    found: list[Any] = [fields.get(name) for name in ("pid", "began", "drivers", "kubeconfig")]
    pid, began, drivers, kubeconfig = found
    texts = isinstance(drivers, list) and all(isinstance(item, str) for item in (began, kubeconfig, *drivers))
    if not texts or not began or type(pid) is not int or pid <= 1:
        return None
    return DetachedSandbox(tuple(drivers), kubeconfig, pid, began, path, str(fields.get("page", "")))


def _fields(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file that a process of this user wrote; empty when there is none."""
    try:
        found = json.loads(read_private(path) or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _began(pid: int) -> str:
    """Return the start time of a process (field 22 of /proc/<pid>/stat); empty if the process does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


LIMIT: Final = 8 << 20
"""Bytes of such a file: when there are more, the older half goes."""
_LOOK_SECONDS: Final = 1.0
_BLOCK: Final = 1 << 16


def trim(path: Path, limit: int) -> None:
    """Drop the oldest lines of a file that exceeds a limit, down to half of the limit, and note that in the file.

    Writers have opened the same file to append, and continue to write to it. Only data written in the moment between
    two system calls is lost.
    """
    with path.open("r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= limit:
            return
        begin = size - limit // 2
        begin += os.pread(file.fileno(), _BLOCK, begin).find(b"\n") + 1
        notice = f"({begin:,} bytes of older lines went: at most {limit >> 20} MiB are kept)\n".encode()
        target = os.pwrite(file.fileno(), notice, 0)
        while True:
            while block := os.pread(file.fileno(), _BLOCK, begin):
                begin += len(block)
                target += os.pwrite(file.fileno(), block, target)
            if os.fstat(file.fileno()).st_size == begin:
                os.ftruncate(file.fileno(), target)
                return


@contextmanager
def bounded_file(path: Path, limit: int = LIMIT) -> Iterator[None]:
    """Trim a file to ``limit`` bytes, and what comes in a second, by a thread that runs inside the context."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            try:
                trim(path, limit)
            except FileNotFoundError:
                return  # the process that started this one has removed it

    thread = threading.Thread(target=look, name="log of the sandbox", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


_FILE: Final = "environment.json"


class RunningSandbox(SandboxRecord, frozen=True):
    """A sandbox that runs, in the foreground or in the background; ``nodes`` have variables for drivers, by name."""

    nodes: Mapping[str, Mapping[str, str]]
    directory: Path = Path()


def leave_record(sandbox: Sandbox) -> None:
    """Let :func:`running_sandboxes` find this one."""
    kubeconfig = str(sandbox.kubeconfig.absolute())
    nodes = {node.name: node.variables(kubeconfig) for node in sandbox.nodes}
    fields = RunningSandbox((*sandbox.drivers, *sandbox.programs), kubeconfig, nodes)
    replace_private(
        sandbox.directory / _FILE,
        json.dumps({name: value for name, value in asdict(fields).items() if name != "directory"}).encode(),
    )


def running_sandboxes() -> list[RunningSandbox]:
    """Return the sandboxes of this user that run and have left a record, oldest first."""
    found = ((_read_running(directory / _FILE), directory) for directory in running_directories())
    return [replace(sandbox, directory=directory) for sandbox, directory in found if sandbox is not None]


def _read_running(path: Path) -> RunningSandbox | None:
    """Return the record of a sandbox; None when it is of no sandbox."""
    try:
        fields: Any = json.loads(read_private(path) or b"")
        sandbox = RunningSandbox(**{**fields, "drivers": tuple(fields["drivers"])})
        texts = [*sandbox.drivers, sandbox.kubeconfig]
        for node, variables in sandbox.nodes.items():
            texts += [node, *variables, *variables.values()]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return sandbox if all(isinstance(text, str) for text in texts) else None
