"""A container runtime that runs each container as a process."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.errors import KubeletError
from dra_kit.kubelet.nri import CallError
from dra_kit.kubelet.nri import messages as pb
from dra_kit.kubernetes.resource.objects import PodReference, containers, init_containers
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.log import LIMIT, ContainerLog, OutputPipe, OutputReader
from dra_kit.sandbox.containers.node_namespace import NodeNamespace, PodNetworks, Streams
from dra_kit.sandbox.containers.nri import (
    REQUEST_TIMEOUT,
    HookAdjustment,
    NriServer,
    container_message,
    merge_resources,
    pod_message,
    rpc_error,
)
from dra_kit.sandbox.containers.processes import (
    MARK_VARIABLE,
    START_LAYERS,
    NetworkNamespace,
    ReaperClient,
    device_order,
    image_environment,
    mount_error,
    mount_orders,
    start_failure,
    volume_order,
)
from dra_kit.sandbox.containers.runtime import (
    ContainerConfig,
    ContainerExit,
    ContainerReport,
    ContainerStatus,
    PodSandbox,
    SandboxConfig,
    environment_of,
    utc_now,
    without_process,
)
from dra_kit.sandbox.containers.streams import (
    AttachedStreams,
    CommandPlace,
    ContainerCommands,
    StreamEnd,
    open_main,
)

MOUNTS_VARIABLE: Final = "DRA_KIT_SANDBOX_MOUNTS"
"""Environment of a container whose volumes could not be mounted: where each is, as ``PATH=FOLDER``, with colons."""
_REMEMBERED: Final = 1000  # reports of containers whose pods are gone
_REMEMBERED_BYTES: Final = 64 << 20  # of their output, together
_ATTEMPTS: Final = 2  # of a container whose output is kept: the newest one, and the one before it
_START_ERROR: Final = 128
_POLL: Final = 0.02
_UNKNOWN: Final = 255  # containerd 2, of a container that the machine's end has taken with it
T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)


class Container(Struct):
    """A container of the runtime, as it is now."""

    config: ContainerConfig
    status: ContainerStatus
    directory: Path
    log: ContainerLog
    pipe: OutputPipe | None = None
    input: StreamEnd | None = None
    has_process: bool = True
    network: str = ""  # the namespace in which its process runs; empty for that of the node
    created: bool = False  # plugins know it
    started: bool = False
    kill_at: float | None = None
    killer: asyncio.TimerHandle | None = None

    def adjust(self, adjusted: HookAdjustment) -> None:
        """Change it as NRI plugins ask, before it starts."""
        if adjusted.command:
            self.config = replace(self.config, command=adjusted.command, arguments_only=False)
        variables = {**self.status.environment, **environment_of(adjusted.edits)}
        for name in adjusted.removed:
            variables.pop(name, None)
        self.status = replace(
            self.status, environment=variables, resources=adjusted.resources, hook_edits=adjusted.edits
        )

    def message(self, sandbox: PodSandbox) -> pb.Container:
        """Return it as plugins see it."""
        return container_message(sandbox, self.config, self.status, started=self.started)

    def report(self) -> ContainerReport:
        """Return it as the sandbox shows it."""
        return ContainerReport(self.config, self.status, self.log, self.has_process)


class ProcessRuntime:
    """A container runtime without images, namespaces and cgroups; an asynchronous context manager for one event loop.

    A container is a process group with the environment of the pod and of CDI, an empty working directory, and the
    volumes of the kubelet where the kernel lets this user mount; else :data:`MOUNTS_VARIABLE` says where they are. It
    shares all other files, network and users with this machine, or with its node's namespace, in which mounts and
    device files of CDI are made, too. Unlike the first process of a PID namespace, it ends with a SIGTERM that it does
    not handle. No process outlives the runtime, even if the process that owns it is killed.

    A container without a command would run the command of its image. Unless a folder stands for the image, such a
    container counts as running until it is stopped, and its output says so. Programs of such a folder come before those
    of this machine.

    Args:
        directory: parent of the containers' working directories, created and removed by the runtime; None for a
            temporary directory.
        mark: a text in the environment of every process that identifies orphans; it is left out of reports. Empty for
            none.
        output_limit: bytes that are stored of the output of each container, and of the attempt before it.
        intake: reads the output; runtimes of one event loop share one.
        nri_socket: where NRI plugins connect; None for no NRI.
        nri_timeout: seconds in which a plugin must answer.
        network_namespaces: give each pod a network namespace, instead of a file that stands for it. A container runs in
            it if hooks have moved an interface there before it starts; it has no other network then, except that it
            reaches the ports of this machine which programs of its node reach. In the namespaces of a node, pods that
            start while no NRI plugin is connected still get a file.
        node_directory: a container that mounts a missing file below it does not start. Mounts of other files are not
            checked, because simulated hardware has none.
        namespace: what containers run in, which is opened with the runtime; None for this machine.
    """

    scheme: ClassVar[str] = "local-process://"
    """With what the IDs of its containers begin."""
    version: str = f"{scheme}1"
    """``containerRuntimeVersion`` of the node: ``<name>://<version>``."""
    runs_images: ClassVar[bool] = False
    """Whether containers run in their image."""

    def __init__(
        self,
        *,
        directory: Path | None = None,
        mark: str = "",
        output_limit: int = LIMIT,
        intake: OutputReader | None = None,
        nri_socket: Path | None = None,
        nri_timeout: float = REQUEST_TIMEOUT,
        network_namespaces: bool = False,
        node_directory: Path | None = None,
        namespace: NodeNamespace | None = None,
    ) -> None:
        self._mark = {MARK_VARIABLE: mark} if mark else {}
        self._output_limit = output_limit
        self._intake = intake or OutputReader()
        self._containers: dict[str, Container] = {}
        self._past: deque[ContainerReport] = deque(maxlen=_REMEMBERED)
        self._listeners: list[tuple[Callable[[str], None], Callable[[str], None]]] = []
        self._work: set[asyncio.Task[Any]] = set()
        self._sandboxes: dict[str, PodSandbox] = {}  # by UID of the pod
        self._sandbox_starts: dict[PodReference, asyncio.Task[None]] = {}
        self.network_namespaces: Final = network_namespaces
        self._node_directory = node_directory
        self._stack = AsyncExitStack()
        self.program_ended: Callable[[str, int], None] = lambda *_: None
        """Called with the identity and the exit code of a process of :attr:`processes` that is not a container."""
        self.nri: NriServer | None = None
        """Serves plugins; None for no NRI."""
        if nri_socket is not None:
            name, _, version = self.version.partition("://")
            self.nri = NriServer(nri_socket, self, runtime=(name, version), request_timeout=nri_timeout)
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="dra-kit-containers-"))
        directory.mkdir(parents=True, exist_ok=True)
        self._root = directory
        self._networks = PodNetworks(directory / "netns", namespace, real=network_namespaces)
        self.namespace: NodeNamespace | None = namespace
        """The namespace of the node; None if containers share the mounts and the network of this machine."""
        self._processes = (
            ReaperClient(self._root, self._ended)
            if namespace is None
            else ReaperClient(self._root, self._ended, node=namespace.order, entered=namespace.entered)
        )
        self._commands = ContainerCommands(self._processes)

    async def __aenter__(self) -> Self:
        self.prepare()
        if self.namespace is not None:
            try:
                await self.namespace.open(self._processes)
            except BaseException:
                await self.__aexit__()
                raise
        if self.network_namespaces and self.namespace is None:
            NetworkNamespace().close()  # it may be forbidden
        if self.nri is not None:
            await self._stack.enter_async_context(self.nri)
        return self

    def prepare(self) -> None:
        """Create what the runtime needs before its first process starts."""
        if self.namespace is not None:
            self.namespace.prepare()

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        while self._work:
            await asyncio.wait(self._work)
        self._networks.close()
        if self.namespace is not None:
            await self.namespace.close()
        await self._processes.close()
        for container in self._containers.values():
            self._settle(container)
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def processes(self) -> ReaperClient:
        """Starts processes of the node; also programs of it that are not containers."""
        return self._processes

    # -- what the kubelet asks for

    def expect(self, pod: ObjectView) -> None:
        """Get ready for the containers of a pod, which start once its claims are prepared."""
        if any(container.get("command") for container in (*init_containers(pod), *containers(pod))):
            self._processes.expect()

    async def run_sandbox(self, config: SandboxConfig) -> None:
        """Make a pod's sandbox, unless the pod has one in which containers can start.

        Raises:
            KubeletError: an NRI plugin rejects it, and the sandbox is gone.
        """
        pod = config.pod
        if self.has_sandbox(pod.uid):
            return
        start = self._sandbox_starts.get(pod)
        if start is None:
            start = self._sandbox_starts[pod] = self.begin(self._run_sandbox(config))
            start.add_done_callback(lambda _: self._sandbox_starts.pop(pod))
        await asyncio.shield(start)

    def has_sandbox(self, pod_uid: str) -> bool:
        """Return whether a pod has a sandbox in which containers can start."""
        sandbox = self._sandboxes.get(pod_uid)
        return sandbox is not None and not sandbox.stopped and not self._networks.is_lost(sandbox.id)

    async def stop_sandbox(self, pod_uid: str) -> None:
        """Stop a pod's sandbox, whose containers have ended; a no-op if it has none."""
        # a kubelet that has stopped meanwhile may have left one that still starts
        if starts := [start for pod, start in self._sandbox_starts.items() if pod.uid == pod_uid]:
            await asyncio.wait(starts)
        sandbox = self._sandboxes.get(pod_uid)
        if sandbox is None or sandbox.stopped:
            return
        self._sandboxes[pod_uid] = stopped = replace(sandbox, stopped=True, left=self._interfaces(sandbox))
        await asyncio.shield(self.begin(self._stop_sandbox(stopped)))

    async def run(self, config: ContainerConfig) -> ContainerStatus:
        """Start a container; if it cannot start, it counts as exited with the reason ``StartError``.

        Raises:
            KubeletError: an NRI plugin rejects the container, and it does not exist.
        """
        identity = f"{self.scheme}{secrets.token_hex(16)}"
        directory = Path(tempfile.mkdtemp(prefix=f"{config.name[:32]}-", dir=self._root))
        variables = self._environment(config, directory)
        status = ContainerStatus(identity, config.name, config.attempt, config.image, utc_now(), environment=variables)
        container = Container(config, status, directory, ContainerLog(self._output_limit))
        self._containers[identity] = container
        self._forget_attempts(config)
        # a kubelet that ends meanwhile leaves no container half started
        work = self.begin(self._run(identity, container))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            # the next kubelet takes it for one that runs, until it learns the result
            work.add_done_callback(lambda _: self._changed(container))
            raise
        return container.status

    async def exec(
        self, container_id: str, command: Sequence[str], streams: Sequence[int], *, terminal: bool = False
    ) -> asyncio.Future[int]:
        """Start a command in a running container; return a future of its exit code, minus the signal's number if any.

        It has the environment, the working directory and the namespaces of the container, and ends with it.

        Args:
            container_id: the container.
            command: the program and its arguments.
            streams: file descriptors for input, output and errors; the caller closes them.
            terminal: they are a terminal.

        Raises:
            KubeletError: it cannot be started; the message is containerd's.
        """
        container = self._containers[container_id]
        place = CommandPlace(
            container_id if container.has_process else "",
            {**container.status.environment, **self._mark},
            container.directory,
        )
        return await self._commands.start(container_id, place, command, streams, terminal=terminal)

    def attach(self, container_id: str) -> AttachedStreams:
        """Connect a client with the process of a container."""
        container = self._containers[container_id]
        once = container.config.stdin_once and not container.config.terminal
        return AttachedStreams(container.log, container.input, once=once)

    async def dial(self, pod_uid: str, port: int) -> Streams:
        """Connect to a port of a pod.

        Raises:
            OSError: the connection is refused.
        """
        sandbox = self._sandboxes.get(pod_uid)
        there = (item for item in self._containers.values() if item.config.pod.uid == pod_uid)
        others = [item.network for item in there if item.status.running and item.has_process]
        return await self._networks.dial(sandbox.id if sandbox else "", port, others)

    def stop(self, container_id: str, grace: float) -> None:
        """Terminate a container, and kill it after ``grace`` seconds; another call can only shorten this time."""
        container = self._containers[container_id]
        if not container.status.running:
            return
        if not container.has_process:
            self._end(container, ContainerExit(0, "Completed", utc_now()))
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
        container.killer = loop.call_at(kill_at, self._kill, container_id)

    def containers(self, pod_uid: str) -> Sequence[ContainerStatus]:
        """Return the containers of a pod, including exited ones, oldest first."""
        return [item.status for item in self._containers.values() if item.config.pod.uid == pod_uid]

    def pods(self) -> Collection[PodReference]:
        """Return pods that have a sandbox, even one that still starts, or containers, including exited ones."""
        parts: list[Container | PodSandbox] = [*self._containers.values(), *self._sandboxes.values()]
        return list(dict.fromkeys((*(item.config.pod for item in parts), *self._sandbox_starts)))

    def remove(self, pod_uid: str) -> None:
        """Forget the sandbox of a pod, and its containers except their reports; all have ended."""
        sandbox = self._sandboxes.get(pod_uid)
        for identity in [key for key, item in self._containers.items() if item.config.pod.uid == pod_uid]:
            container = self._containers.pop(identity)
            self._settle(container)
            self._announce(pb.REMOVE_CONTAINER, sandbox, container)
            self._past.append(container.report())
            shutil.rmtree(container.directory, ignore_errors=True)
        if sandbox is not None:
            self._announce(pb.REMOVE_POD_SANDBOX, sandbox)
            del self._sandboxes[pod_uid]
        size = sum(report.log.size for report in self._past)
        for report in self._past:
            if size <= _REMEMBERED_BYTES:
                break
            size -= report.log.size
            report.log.discard()

    def subscribe(
        self, changed: Callable[[str], None], updated: Callable[[str], None] = lambda _: None
    ) -> Callable[[], None]:
        """Call functions with the UID of a pod; return a function that unsubscribes.

        Args:
            changed: called when a container of the pod exits.
            updated: called when NRI plugins have changed the resources of a container.
        """
        listener = (changed, updated)
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def lose_power(self) -> None:
        """End every container at once, with an unknown exit code, and every sandbox, as before a boot."""
        if self.nri is not None:
            await self.nri.disconnect()
        while self._work:  # what starts now has started before
            await asyncio.wait(self._work)
        running = {identity: item for identity, item in self._containers.items() if item.status.running}
        for identity, container in running.items():
            if container.has_process:
                self._kill(identity)
        while any(item.status.running and item.has_process for item in running.values()):  # noqa: ASYNC110
            await asyncio.sleep(_POLL)
        for container in running.values():
            container.status = replace(container.status, exit=ContainerExit(_UNKNOWN, "Unknown", utc_now()))
            self._settle(container)
        for container in self._containers.values():
            container.status = replace(container.status, before_boot=True)
        self._networks.close()
        self._sandboxes.clear()

    # -- what the sandbox shows

    def find(self, container_id: str) -> ContainerReport | None:
        """Return a container of a pod that has not been removed."""
        container = self._containers.get(container_id)
        return container.report() if container else None

    def reports(self, namespace: str, pod: str) -> list[ContainerReport]:
        """Return the containers of the pods of this name, oldest first; also of those deleted not long ago."""
        now = (container.report() for container in self._containers.values())
        return [item for item in (*self._past, *now) if _name(item.config.pod) == (namespace, pod)]

    def report(self, namespace: str, pod: str, container: str) -> ContainerReport | None:
        """Return the newest container of this name in the newest pod of this name; None while there was none."""
        found = [item for item in self.reports(namespace, pod) if item.config.name == container]
        return found[-1] if found else None

    def moved_interfaces(self, pod_uid: str) -> tuple[str, ...]:
        """Return the names of the network interfaces that hooks moved into a pod."""
        sandbox = self._sandboxes.get(pod_uid)
        return self._interfaces(sandbox) if sandbox else ()

    def interfaces(self, namespace: str, pod: str) -> Sequence[str]:
        """Return the names of the network interfaces that hooks moved, or CDI moves, into the pod of this name."""
        wanted = (namespace, pod)
        sandboxes = [item for item in self._sandboxes.values() if _name(item.config.pod) == wanted]
        reports = [item.report() for item in self._containers.values() if _name(item.config.pod) == wanted]
        names = [name for sandbox in sandboxes for name in self._interfaces(sandbox)]
        names += [device.name for report in reports for device in report.edits.net_devices]
        return list(dict.fromkeys(names))

    # --- dra_kit.sandbox.containers.nri.NriState

    def nri_pods(self) -> Sequence[pb.PodSandbox]:
        """See :class:`dra_kit.sandbox.containers.nri.NriState`."""
        return [pod_message(sandbox) for sandbox in self._sandboxes.values()]

    def nri_containers(self) -> Sequence[pb.Container]:
        """See :class:`dra_kit.sandbox.containers.nri.NriState`."""
        return [
            item.message(sandbox)
            for item in self._containers.values()
            if item.created and item.status.running and (sandbox := self._sandboxes.get(item.config.pod.uid))
        ]

    def nri_update(self, container_id: str, resources: pb.LinuxResources) -> None:
        """See :class:`dra_kit.sandbox.containers.nri.NriState`."""
        container = self._containers.get(f"{self.scheme}{container_id}")
        if container is not None:
            changed = merge_resources(container.status.resources, resources)
            container.status = replace(container.status, resources=changed)
            for _, updated in list(self._listeners):
                updated(container.config.pod.uid)

    # ---

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do something to its end, even if the kubelet that waits for it stops."""

        def end(task: asyncio.Task[T]) -> None:
            self._work.discard(task)
            if not task.cancelled():
                task.exception()  # a kubelet that waits for it gets it

        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(end)
        return task

    async def _run_sandbox(self, config: SandboxConfig) -> None:
        former = self._sandboxes.get(config.pod.uid)
        if former is not None and not former.stopped:  # its network is lost
            await self._stop_sandbox(replace(former, stopped=True), remove=True)
            del self._sandboxes[config.pod.uid]
        identity = secrets.token_hex(32)
        netns = None
        if not config.host_network:
            # in the namespaces of a node, nothing but a hook can move an interface
            wanted = self.namespace is None or (self.nri is not None and bool(self.nri.plugins))
            netns = await self._networks.open(identity, is_used=wanted)
        sandbox = PodSandbox(identity, config, netns)
        if self.nri is not None:
            try:
                await self.nri.pod_event(pb.RUN_POD_SANDBOX, sandbox)
            except CallError as error:
                await self._stop_sandbox(replace(sandbox, stopped=True), remove=True)
                text = f"NRI RunPodSandbox failed: {error.message}"
                raise KubeletError(rpc_error(error.code, text)) from None
            with suppress(OSError):  # each container finds out again, and reports it
                await self._networks.refresh(identity)
        self._sandboxes[config.pod.uid] = sandbox

    async def _stop_sandbox(self, sandbox: PodSandbox, *, remove: bool = False) -> None:
        await self._inform(pb.STOP_POD_SANDBOX, sandbox)
        self._networks.close(sandbox.id)
        if remove:
            await self._inform(pb.REMOVE_POD_SANDBOX, sandbox)

    def _interfaces(self, sandbox: PodSandbox) -> tuple[str, ...]:
        return sandbox.left if sandbox.stopped else self._networks.interfaces(sandbox.id)

    def _announce(
        self, event: pb.Event.ValueType, sandbox: PodSandbox | None, container: Container | None = None
    ) -> None:
        """Inform plugins, and do not wait for them; in the order of the calls."""
        created = container is None or container.created
        if self.nri is not None and self.nri.plugins and sandbox is not None and created:
            self.begin(self._inform(event, sandbox, container))

    async def _inform(self, event: pb.Event.ValueType, sandbox: PodSandbox, container: Container | None = None) -> None:
        """Inform plugins of what they cannot prevent."""
        if self.nri is None:
            return
        try:
            if container is None:
                await self.nri.pod_event(event, sandbox)
            else:
                await self.nri.container_event(event, sandbox, container.message(sandbox))
        except CallError as error:
            logger.warning("event %s of pod %s: %s", pb.Event.Name(event), sandbox.config.pod, error)

    async def _run(self, identity: str, container: Container) -> None:
        """Create a container as the plugins want it, and start it."""
        sandbox = self._sandboxes.get(container.config.pod.uid)
        if self.nri is not None and sandbox is not None:
            try:
                adjusted = await self.nri.create_container(sandbox, container.message(sandbox))
            except CallError as error:
                self._drop(identity, container)
                for event in (pb.STOP_CONTAINER, pb.REMOVE_CONTAINER):  # other plugins may have done something
                    await self._inform(event, sandbox, container)
                raise KubeletError(f"failed to get NRI adjustment for container: {error.message}") from None
            container.adjust(adjusted)
            container.created = True
            await self._inform(pb.POST_CREATE_CONTAINER, sandbox, container)
        if self.namespace is None:
            for path, source in container.report().mounts.items():
                if self._is_missing(source):
                    self._refuse(container, mount_error(source, path))
                    return
        if self.nri is not None and sandbox is not None:
            try:
                await self.nri.container_event(pb.START_CONTAINER, sandbox, container.message(sandbox))
            except CallError as error:
                self._refuse(container, f"NRI container start failed: {error.message}")
                return
        if self._has_process(container.config):
            try:
                await self._start(identity, container)
            except KubeletError:
                self._drop(identity, container)
                raise
        else:
            container.has_process = False
            container.log.append(without_process(container.config).encode(), time.time_ns())
        if sandbox is not None and container.status.running:
            container.started = True
            await self._inform(pb.POST_START_CONTAINER, sandbox, container)

    def _drop(self, identity: str, container: Container) -> None:
        """Forget a container that does not exist after all."""
        del self._containers[identity]
        shutil.rmtree(container.directory, ignore_errors=True)

    def _is_missing(self, source: str) -> bool:
        where = self._node_directory
        return where is not None and Path(source).is_relative_to(where) and not Path(source).exists()

    def _forget_attempts(self, config: ContainerConfig) -> None:
        """Drop the output of attempts that can no longer be requested."""
        for item in self._containers.values():
            same = (item.config.pod.uid, item.config.name) == (config.pod.uid, config.name)
            if same and item.config.attempt <= config.attempt - _ATTEMPTS:
                item.log.discard()

    def _environment(self, config: ContainerConfig, directory: Path) -> dict[str, str]:
        """Return the variables of a container before it is created."""
        image = config.local_image
        variables = {
            **image_environment(config.hostname, directory),
            **(image.environment if image else {}),
            **config.environment,
            **environment_of(config.edits),
        }
        if image is not None and self.namespace is None:  # there, its files are at their paths
            variables["PATH"] = image.path(variables["PATH"])
        return variables

    def _has_process(self, config: ContainerConfig) -> bool:
        """Return whether a process runs in a container."""
        return bool(config.command and not config.arguments_only)

    def _kill(self, identity: str) -> None:
        """Kill the processes of a container."""
        self._processes.kill(identity)

    async def _start(self, identity: str, container: Container) -> None:
        config, command = container.config, container.config.command
        sandbox = self._sandboxes.get(config.pod.uid)
        if sandbox is not None:
            try:
                await self._networks.refresh(sandbox.id)
            except OSError as error:
                self._refuse(container, f"{START_LAYERS}network of the pod: {(error.strerror or str(error)).lower()}")
                return
        in_node, image = self.namespace is not None, config.local_image
        beside = None if in_node else image
        # volumes that others share are this machine's: what is mounted in them would have to be seen here
        volumes = [] if not in_node and any(mount.shared for mount in config.mounts) else config.mounts
        places = ":".join(f"{mount.path}={mount.source}" for mount in config.mounts)
        unmounted = {MOUNTS_VARIABLE: places} if places else {}
        edits = container.report().edits
        container.network = self._networks.path(sandbox.id) if sandbox else ""
        streams = open_main(config, self._intake, container.log)
        container.pipe, container.input = streams.pipe, streams.input
        try:
            result = await self._processes.start(
                identity,
                command,
                executable=beside.program(command[0]) if beside else command[0],
                environment={**container.status.environment, **self._mark},
                directory=beside.working_directory(container.directory) if beside else container.directory,
                streams=streams.child,
                terminal=config.terminal,
                mounts=[*map(volume_order, volumes), *(mount_orders(edits) if in_node else ())],
                devices=[*map(device_order, edits.device_nodes)] if in_node else [],
                image=str(image.directory) if image and in_node else "",
                own_devices=in_node and not config.privileged,
                hostname=config.hostname if in_node else "",
                shares=in_node and any(mount.shared for mount in config.mounts),
                unmounted=unmounted,
                network=container.network,
            )
        finally:
            streams.close_child()
        if unmounted and not result.mounted:
            container.status = replace(container.status, environment={**container.status.environment, **unmounted})
        container.status = replace(container.status, edits_applied=in_node, stand_ins=result.stand_ins)
        if result.number:
            self._refuse(container, start_failure(command[0], result))

    def _refuse(self, container: Container, message: str) -> None:
        how = ContainerExit(_START_ERROR, "StartError", utc_now(), message=message)
        container.status = replace(container.status, exit=how)
        self._settle(container)
        self._announce(pb.STOP_CONTAINER, self._sandboxes.get(container.config.pod.uid), container)

    def _ended(self, identity: str, code: int) -> None:
        self._commands.ended(identity, code)
        container = self._containers.get(identity)
        if container is None:
            self.program_ended(identity, code)
            return
        code = 128 - code if code < 0 else code
        self._end(container, ContainerExit(code, "Error" if code else "Completed", utc_now()))

    def _end(self, container: Container, how: ContainerExit) -> None:
        container.status = replace(container.status, exit=how)
        self._settle(container)
        self._announce(pb.STOP_CONTAINER, self._sandboxes.get(container.config.pod.uid), container)
        self._changed(container)

    def _changed(self, container: Container) -> None:
        for changed, _ in list(self._listeners):
            changed(container.config.pod.uid)

    def _settle(self, container: Container) -> None:
        if container.pipe is not None:
            # all that the process itself wrote is in it by now
            container.pipe.finish()
        if container.input is not None:
            container.input.close()
        self._commands.kill(container.status.id)
        container.log.finish(time.time_ns())
        if container.killer is not None:
            container.killer.cancel()


def _name(pod: PodReference) -> tuple[str, str]:
    return pod.namespace, pod.name
