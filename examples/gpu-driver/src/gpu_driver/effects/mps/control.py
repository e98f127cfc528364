"""Talking to an MPS control daemon, as people do: commands on the input of ``nvidia-cuda-mps-control``."""

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
PATIENCE = 4.0
"""Seconds in which a daemon has answered; less than those in which an effect has to."""

QUIT = "quit -t 3"
"""NVIDIA's command to stop a daemon. Servers with clients get this many seconds, and the answer takes as long; it must
be less than :data:`PATIENCE`. Without ``-t`` the daemon waits for its clients without a limit."""

_LONGEST_ANSWER = 2**16
"""Bytes. A container of the claim may be the one who answers."""
SOCKETS = ("control", "control_privileged")
"""Names of a daemon's sockets."""


class MpsError(Exception):
    """The daemon is missing or does not answer."""


class MpsControl:
    """One daemon.

    Args:
        command: what runs ``nvidia-cuda-mps-control``.
        environment: by which it finds the daemon, and itself its libraries.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = dict(environment)

    def ask(self, command: str, patience: float = PATIENCE) -> str:
        """Return what the daemon answers to one command; empty for nothing.

        Args:
            command: as ``nvidia-cuda-mps-control --help`` lists them.
            patience: seconds that the answer may take.

        Raises:
            MpsError: it is not there, refuses, or takes longer.
        """
        pipe = Path(self._environment.get("CUDA_MPS_PIPE_DIRECTORY", ""))
        for name in SOCKETS:
            if (pipe / name).is_symlink():  # to the sockets of another daemon, perhaps
                raise MpsError(f"{command}: {pipe / name} is a link, and no daemon makes one")
        try:
            with subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment,
            ) as program:
                try:
                    text, code = _talk(program, command, time.monotonic() + patience)
                except BaseException:
                    program.kill()
                    raise
        except TimeoutError:
            raise MpsError(f"{command}: no answer within {patience:.0f} s") from None
        except OverflowError:
            raise MpsError(f"{command}: the answer is longer than {_LONGEST_ANSWER} bytes") from None
        except OSError as error:
            raise MpsError(f"{self._command[0]} cannot be run: {error.strerror}") from None
        if code:
            last = text.splitlines()[-1:] or [f"exit code {code}"]
            raise MpsError(f"{command}: {last[0][:200]}")
        return text

    def answers(self) -> bool:
        """Return whether there is a daemon that answers."""
        try:
            self.ask("get_default_active_thread_percentage")
        except MpsError:
            return False
        return True


def _talk(program: "subprocess.Popen[bytes]", command: str, until: float) -> tuple[str, int]:
    """Give a program its input; what it writes, and its exit code.

    Raises:
        TimeoutError: it does not end in time.
        OverflowError: it writes too much.
    """
    assert program.stdin is not None
    assert program.stdout is not None
    with program.stdin as given:
        try:
            given.write(f"{command}\n".encode())
            given.flush()
        except BrokenPipeError:
            pass  # it has ended, and says why
    os.set_blocking(program.stdout.fileno(), False)
    text = b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(program.stdout, selectors.EVENT_READ)
        while True:
            left = until - time.monotonic()
            if left <= 0 or not waiting.select(left):
                raise TimeoutError
            if not (more := program.stdout.read(_LONGEST_ANSWER)):
                break
            text += more
            if len(text) > _LONGEST_ANSWER:
                raise OverflowError
    try:
        code = program.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return text.decode(errors="replace").strip(), code
