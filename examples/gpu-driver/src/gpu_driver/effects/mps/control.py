"""Talking to an MPS control daemon, as people do: commands on the input of ``nvidia-cuda-mps-control``."""

import subprocess
from collections.abc import Mapping, Sequence

PROGRAM = "nvidia-cuda-mps-control"
PATIENCE = 4.0
"""Seconds in which a daemon has answered; less than those in which an effect has to."""

QUIT = "quit -t 3"
"""NVIDIA's way to end a daemon: servers with clients get so many seconds, less than :data:`PATIENCE`, and so long the
answer takes; without ``-t`` it waits for the clients for ever."""


class MpsError(Exception):
    """There is no daemon, or it does not answer."""


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
        try:
            done = subprocess.run(
                self._command,
                input=f"{command}\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=patience,
                check=False,
                env=self._environment,
            )
        except subprocess.TimeoutExpired:
            raise MpsError(f"{command}: no answer within {patience:.0f} s") from None
        except OSError as error:
            raise MpsError(f"{self._command[0]} cannot be run: {error.strerror}") from None
        text = (done.stdout + done.stderr).strip()
        if done.returncode:
            last = text.splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise MpsError(f"{command}: {last[0]}")
        return text

    def answers(self) -> bool:
        """Return whether there is a daemon that answers."""
        try:
            self.ask("get_default_active_thread_percentage")
        except MpsError:
            return False
        return True
