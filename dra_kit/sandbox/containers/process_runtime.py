"""A container runtime that runs each container as a process."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.kubernetes.resource.objects import PodReference, containers, init_containers
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.log import LIMIT, ContainerLog, OutputPipe, OutputReader
from dra_kit.sandbox.containers.processes import MARK_VARIABLE, ReaperClient
from dra_kit.sandbox.containers.runtime import ContainerConfig, ContainerExit, ContainerStatus

MOUNTS_VARIABLE: Final = "DRA_KIT_SANDBOX_MOUNTS"
"""Environment of a container whose volumes could not be mounted: where each is, as ``PATH=FOLDER``, with colons."""
_REMEMBERED: Final = 1000  # reports of containers whose pods are gone
_REMEMBERED_BYTES: Final = 64 << 20  # of their output, together
_ATTEMPTS: Final = 2  # of a container whose output is kept: the newest one, and the one before it
_START_ERROR: Final = 128
_POLL: Final = 0.02
_UNKNOWN: Final = 255  # containerd 2, of a container that the machine's end has taken with it


class _Container(Struct):
    config: ContainerConfig
    status: ContainerStatus
    directory: Path
    log: ContainerLog
    pipe: OutputPipe | None = None
    has_process: bool = True
    kill_at: float | None = None
    killer: asyncio.TimerHandle | None = None

    def report(self) -> ContainerReport:
        return ContainerReport(self.config, self.status, self.log, self.has_process)


class ProcessRuntime:
    """A container runtime without images, namespaces and cgroups; an asynchronous context manager for one event loop.

    A container is a process group with the environment of the pod and of CDI, an empty working directory, and the
    volumes of the kubelet where the kernel lets this user mount; else :data:`MOUNTS_VARIABLE` says where they are. It
    shares all other files, network and users with this machine. Unlike the first process of a PID namespace, it is
    terminated by a SIGTERM that it does not handle. No process outlives the runtime, even if the process that owns it
    is killed.

    A container without a command would run the command of its image. The sandbox has no images: such a container
    counts as running until it is stopped, and its output says so.

    Args:
        directory: parent of the containers' working directories, created and removed by the runtime; None for a
            temporary directory.
        mark: a text in the environment of every process that identifies orphans; it is left out of reports. Empty for
            none.
        output_limit: bytes that are stored of the output of each container, and of the attempt before it.
        intake: reads the output; runtimes of one event loop share one.
    """

    version = "local-process://1"
    """``containerRuntimeVersion`` of the node: ``<name>://<version>``."""

    def __init__(
        self,
        *,
        directory: Path | None = None,
        mark: str = "",
        output_limit: int = LIMIT,
        intake: OutputReader | None = None,
    ) -> None:
        self._mark = {MARK_VARIABLE: mark} if mark else {}
        self._output_limit = output_limit
        self._intake = intake or OutputReader()
        self._containers: dict[str, _Container] = {}
        self._past: deque[ContainerReport] = deque(maxlen=_REMEMBERED)
        self._listeners: list[Callable[[str], None]] = []
        self._starts: set[asyncio.Task[None]] = set()
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="dra-kit-containers-"))
        directory.mkdir(parents=True, exist_ok=True)
        self._root = directory
        self._processes = ReaperClient(self._root, self._ended)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._starts:
            await asyncio.wait(self._starts)
        await self._processes.close()
        for container in self._containers.values():
            self._settle(container)
        shutil.rmtree(self._root, ignore_errors=True)

    # -- what the kubelet asks for

    def expect(self, pod: ObjectView) -> None:
        """Get ready for the containers of a pod, which start once its claims are prepared."""
        if any(container.get("command") for container in (*init_containers(pod), *containers(pod))):
            self._processes.expect()

    async def run(self, config: ContainerConfig) -> ContainerStatus:
        """Start a container; if it cannot start, it counts as exited with the reason ``StartError``."""
        identity = f"local-process://{secrets.token_hex(16)}"
        directory = Path(tempfile.mkdtemp(prefix=f"{config.name[:32]}-", dir=self._root))
        variables = {**image_environment(config.hostname, directory), **config.environment}
        for entry in config.edits.env:
            name, _, value = entry.partition("=")
            variables[name] = value
        status = ContainerStatus(identity, config.name, config.attempt, config.image, _now(), environment=variables)
        container = _Container(config, status, directory, ContainerLog(self._output_limit))
        self._containers[identity] = container
        self._forget_attempts(config)
        if not config.command or config.arguments_only:
            container.has_process = False
            container.log.append(_explanation(config).encode(), time.time_ns())
            return container.status
        start = asyncio.create_task(self._start(identity, container))
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)
        # a kubelet that ends meanwhile leaves no container half started
        await asyncio.shield(start)
        return container.status

    def stop(self, container_id: str, grace: float) -> None:
        """Terminate a container, and kill it after ``grace`` seconds; another call can only shorten this time."""
        container = self._containers[container_id]
        if not container.status.running:
            return
        if not container.has_process:
            self._end(container, ContainerExit(0, "Completed", _now()))
            return
        loop = asyncio.get_running_loop()
        kill_at = loop.time() + grace
        if container.kill_at is None:
            self._processes.signal(container_id, signal.SIGTERM)
        elif container.kill_at <= kill_at:
            return
        if container.killer is not None:
            container.killer.cancel()
        container.kill_at = kill_at
        container.killer = loop.call_at(kill_at, self._processes.kill, container_id)

    def containers(self, pod_uid: str) -> Sequence[ContainerStatus]:
        """Return the containers of a pod, including exited ones, oldest first."""
        return [item.status for item in self._containers.values() if item.config.pod.uid == pod_uid]

    def pods(self) -> Collection[PodReference]:
        """Return pods that have containers, including exited ones."""
        return list(dict.fromkeys(item.config.pod for item in self._containers.values()))

    def remove(self, pod_uid: str) -> None:
        """Forget the containers of a pod, except their reports; all have ended."""
        for identity in [key for key, item in self._containers.items() if item.config.pod.uid == pod_uid]:
            container = self._containers.pop(identity)
            self._settle(container)
            self._past.append(container.report())
            shutil.rmtree(container.directory, ignore_errors=True)
        size = sum(report.log.size for report in self._past)
        for report in self._past:
            if size <= _REMEMBERED_BYTES:
                break
            size -= report.log.size
            report.log.discard()

    def subscribe(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call ``changed`` with the UID of a pod when a container of it exits; return a function that unsubscribes."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    async def lose_power(self) -> None:
        """End every container at once, with an unknown exit code, as before a boot."""
        running = {identity: item for identity, item in self._containers.items() if item.status.running}
        for identity, container in running.items():
            if container.has_process:
                self._processes.kill(identity)
        while any(item.status.running and item.has_process for item in running.values()):  # noqa: ASYNC110
            await asyncio.sleep(_POLL)
        for container in running.values():
            container.status = replace(container.status, exit=ContainerExit(_UNKNOWN, "Unknown", _now()))
            self._settle(container)
        for container in self._containers.values():
            container.status = replace(container.status, before_boot=True)

    # -- what the sandbox shows

    def find(self, container_id: str) -> ContainerReport | None:
        """Return a container of a pod that has not been removed."""
        container = self._containers.get(container_id)
        return container.report() if container else None

    def reports(self, namespace: str, pod: str) -> list[ContainerReport]:
        """Return the containers of the pods of this name, oldest first; also of those deleted not long ago."""
        now = (container.report() for container in self._containers.values())
        wanted = (namespace, pod)
        return [item for item in (*self._past, *now) if (item.config.pod.namespace, item.config.pod.name) == wanted]

    def report(self, namespace: str, pod: str, container: str) -> ContainerReport | None:
        """Return the newest container of this name in the newest pod of this name; None while there was none."""
        found = [item for item in self.reports(namespace, pod) if item.config.name == container]
        return found[-1] if found else None

    # --

    def _forget_attempts(self, config: ContainerConfig) -> None:
        """Drop the output of attempts that can no longer be requested."""
        for item in self._containers.values():
            same = (item.config.pod.uid, item.config.name) == (config.pod.uid, config.name)
            if same and item.config.attempt <= config.attempt - _ATTEMPTS:
                item.log.discard()

    async def _start(self, identity: str, container: _Container) -> None:
        command = container.config.command
        program = find_program(command[0], container.status.environment)
        if program is None:
            self._refuse(container, None)
            return
        mounts = container.config.mounts
        unmounted = mounts and {MOUNTS_VARIABLE: ":".join(f"{path}={source}" for path, source in mounts.items())}
        container.pipe, output = self._intake.open(container.log)
        try:
            number, mounted = await self._processes.start(
                identity,
                command,
                executable=program,
                environment={**container.status.environment, **self._mark},
                directory=container.directory,
                output=output,
                mounts={} if container.config.shares_mounts else mounts,
                unmounted=unmounted,
            )
        finally:
            os.close(output)
        if mounts and not mounted:
            known = container.status.environment
            container.status = replace(container.status, environment={**known, **unmounted})
        if number:
            self._refuse(container, number)

    def _refuse(self, container: _Container, number: int | None) -> None:
        message = start_error(container.config.command[0], number)
        container.status = replace(
            container.status, exit=ContainerExit(_START_ERROR, "StartError", _now(), message=message)
        )
        self._settle(container)

    def _ended(self, identity: str, code: int) -> None:
        container = self._containers.get(identity)
        if container is None:
            return
        code = 128 - code if code < 0 else code
        self._end(container, ContainerExit(code, "Error" if code else "Completed", _now()))

    def _end(self, container: _Container, how: ContainerExit) -> None:
        container.status = replace(container.status, exit=how)
        self._settle(container)
        for listener in list(self._listeners):
            listener(container.config.pod.uid)

    def _settle(self, container: _Container) -> None:
        if container.pipe is not None:
            # all that the process itself wrote is in it by now
            container.pipe.finish()
        container.log.finish(time.time_ns())
        if container.killer is not None:
            container.killer.cancel()


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _explanation(config: ContainerConfig) -> str:
    given = "only arguments for its image's command" if config.arguments_only else "no command"
    return (
        f"dra-kit: container {config.name} has {given}, and {config.image or 'its image'} is not run here: "
        "nothing runs; it counts as running until its pod is deleted\n"
    )


_IMAGE_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# the layers that a real message comes through: containerd, its shim, runc
_LAYERS: Final = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: "
)


def image_environment(hostname: str, home: Path) -> dict[str, str]:
    """Return the variables that an image without its own settings gives a process.

    ``PATH`` is that of most images; on a machine that has no shell there it is this machine's.
    """
    path = _IMAGE_PATH if shutil.which("sh", path=_IMAGE_PATH) else os.environ.get("PATH", os.defpath)
    return {"PATH": path, "HOSTNAME": hostname, "HOME": str(home)}


def find_program(command: str, environment: Mapping[str, str]) -> str | None:
    """Return the path of a command's program; a name without a slash is looked for in the container's ``PATH``."""
    if "/" in command:
        return command
    return shutil.which(command, path=environment.get("PATH", ""))


def start_error(command: str, number: int | None) -> str:
    """Return containerd's text for the ``errno`` of a command that cannot be started, None where it was not found."""
    match number:
        case None:
            return f'{_LAYERS}exec: "{command}": executable file not found in $PATH'
        case errno.ENOENT | errno.ENOTDIR:
            return f'{_LAYERS}exec: "{command}": stat {command}: no such file or directory'
        case errno.EACCES:
            return f'{_LAYERS}exec: "{command}": permission denied'
        case errno.ENOEXEC:
            return f"{_LAYERS}exec {command}: exec format error"
        case _:
            return f'{_LAYERS}exec: "{command}": {os.strerror(number).lower()}'


class ContainerReport(Struct, frozen=True):
    """A container at one moment.

    Attributes:
        config: the config from the kubelet. The mounts, device nodes, hooks, network devices, groups and resctrl
            settings of ``config.edits`` are not applied; they can only be read here.
    """

    config: ContainerConfig
    status: ContainerStatus
    log: ContainerLog
    has_process: bool

    @property
    def environment(self) -> Mapping[str, str]:
        """The whole environment of the process."""
        return self.status.environment

    @property
    def device_nodes(self) -> Mapping[str, str]:
        """Type and numbers of the device files of ``config.edits``, such as ``c 195:0``, by path.

        What CDI leaves to the runtime, which takes it from the host's file, is left out.
        """
        return {
            node.path: f"{node.type} {node.major}:{node.minor}" if node.major else node.type
            for node in self.config.edits.device_nodes
        }

    @property
    def mounts(self) -> Mapping[str, str]:
        """The host's path of the mounts of ``config.edits``, by path in the container."""
        return {mount.container_path: mount.host_path for mount in self.config.edits.mounts}
