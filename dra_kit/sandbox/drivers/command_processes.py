"""Programs that are drivers: started on each node, restarted with back-off, terminated; their logs and readiness."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import os
import shlex
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from dra_kit.apiserver.admission.webhooks import LocalWebhook
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.errors import SandboxError
from dra_kit.kubelet.plugin_client import SocketIdentity, find_sockets
from dra_kit.sandbox.containers.log import OUTPUT_LINES, OutputReader, RateLimit
from dra_kit.sandbox.containers.processes import MARK_VARIABLE, ReaperClient, start_failure, volume_order
from dra_kit.sandbox.containers.runtime import VolumeMount
from dra_kit.sandbox.controllers.certificates import new_authority
from dra_kit.sandbox.drivers.commands import DriverCommand
from dra_kit.sandbox.drivers.controller_and_webhook import HOST, reserved_port
from dra_kit.sandbox.drivers.node import SandboxNode
from dra_kit.sandbox.informers import SharedInformers
from dra_kit.sandbox.kubelet.environment import api_server_variables
from dra_kit.sandbox.records import (
    CommandEnded,
    CommandNotReady,
    CommandOutput,
    CommandStarted,
    RecordObserver,
)

LOG_DIRECTORY: Final = "logs"
"""Folder of the programs' logs, in the directory of a sandbox."""
PROCESS_VARIABLE: Final = "DRA_KIT_SANDBOX_PROCESS"
"""Environment of a program: the name of its process."""
OLDER: Final = ".1"
"""Suffix of the older half of a log."""
_OWN_VARIABLES: Final = "DRA_KIT_SANDBOX_"  # those of the sandbox itself are not for drivers
_ACCOUNT_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # client-go 0.37, rest.InClusterConfig
_AT_ONCE_SECONDS: Final = 5.0
_AT_ONCE_TIMES: Final = 5
_FIRST_DELAY: Final = 0.5
_LAST_DELAY: Final = 30.0
_FORGOTTEN_SECONDS: Final = 60.0  # a program that ran for so long starts with the first delay again
_TERMINATION_SECONDS: Final = 20.0
READY_SECONDS: Final = 10.0
"""After which a plugin that is not registered, or a webhook that does not listen, is reported."""
PUBLISH_SECONDS: Final = 3.0
"""How long the first ResourceSlices are awaited: a driver without devices on a node may publish none."""
_POLL: Final = 0.05
_LOG_LIMIT: Final = 4 << 20  # bytes of each half of a log
_LINE_MAX: Final = 1 << 14
_LAST_LINES: Final = 5


class CommandCluster(Protocol):
    """What programs find in a cluster."""

    @property
    def directory(self) -> Path:
        """The directory of the sandbox."""
        ...

    @property
    def kubeconfig(self) -> Path:
        """That of the administrator."""
        ...

    @property
    def nodes(self) -> Sequence[SandboxNode]:
        """All of them."""
        ...

    @property
    def informers(self) -> SharedInformers:
        """The informers of the cluster's objects."""
        ...


class RunningCommands:
    """The programs of a sandbox.

    Args:
        mark: see :data:`dra_kit.sandbox.containers.processes.MARK_VARIABLE`.
        credentials: the kubeconfig document of the programs.
        time_scale: delays of restarts are divided by this.
        observe: is notified of what the programs do.
    """

    def __init__(
        self,
        commands: Sequence[DriverCommand],
        cluster: CommandCluster,
        *,
        mark: str,
        credentials: Mapping[str, Any],
        time_scale: float,
        observe: RecordObserver,
    ) -> None:
        self._commands = commands
        self._cluster = cluster
        self._mark = mark
        self._account = _Account(credentials)
        self._time_scale = time_scale
        self._observe = observe
        self._reaper = ReaperClient(cluster.directory / "commands", self._ended)
        self._intake = OutputReader()
        self._owners = SocketOwners()
        self._stack = ExitStack()
        self._failed = asyncio.Event()
        self._late: list[CommandProcess] = []
        self.processes: list[CommandProcess] = []

    def start(self) -> None:
        """Start all of them."""
        if not self._commands:
            return
        for name in ("commands", LOG_DIRECTORY):
            (self._cluster.directory / name).mkdir()
        self._account.write(self._cluster.directory / "in-cluster")
        for node in self._cluster.nodes:
            node.runtime.program_ended = self._ended
        kubeconfig = str(self._cluster.kubeconfig.absolute())
        for command in self._commands:
            if command.kind == "plugin":
                for node in self._cluster.nodes:
                    places, variables = node.places(kubeconfig), node.variables(kubeconfig)
                    self._add(command, places, variables, node)
            else:
                places = {"kubeconfig": kubeconfig}
                if command.kind == "webhook":
                    places |= self._certificate(command)
                self._add(command, places, {"KUBECONFIG": kubeconfig, "DRA_KUBECONFIG": kubeconfig})
        for process in self.processes:
            process.start()

    async def stop(self) -> None:
        """Terminate all of them at the same time, and return when none is left."""
        await asyncio.gather(*(process.stop() for process in self.processes))
        await self._reaper.close()
        self._stack.close()

    async def fail(self) -> None:
        """Wait until a program cannot be run, and raise why.

        Raises:
            SandboxError: always.
        """
        await self._failed.wait()
        raise SandboxError(next(process.failure for process in self.processes if process.failure))

    async def ready(self) -> None:
        """Wait until plugins are registered and publish, and webhooks listen; report those that are not in time."""
        await asyncio.gather(*(self._ready(process) for process in self.processes))

    def never_ready(self) -> list[str]:
        """Return a text for each program that :meth:`ready` has reported and that is still not ready."""
        return [
            f"{process.name} {_missing(process)}: {'; '.join(self._causes(process))}"
            for process in self._late
            if not self._is_ready(process)
        ]

    def webhook(self, namespace: str, service: str) -> LocalWebhook | None:
        """Return the program that stands for a Service of webhooks."""
        for process in self.processes:
            if process.command.serves(namespace, service):
                return LocalWebhook(HOST, process.port, (self._authority(process.command) / "ca.crt").read_text())
        return None

    # ---

    def _add(
        self,
        command: DriverCommand,
        places: Mapping[str, str],
        variables: Mapping[str, str],
        node: SandboxNode | None = None,
    ) -> None:
        port = 0
        if "port" in command.placeholders:
            reserved = self._stack.enter_context(reserved_port())
            port = int(reserved.getsockname()[1])
        values = {**places, "port": str(port)}
        name = f"{command.name}@{node.name}" if node else command.name
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(_OWN_VARIABLES)}
        own = {PROCESS_VARIABLE: name, MARK_VARIABLE: self._mark}
        self.processes.append(
            CommandProcess(
                command,
                name,
                command.arguments(values),
                {**inherited, **self._account.variables, **variables, **command.environment(values), **own},
                reaper=node.runtime.processes if node else self._reaper,
                intake=self._intake,
                log=self._cluster.directory / LOG_DIRECTORY / f"{name}.log",
                # the file of a token is mounted for those that have no kubeconfig
                mounts=() if "kubeconfig" in command.placeholders else self._account.mounts,
                port=port,
                node=node,
                time_scale=self._time_scale,
                observe=self._observe,
                failed=self._failed.set,
            )
        )

    def _ended(self, identity: str, code: int) -> None:
        for process in self.processes:
            process.ended(identity, code)

    def _authority(self, command: DriverCommand) -> Path:
        return self._cluster.directory / f"webhook-{command.name}"

    def _certificate(self, command: DriverCommand) -> dict[str, str]:
        """Write a certificate for a webhook; return the values of its placeholders."""
        folder = self._authority(command)
        folder.mkdir()
        authority = new_authority()
        certificate = authority.issue_cert(HOST, "localhost")
        paths = {"cert": folder / "tls.crt", "key": folder / "tls.key", "ca": folder / "ca.crt"}
        paths["cert"].write_bytes(b"".join(item.bytes() for item in certificate.cert_chain_pems))
        paths["key"].touch(mode=0o600)
        paths["key"].write_bytes(certificate.private_key_pem.bytes())
        paths["ca"].write_bytes(authority.cert_pem.bytes())
        return {name: str(path) for name, path in paths.items()}

    async def _ready(self, process: CommandProcess) -> None:
        begin = time.monotonic()
        while not self._is_ready(process):
            if (
                time.monotonic() > begin + READY_SECONDS and process.runs
            ):  # one that exits is reported as soon as it is given up
                self._late.append(process)
                self._report(process, time.monotonic() - begin)
                return
            await asyncio.sleep(_POLL)
        deadline = time.monotonic() + PUBLISH_SECONDS
        while process.node and not self._publishes(process) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL)

    def _is_ready(self, process: CommandProcess) -> bool:
        """Return whether a plugin is registered, or a webhook listens; a controller has nothing of the kind."""
        if process.command.kind == "controller":
            return True
        return self._is_registered(process) if process.command.kind == "plugin" else _listens(process)

    def _drivers(self, process: CommandProcess) -> list[str]:
        """Return the drivers that a plugin is registered as."""
        if process.node is None:
            return []
        registered = process.node.kubelet.plugins.registrations
        sockets = find_sockets(process.node.directory / "plugins_registry")
        return [
            driver
            for path, driver in registered.items()
            if path in sockets and self._owners.of(path, sockets[path]) == process.name
        ]

    def _is_registered(self, process: CommandProcess) -> bool:
        node = process.node
        return node is not None and any(map(node.kubelet.plugins.connected, self._drivers(process)))

    def _publishes(self, process: CommandProcess) -> bool:
        drivers = self._drivers(process)
        node = process.node.name if process.node else ""
        specs = (item["spec"] for item in self._cluster.informers.objects(RESOURCE_SLICES).values())
        return any(spec["driver"] in drivers and spec.get("nodeName") in {None, node} for spec in specs)

    def _report(self, process: CommandProcess, waited: float) -> None:
        node = process.node.name if process.node else ""
        causes = tuple(self._causes(process))
        self._observe(
            CommandNotReady(process=process.name, node=node, waited=waited, message=_missing(process), causes=causes)
        )

    def _causes(self, process: CommandProcess) -> Iterator[str]:
        if process.node is None:
            yield "pass {port} to the flag for its port, and {cert} and {key} to those for its certificate"
            return
        registry = process.node.directory / "plugins_registry"
        sockets = find_sockets(registry)
        own = [path for path, identity in sockets.items() if self._owners.of(path, identity) == process.name]
        refusals = process.node.kubelet.plugins.refusals
        for driver in self._drivers(process):
            yield unconnected(process.node, driver)
        for path in own:
            if path not in process.node.kubelet.plugins.registrations:
                yield refusals.get(path) or f"the kubelet waits for the answer to GetInfo at socket {path}"
        if not own:
            yield (
                f"it has no registration socket in {registry}; pass {{registry}} to its flag for the kubelet's plugin "
                "registry, and {plugins} to that for its own directory"
            )
        for path in sockets.keys() - set(own):
            yield f"socket {path} belongs to another process"


def _missing(process: CommandProcess) -> str:
    """Return what a program lacks that is not ready."""
    return "is not registered with the kubelet" if process.node else f"does not listen on port {process.port}"


def unconnected(node: SandboxNode, driver: str) -> str:
    """Return that a driver is registered on a node, but its own socket cannot be reached."""
    endpoint = node.kubelet.plugins.plugin(driver).endpoint
    return f"it is registered as {driver}, but the kubelet has no connection to its socket {endpoint}"


class CommandProcess:
    """One program on one node, or in the cluster.

    Attributes:
        failure: why it cannot be run; empty while it is tried.
    """

    def __init__(
        self,
        command: DriverCommand,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        reaper: ReaperClient,
        intake: OutputReader,
        log: Path,
        mounts: Sequence[VolumeMount],
        port: int,
        node: SandboxNode | None,
        time_scale: float,
        observe: RecordObserver,
        failed: Callable[[], None],
    ) -> None:
        self.command = command
        self.name = name
        self.port = port
        self.node = node
        self.failure: str = ""
        self._arguments = list(arguments)
        self._environment = environment
        self._reaper = reaper
        self._intake = intake
        self._log_path = log
        self._mounts = mounts
        self._time_scale = time_scale
        self._observe = observe
        self._failed = failed
        self._attempt = 0
        self._exit: asyncio.Future[int] | None = None
        self._stopping = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        """Whether it is running."""
        return self._exit is not None and not self._exit.done()

    def start(self) -> None:
        """Start it, and restart it when it exits."""
        self._work = asyncio.create_task(self._keep_running(), name=self.name)

    async def stop(self) -> None:
        """Terminate it, kill it if that takes too long, and return when it is gone."""
        self._stopping.set()
        if self._work is not None:
            await asyncio.wait([self._work])
            self._work.result()

    def ended(self, identity: str, code: int) -> None:
        """Take the exit code of a process of the reaper."""
        if identity == self._identity and self._exit is not None and not self._exit.done():
            self._exit.set_result(128 - code if code < 0 else code)

    @property
    def _identity(self) -> str:
        return f"{self.name} {self._attempt}"

    @property
    def _node_name(self) -> str:
        return self.node.name if self.node else ""

    async def _keep_running(self) -> None:
        delay, at_once, has_run = _FIRST_DELAY, 0, False
        log = CommandLog(self._log_path, self._written)
        try:
            while True:
                begin = time.monotonic()
                code, message = await self._run(log)
                log.finish()
                if self._stopping.is_set():
                    self._observe(CommandEnded(process=self.name, node=self._node_name, code=code))
                    return
                seconds = time.monotonic() - begin
                has_run = has_run or seconds > _AT_ONCE_SECONDS
                at_once = 0 if has_run else at_once + 1
                if at_once == _AT_ONCE_TIMES:
                    self._give_up(code, message, log)
                    return
                delay = _FIRST_DELAY if seconds > _FORGOTTEN_SECONDS else delay
                wait = delay / self._time_scale
                self._observe(
                    CommandEnded(
                        process=self.name, node=self._node_name, code=code, message=message, restart_after=wait
                    )
                )
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), wait)
                    return
                delay = min(delay * 2, _LAST_DELAY)
                self._attempt += 1
        finally:
            log.close()

    async def _run(self, log: CommandLog) -> tuple[int, str]:
        """Run it to its end; return its exit code, and why it could not be started."""
        self._exit = asyncio.get_running_loop().create_future()
        log.last.clear()
        self._observe(
            CommandStarted(
                process=self.name, node=self._node_name, command=tuple(self._arguments), attempt=self._attempt
            )
        )
        pipe, output = self._intake.open(log)
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            result = await self._reaper.start(
                self._identity,
                self._arguments,
                executable=self._arguments[0],
                environment=self._environment,
                directory=self.command.directory,
                streams=(nothing, output, output),
                mounts=[volume_order(mount) for mount in self._mounts],
                # what a driver mounts in its directory is seen by its node
                shares=self.node is not None and self.node.runtime.namespace is not None,
            )
        finally:
            os.close(output)
            os.close(nothing)
        if result.number:
            pipe.finish()
            self._exit.set_result(127)
            return 127, start_failure(self._arguments[0], result).rpartition("exec: ")[2]
        stopping = asyncio.ensure_future(self._stopping.wait())
        waits: list[asyncio.Future[Any]] = [self._exit, stopping]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not self._exit.done():
            self._reaper.signal(self._identity, 15)
            await asyncio.wait([self._exit], timeout=_TERMINATION_SECONDS)
        if not self._exit.done():
            self._reaper.kill(self._identity)
        code = await self._exit
        pipe.finish()
        return code, ""

    def _written(self, lines: Sequence[str], left_out: int) -> None:
        self._observe(CommandOutput(process=self.name, node=self._node_name, lines=tuple(lines), left_out=left_out))

    def _give_up(self, code: int, message: str, log: CommandLog) -> None:
        self._observe(CommandEnded(process=self.name, node=self._node_name, code=code, message=message))
        on = f" on {self._node_name}" if self._node_name else ""
        wrote = " | ".join(log.last) or "nothing"
        why = message or f"the last time with exit code {code}; its last lines: {wrote}"
        self.failure = (
            f"{self.command.title} exited at once {_AT_ONCE_TIMES} times{on}, {why}; correct its arguments or its "
            f"environment, which 'dra-kit sandbox env' prints; it was run as: {shlex.join(self._arguments)}"
        )
        self._failed()


class CommandLog:
    """What a program writes: into a file, each line with its time, and to a listener, unless there is too much.

    Args:
        path: the file; what is older than the newest megabytes is in a second file, and then dropped.
        listener: called with lines, and the number of lines before them that it did not get.

    Attributes:
        last: the last lines.
    """

    def __init__(self, path: Path, listener: Callable[[Sequence[str], int], None]) -> None:
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self._path = path
        self._listener = listener
        self._file = path.open("ab", buffering=0)  # each block is written at once, for readers that follow
        self._size = 0
        self._rest = b""
        self._allowance = RateLimit(*OUTPUT_LINES)
        self._left_out = 0

    def append(self, data: bytes, at: int) -> None:
        """See :class:`dra_kit.sandbox.containers.log.OutputSink`."""
        *lines, rest = (self._rest + data).split(b"\n")
        while len(rest) > _LINE_MAX:
            lines.append(rest[:_LINE_MAX])
            rest = rest[_LINE_MAX:]
        self._rest = rest
        self._take(lines, at)

    def finish(self) -> None:
        """Take an unfinished last line."""
        rest, self._rest = self._rest, b""
        if rest:
            self._take([rest], time.time_ns())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _take(self, lines: Sequence[bytes], at: int) -> None:
        if not lines:
            return
        texts = [line[:_LINE_MAX].decode(errors="replace").rstrip("\r") for line in lines]
        self.last.extend(text for text in texts if text.strip())
        when = dt.datetime.fromtimestamp(at / 1e9, dt.UTC).isoformat(timespec="microseconds")
        block = "".join(f"{when} {text}\n" for text in texts).encode()
        with suppress(OSError):  # on a full disk the file lacks lines, but the program must not block
            if self._size + len(block) > _LOG_LIMIT:
                self._path.replace(self._path.with_name(f"{self._path.name}{OLDER}"))
                former, self._file, self._size = self._file, self._path.open("ab", buffering=0), 0
                former.close()
            self._file.write(block)
            self._size += len(block)
        room = max(self._allowance.left(time.monotonic()), 0)
        self._allowance.take(min(len(texts), room))
        self._left_out += max(len(texts) - room, 0)
        if shown := texts[max(len(texts) - room, 0) :] if room else []:
            left_out, self._left_out = self._left_out, 0
            self._listener(shown, left_out)


class LogEntry(Struct, frozen=True, order=True):
    """A line of a log.

    Attributes:
        at: when, as ISO 8601 in UTC.
        process: the name of the process.
    """

    at: str
    process: str
    text: str


def read_logs(directory: Path) -> dict[str, list[LogEntry]]:
    """Return the logs of the programs of a sandbox, by process, oldest line first.

    Args:
        directory: that of the sandbox.
    """
    found: dict[str, list[LogEntry]] = {}
    for path in sorted((directory / LOG_DIRECTORY).glob("*.log")):
        entries = found[path.name.removesuffix(".log")] = []
        for file in (path.with_name(f"{path.name}{OLDER}"), path):
            with suppress(FileNotFoundError):
                for line in file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
                    at, _, text = line.partition(" ")
                    entries.append(LogEntry(at, path.name.removesuffix(".log"), text))
    return found


class SocketOwners:
    """Finds the program that listens at a socket, by the environment of its process; each socket is asked once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, SocketIdentity], str] = {}

    def of(self, path: Path, identity: SocketIdentity) -> str:
        """Return the name of the process that listens there; empty if it is not known."""
        key = (path, identity)
        if not self._known.get(key):
            self._known[key] = _owner(path)
        return self._known[key]


def _owner(path: Path) -> str:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            client.connect(str(path))
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process = struct.unpack("3i", credentials)[0]  # of the process that has called listen(2)
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return ""
    prefix = f"{PROCESS_VARIABLE}=".encode()
    return next((item[len(prefix) :].decode() for item in environment.split(b"\0") if item.startswith(prefix)), "")


def _listens(process: CommandProcess) -> bool:
    with socket.socket() as client:
        client.settimeout(_POLL)
        return client.connect_ex((HOST, process.port)) == 0


class _Account:
    """What ``rest.InClusterConfig`` of client-go reads.

    Attributes:
        variables: they lead to the API server.
        mounts: the folder of the token, at its path in a pod.
    """

    def __init__(self, kubeconfig: Mapping[str, Any]) -> None:
        cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
        self.variables = api_server_variables(cluster["server"])
        self.mounts: tuple[VolumeMount, ...] = ()
        self._files = {
            "token": user["token"].encode(),
            "ca.crt": base64.b64decode(cluster["certificate-authority-data"]),
            "namespace": b"default",
        }

    def write(self, folder: Path) -> None:
        """Write the files into a new folder."""
        folder.mkdir()
        for name, data in self._files.items():
            (folder / name).write_bytes(data)
        self.mounts = (VolumeMount(_ACCOUNT_PATH, str(folder), read_only=True),)
