"""The driver that is judged: started from a TARGET or a command, or found by its sockets."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.containers.processes import MARK_VARIABLE
from dra_kit.sandbox.drivers.commands import PLACEHOLDERS, DriverCommand

STOP_SECONDS: Final = 30.0
"""Seconds between SIGTERM and SIGKILL, as Kubernetes gives to a pod by default."""
_LOG_BYTES: Final = 64 * 1024


class SimulatedNode(Struct, frozen=True):
    """Where the parts of the simulated node are.

    Attributes:
        node: name of the Node object.
        root: the kubelet's root directory, with ``plugins`` and ``plugins_registry``.
        cdi: directory of CDI files.
        kubeconfig: leads to the API server.
        logs: directory of the output of the driver's processes.
        scratch: a directory for files of the driver itself.
        mark: value that all processes have in their environment; empty for none.
        nri: the container runtime's socket for NRI; None for one that does not exist.
    """

    node: str
    root: Path
    cdi: Path
    kubeconfig: Path
    logs: Path
    scratch: Path
    mark: str = ""
    nri: Path | None = None

    @property
    def plugins(self) -> Path:
        """Directory of the service sockets."""
        return self.root / "plugins"

    @property
    def registry(self) -> Path:
        """Directory of the registration sockets."""
        return self.root / "plugins_registry"

    def placeholders(self, pod_uid: str) -> dict[str, str]:
        """Return what replaces ``{name}`` in a command."""
        return {
            "node": self.node,
            "kubelet": str(self.root),
            "plugins": str(self.plugins),
            "registry": str(self.registry),
            "cdi": str(self.cdi),
            "kubeconfig": str(self.kubeconfig),
            "pod_uid": pod_uid,
        }

    def environment(self, pod_uid: str) -> dict[str, str]:
        """Return variables by the names of Kubernetes' example driver and of ``dra-kit node``."""
        nri = str(self.nri or self.root / "nri.sock")
        found = {
            "KUBECONFIG": str(self.kubeconfig),
            "NODE_NAME": self.node,
            "KUBELET_REGISTRAR_DIRECTORY_PATH": str(self.registry),
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(self.plugins),
            "CDI_ROOT": str(self.cdi),
            "NRI_SOCKET": nri,
            "DRA_KUBECONFIG": str(self.kubeconfig),
            "DRA_NODE_NAME": self.node,
            "DRA_KUBELET_DIR": str(self.root),
            "DRA_CDI_DIR": str(self.cdi),
            "DRA_NRI_SOCKET": nri,
            MARK_VARIABLE: self.mark,
        }
        return found | ({"POD_UID": pod_uid, "DRA_POD_UID": pod_uid} if pod_uid else {})


def command_of_target(target: str, variables: Mapping[str, str]) -> DriverCommand:
    """Return the command that runs the node role of a TARGET; ``variables`` are its settings."""
    # fake devices of a driver are not below /dev
    words = (sys.executable, "-m", "dra_kit", "node", target, "--no-check-device-nodes")
    known = "|".join(PLACEHOLDERS["command"])
    return DriverCommand(
        kind="command",
        text=target,
        words=words,
        program=words[0],
        directory=Path.cwd(),
        name=target,
        variables={
            **{name: re.sub(rf"\{{(?!(?:{known})\}})", "{{", value) for name, value in variables.items()},
            "DRA_POD_UID": "{pod_uid}",
        },
    )


class DriverInstance:
    """One process of the driver."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, pod_uid: str) -> None:
        self._process = process
        self._log = log
        self.pod_uid: str = pod_uid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, minus the signal's number for a signal; None while it runs."""
        return self._process.returncode

    def output(self) -> str:
        """Return the newest part of what it wrote."""
        with self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
            return file.read().decode(errors="replace")

    def last_lines(self, count: int = 4) -> list[str]:
        """Return the last lines that it wrote."""
        return [line for line in self.output().splitlines() if line.strip()][-count:]

    async def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """Send SIGTERM, and SIGKILL if it does not exit in time; return whether it exited in time."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout):
                await self._process.wait()
        except TimeoutError:
            await self.kill()
            return False
        self._signal(signal.SIGKILL)  # what it started
        return True

    async def kill(self) -> None:
        """Kill it as by ``kill -9``; it is gone when this returns."""
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def wait(self, timeout: float) -> bool:
        """Wait until it exits; return whether it did in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._process.wait()
        return not self.alive

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class DriverUnderTest:
    """The driver that is judged.

    Args:
        command: starts it; None if it is started by others, and then it can be neither stopped nor restarted.
        places: of the node.
        environment: further variables of its environment.

    Attributes:
        instances: the processes that were started here and not ended, oldest first.
        starts: how many processes were started here.
    """

    def __init__(
        self, command: DriverCommand | None, places: SimulatedNode, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = command
        self._places = places
        self._environment = dict(environment or {})
        self.starts: int = 0
        self.instances: list[DriverInstance] = []

    @property
    def can_start(self) -> bool:
        """Whether it can be started here, and so stopped, killed and restarted."""
        return self._command is not None

    @property
    def can_roll(self) -> bool:
        """Whether a second process can run beside the first."""
        return self._command is not None and "pod_uid" in self._command.placeholders

    @property
    def instance(self) -> DriverInstance | None:
        """The process that was started last; None if there is none here."""
        return self.instances[-1] if self.instances else None

    @property
    def alive(self) -> bool:
        """Whether it runs, as far as that is known here."""
        return self._command is None or any(instance.alive for instance in self.instances)

    def last_output(self) -> list[str]:
        """Return the last lines that it wrote, for evidence; none if it is started by others."""
        if self.instance is None:
            return []
        ended = [] if self.instance.alive else [f"the driver's process exited with {self.instance.exit_code}"]
        return [*ended, *(f"log: {line[:200]}" for line in self.instance.last_lines())]

    async def start(self, pod_uid: str = "", *, prefix: Sequence[str] = ()) -> DriverInstance:
        """Start a process of it, and do not wait.

        Args:
            pod_uid: UID of its pod, which distinguishes processes of a rolling update.
            prefix: words before the command, such as those of ``unshare``.

        Raises:
            ConfigurationError: it is started by others, or the program cannot be run.
        """
        if self._command is None:
            raise ConfigurationError("the driver is started by others; use --command to let dra-kit start it")
        known = self._places.placeholders(pod_uid)
        words = [*prefix, *self._command.arguments(known)]
        self.starts += 1
        log = self._places.logs / f"driver-{self.starts}.log"
        with log.open("wb") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *words,
                    env={
                        **os.environ,
                        **self._places.environment(pod_uid),
                        **self._command.environment(known),
                        **self._environment,
                    },
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigurationError(f"driver {words[0]} cannot be started: {error.strerror}; correct it") from None
        instance = DriverInstance(process, log, pod_uid)
        self.instances.append(instance)
        return instance

    async def kill(self) -> None:
        """Kill all of its processes."""
        for instance in self.instances:
            await instance.kill()
        self.instances.clear()

    async def stop(self) -> None:
        """Stop all of its processes."""
        for instance in self.instances:
            await instance.stop()
        self.instances.clear()
