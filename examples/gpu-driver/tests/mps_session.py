"""A session with ``nvidia-cuda-mps-control``, real or double: what it answers to each command, and its files."""

import json
import os
import re
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RECORDING = Path(__file__).parent / "recorded" / "nvidia-cuda-mps-control.json"
"""What a real one answered; ``make test-gpu`` writes it."""

COMMANDS = (
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 0",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 25",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 101",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 0 1G",
    "get_default_device_pinned_mem_limit 0",
    "set_default_device_pinned_mem_limit 99 1G",
    "set_default_device_pinned_mem_limit 0 nonsense",
    "get_server_list",
    "no_such_command",
)
_SOON = 30.0


@dataclass(frozen=True)
class Answer:
    """Of one call: the arguments, the input, the exit code, and what was written, without PIDs and paths."""

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
    """

    def __init__(self, program: str, environment: Mapping[str, str], folder: Path, user: int | None = None) -> None:
        self._program = program
        self._folder = folder
        self._user = user
        self.pipe, self.log = folder / "p", folder / "l"
        for made in (folder, self.pipe, self.log):
            made.mkdir(exist_ok=True)
            made.chmod(0o777)
        places = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}
        self._environment = {**os.environ, **environment, **places}
        self.answers: list[Answer] = []

    def record(self) -> dict[str, object]:
        """The whole of it, as JSON holds it."""
        self._ask("get_server_list")  # nobody is there
        self.start()
        self._run("-d")  # a second one beside it
        files = self._files()
        for command in COMMANDS:
            self._ask(command)
        self.end()
        self._ask("get_server_list")
        found = {"answers": [asdict(answer) for answer in self.answers], "files": files, "left": self._files()}
        return dict(json.loads(json.dumps(found)))

    def start(self) -> None:
        """Start the daemon, and wait until it can be asked."""
        self._run("-d")
        self._wait(lambda: (self.pipe / "control").exists())

    def end(self) -> None:
        """End it, and wait until it is gone."""
        self._ask("quit")
        self._wait(lambda: not (self.pipe / "control").exists())

    def _ask(self, command: str) -> None:
        self._run(text=f"{command}\n")

    def _run(self, *arguments: str, text: str = "") -> None:
        with tempfile.TemporaryFile("w+", errors="replace") as output:  # a daemon would hold a pipe open
            done = subprocess.run(
                [self._program, *arguments],
                input=text,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
                env=self._environment,
                user=self._user,
            )
            output.seek(0)
            self.answers.append(Answer(arguments, text.strip(), done.returncode, self._plain(output.read())))

    def _plain(self, text: str) -> str:
        return re.sub(r"\b\d{3,}\b(?!%)", "N", text.replace(str(self._folder), "FOLDER")).strip()

    def _files(self) -> dict[str, str]:
        return {path.name: stat.filemode(path.lstat().st_mode) for path in sorted(self.pipe.iterdir())}

    def _wait(self, check: Callable[[], bool]) -> None:
        until = time.monotonic() + _SOON
        while not check():
            assert time.monotonic() < until, [asdict(answer) for answer in self.answers]
            time.sleep(0.05)


def differences(recorded: Sequence[Mapping[str, object]], found: Sequence[Mapping[str, object]]) -> list[str]:
    """What one answers otherwise, by command."""
    return [
        f"{before['arguments'] or before['input']}: recorded {before['exit_code']} {before['output']!r}, "
        f"found {now['exit_code']} {now['output']!r}"
        for before, now in zip(recorded, found, strict=True)
        if before != now
    ]
