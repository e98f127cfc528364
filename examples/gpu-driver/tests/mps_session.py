"""A session with ``nvidia-cuda-mps-control``, real or double: what it answers to each command, and its files."""

import json
import os
import re
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_driver.doubles.nvidia_cuda_mps_control import PID_FILE

RECORDING = Path(__file__).parent / "recorded" / "nvidia-cuda-mps-control.json"
"""What a real one answered; ``make test-gpu`` writes it."""

SETTING = (
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 0",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 25",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 101",
    "set_default_active_thread_percentage nonsense",
    "set_default_active_thread_percentage 12.5",
    "get_default_device_pinned_mem_limit 0",
    *(
        command
        for limit in ("1G", "1023M", "6145M", "512K", "1.5G", "nonsense", "2048M", "0")
        for command in (f"set_default_device_pinned_mem_limit 0 {limit}", "get_default_device_pinned_mem_limit 0")
    ),
    "set_default_device_pinned_mem_limit 99 1G",
    "get_default_device_pinned_mem_limit 99",
    "set_default_device_pinned_mem_limit UUID 2G",
    "get_default_device_pinned_mem_limit UUID",
    "get_default_device_pinned_mem_limit 0",
    "get_server_list",
    "no_such_command",
)
"""Before there is a server. :meth:`Session.record` starts one after them; ``UUID`` is the first GPU's."""
_LIST = "get_server_list"
_SOON = 30.0
_USUAL = 60.0
"""Seconds for one command; a server that is to end waits for the GPU."""


@dataclass(frozen=True)
class Answer:
    """Of one call: the arguments, the input, the exit code, and what was written, without PIDs, users and paths."""

    arguments: tuple[str, ...]
    input: str
    exit_code: int
    output: str


class Session:
    """One daemon with sockets of its own; it changes no setting of a GPU.

    Args:
        program: path of ``nvidia-cuda-mps-control``.
        environment: beside the process's own.
        folder: short, for sockets and logs.
        user: whose processes they are; None for that of this process.
        within: seconds that a command may take.
    """

    def __init__(
        self,
        program: str,
        environment: Mapping[str, str],
        folder: Path,
        user: int | None = None,
        within: float = _USUAL,
    ) -> None:
        self._program = program
        self._folder = folder
        self._user = user
        self._within = within
        self.pipe, self.log = folder / "p", folder / "l"
        for made in (folder, self.pipe, self.log):
            made.mkdir(exist_ok=True)
            made.chmod(0o777)
        places = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}
        self.environment = {**os.environ, **environment, **places}
        self.answers: list[Answer] = []

    def record(self) -> dict[str, Any]:
        """Return the whole of it, as JSON holds it; no process is left, whatever happens."""
        try:
            self._ask(_LIST)  # without a daemon
            self.start()
            self._run("-d")  # a second one beside it
            files = self._files()
            for command in SETTING:
                self._ask(command)
            self._start_server()
            self.end()
            self._ask(_LIST)
        finally:
            self.kill()
        found = {"answers": [asdict(answer) for answer in self.answers], "files": files, "left": self._files()}
        return dict(json.loads(json.dumps(found)))

    def start(self) -> None:
        """Start the daemon, and wait until it can be asked."""
        self._run("-d")
        # an earlier daemon that was killed has left its files
        self._wait(lambda: (self.pipe / PID_FILE).exists() and not self._call(text=f"{_LIST}\n").exit_code)

    def end(self) -> None:
        """End it, and wait until it is gone; its sockets stay."""
        self._ask("quit")
        self._wait(lambda: not (self.pipe / PID_FILE).exists())

    def kill(self) -> None:
        """End it by force where it still runs."""
        try:
            os.kill(int((self.pipe / PID_FILE).read_text()), signal.SIGKILL)
        except (OSError, ValueError):
            return  # it has ended by itself

    def _start_server(self) -> None:
        """Start a server, which opens the GPU, and list it; a server that does not start does not fail the session."""
        self._ask(f"start_server -uid {os.getuid() if self._user is None else self._user}")
        until = time.monotonic() + _SOON
        while not self._call(text=f"{_LIST}\n").output and time.monotonic() < until:
            time.sleep(0.2)
        self._ask(_LIST)

    def _ask(self, command: str) -> None:
        self._run(text=f"{command.replace('UUID', self.environment['CUDA_VISIBLE_DEVICES'])}\n")

    def _run(self, *arguments: str, text: str = "") -> None:
        self.answers.append(self._call(*arguments, text=text))

    def _call(self, *arguments: str, text: str = "") -> Answer:
        with tempfile.TemporaryFile("w+", errors="replace") as output:  # a daemon would hold a pipe open
            done = subprocess.run(
                [self._program, *arguments],
                input=text,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=self._within,
                check=False,
                env=self.environment,
                user=self._user,
            )
            output.seek(0)
            asked = re.sub(r"-uid \d+", "-uid USER", text.strip())
            asked = asked.replace(self.environment["CUDA_VISIBLE_DEVICES"], "UUID")
            return Answer(arguments, asked, done.returncode, _plain(output.read(), self._folder))

    def _files(self) -> dict[str, str]:
        return {path.name: stat.filemode(path.lstat().st_mode) for path in sorted(self.pipe.iterdir())}

    def _wait(self, check: Callable[[], bool]) -> None:
        until = time.monotonic() + _SOON
        while not check():
            assert time.monotonic() < until, [asdict(answer) for answer in self.answers]
            time.sleep(0.05)


def _plain(text: str, folder: Path) -> str:
    """Return an output without what differs from run to run: the folder, and PIDs."""
    return re.sub(r"^\d+$|\b\d{3,}\b(?![.%])", "N", text.replace(str(folder), "FOLDER"), flags=re.MULTILINE).strip()


def differences(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return what one session answers or leaves otherwise than another.

    Args:
        recorded: what :meth:`Session.record` returned for one.
        found: and for the other.
    """
    lines = [
        f"{_command(before)}: recorded exit code {before['exit_code']} and {before['output']!r}, "
        f"found {now['exit_code']} and {now['output']!r}"
        for before, now in zip(recorded["answers"], found["answers"], strict=False)
        if before != now
    ]
    commands = [[_command(answer) for answer in session["answers"]] for session in (recorded, found)]
    if commands[0] != commands[1]:
        lines.append("the commands differ from those of the recording; record again with make test-gpu")
    return lines + [
        f"{name} of the pipe directory: recorded {sorted(recorded[name])}, found {sorted(found[name])}"
        for name in ("files", "left")
        if set(recorded[name]) != set(found[name])
    ]


def _command(answer: Mapping[str, Any]) -> str:
    return " ".join(answer["arguments"]) or str(answer["input"])


def is_root() -> bool:
    """Return whether this process may do what root may."""
    return os.getuid() == 0


def of_this_user(recording: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the recorded session of a user like this process's user, root or unprivileged; None if missing."""
    found: Mapping[str, Any] | None = recording.get("root" if is_root() else "unprivileged")
    return found
