"""The container runtime's side of NRI: plugins register at a socket, and act when pods and containers start and stop.

Order, conditions and messages are those of containerd 2.4 with NRI 0.12.3 (github.com/containerd/nri,
``pkg/adaptation``; github.com/containerd/containerd, ``internal/cri/nri``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from google.protobuf.message import Message
from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.kubelet.cdi.spec import DeviceNode, Hook, Mount, NetDevice, SpecEdits
from dra_kit.kubelet.nri import CallError, ConnectionLost
from dra_kit.kubelet.nri import messages as pb
from dra_kit.kubelet.nri.client import PLUGIN_CONNECTION, PLUGIN_SERVICE, RUNTIME_CONNECTION, RUNTIME_SERVICE
from dra_kit.kubelet.nri.ttrpc import INVALID_ARGUMENT, UNIMPLEMENTED, UNKNOWN, Method, Mux, TtrpcConnection
from dra_kit.sandbox.containers.runtime import (
    ContainerConfig,
    ContainerStatus,
    HookResources,
    PodSandbox,
    effective_edits,
    parse_numbers,
)

NRI_VERSION: Final = "v0.12.3"
REQUEST_TIMEOUT: Final = 2.0
"""Seconds in which a plugin must answer; the default of containerd."""
REGISTRATION_TIMEOUT: Final = 5.0
"""Seconds in which a plugin must register after it has connected; the default of containerd."""
_VALID_EVENTS: Final = (1 << 14) - 1
_METHODS: Final = {number: "".join(part.capitalize() for part in name.split("_")) for name, number in pb.Event.items()}
_NAME: Final = re.compile(r"[a-zA-Z0-9_.+-]+")
_PART: Final = 256  # objects in one message of a synchronization, which must not exceed 4 MiB
_CODES: Final = {
    3: "InvalidArgument", 4: "DeadlineExceeded", 5: "NotFound", 8: "ResourceExhausted", 12: "Unimplemented",
    13: "Internal", 14: "Unavailable",
}  # fmt: skip
AnswerT = TypeVar("AnswerT", bound=Message)

logger: logging.Logger = logging.getLogger(__name__)


class HookAdjustment(Struct, frozen=True):
    """What plugins change in a container that is being created.

    Attributes:
        edits: variables, mounts, device files, interfaces and OCI hooks, as CDI has them.
        removed: variables that the container does not get.
        command: replaces that of the container; empty for its own.
        resources: of the container.
    """

    edits: SpecEdits = field(default_factory=SpecEdits)
    removed: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    resources: HookResources = field(default_factory=HookResources)


class NriState(Protocol):
    """The pods and containers of a runtime."""

    def nri_pods(self) -> Sequence[pb.PodSandbox]:
        """Return all sandboxes."""
        ...

    def nri_containers(self) -> Sequence[pb.Container]:
        """Return the containers that have been created and have not ended."""
        ...

    def nri_update(self, container_id: str, resources: pb.LinuxResources) -> None:
        """Change the resources of a container; a no-op if it does not exist.

        Raises:
            ValueError: the resources are invalid.
        """
        ...


class _Plugin(NamedTuple):
    label: str
    connection: TtrpcConnection
    events: int
    reading: asyncio.Task[None]

    def subscribes(self, event: pb.Event.ValueType) -> bool:
        return bool(self.events & 1 << (event - 1))


class NriServer:
    """Serves plugins at a socket; an asynchronous context manager.

    Events reach the plugins one after another, in the order of the plugins' indexes. A plugin that does not answer in
    time is disconnected, and the request continues without it.

    Args:
        socket: its path, at most 107 bytes.
        state: is synchronized with each plugin that connects, and updated by plugins.
        runtime: name and version that plugins see.
        request_timeout: seconds in which a plugin must answer.
    """

    def __init__(
        self, socket: Path, state: NriState, *, runtime: tuple[str, str], request_timeout: float = REQUEST_TIMEOUT
    ) -> None:
        self.socket = socket
        self._state = state
        self._runtime = runtime
        self._request_timeout = request_timeout
        self._plugins: list[_Plugin] = []
        self._turn = asyncio.Lock()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self.socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self.socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        await self.disconnect()
        self.socket.unlink(missing_ok=True)

    @property
    def plugins(self) -> list[str]:
        """Index and name of the plugins that are connected and synchronized, as ``00-name``, in order."""
        return [plugin.label for plugin in self._plugins]

    async def disconnect(self) -> None:
        """Close all connections, as when the runtime stops."""
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    # --- events

    async def pod_event(self, event: pb.Event.ValueType, sandbox: PodSandbox) -> None:
        """Call the plugins for an event of a pod.

        Raises:
            CallError: a plugin rejects it; those after it are not called.
        """
        request = pb.PodSandboxRequest(pod=pod_message(sandbox))
        async with self._turn:
            for plugin in self._subscribers(event):
                await self._call(plugin, event, request, pb.Empty)

    async def create_container(self, sandbox: PodSandbox, container: pb.Container) -> HookAdjustment:
        """Return what the plugins change in a new container, and change others as they ask.

        Raises:
            CallError: a plugin rejects it, two plugins set the same thing, or what they set is invalid.
        """
        owners: dict[tuple[str, ...], str] = {}
        adjusted = pb.ContainerAdjustment()
        updates: list[pb.ContainerUpdate] = []
        request = pb.ContainerRequest(pod=pod_message(sandbox), container=container)
        async with self._turn:
            for plugin in self._subscribers(pb.CREATE_CONTAINER):
                answer = await self._call(plugin, pb.CREATE_CONTAINER, request, pb.CreateContainerResponse)
                if answer is None:
                    continue
                claims = [("", *key) for key in _settings(answer.adjust)]
                for update in answer.update:
                    claims += [(update.container_id, *key) for key in _resource_settings(update.linux.resources)]
                for claim in claims:
                    if (other := owners.setdefault(claim, plugin.label)) != plugin.label:
                        what = " ".join(claim[1:])
                        text = f'plugins "{plugin.label}" and "{other}" both tried to set {what}'
                        raise CallError(UNKNOWN, text)
                adjusted.MergeFrom(answer.adjust)
                updates += answer.update
                # the next plugin sees the container as this one leaves it
                request.container.env.extend(f"{item.key}={item.value}" for item in answer.adjust.env)
                request.container.linux.resources.MergeFrom(answer.adjust.linux.resources)
            self._apply(updates)
        try:
            return adjustment(adjusted)
        except ValueError as error:
            raise CallError(UNKNOWN, str(error)) from None

    async def container_event(self, event: pb.Event.ValueType, sandbox: PodSandbox, container: pb.Container) -> None:
        """Call the plugins for another event of a container, and change containers as they ask.

        Raises:
            CallError: a plugin rejects it.
        """
        request = pb.ContainerRequest(pod=pod_message(sandbox), container=container)
        async with self._turn:
            for plugin in self._subscribers(event):
                if answer := await self._call(plugin, event, request, pb.StopContainerResponse):
                    self._apply(answer.update)

    def _subscribers(self, event: pb.Event.ValueType) -> list[_Plugin]:
        return [plugin for plugin in self._plugins if plugin.subscribes(event)]

    async def _call(
        self,
        plugin: _Plugin,
        event: pb.Event.ValueType,
        request: pb.PodSandboxRequest | pb.ContainerRequest,
        answer: type[AnswerT],
    ) -> AnswerT | None:
        """Return the answer of a plugin; None if there is none.

        Raises:
            CallError: the plugin rejects the event.
        """
        method = _METHODS[event]
        try:
            try:
                return await plugin.connection.call(
                    PLUGIN_SERVICE, method, request, answer, timeout=self._request_timeout
                )
            except CallError as error:
                if error.code != UNIMPLEMENTED or event in {pb.CREATE_CONTAINER, pb.STOP_CONTAINER}:
                    raise
            # a plugin from before NRI 0.12
            container = request.container if isinstance(request, pb.ContainerRequest) else None
            change = pb.StateChangeEvent(event=event, pod=request.pod, container=container)
            await plugin.connection.call(PLUGIN_SERVICE, "StateChange", change, pb.Empty, timeout=self._request_timeout)
        except CallError as error:
            raise CallError(error.code, rpc_error(error.code, error.message)) from None
        except (TimeoutError, ConnectionLost) as error:
            cause = str(error) or f"it did not answer within {self._request_timeout:g} s"
            logger.warning(
                "NRI plugin %s disconnected: %s failed: %s; the pod continues without the plugin",
                plugin.label,
                method,
                cause,
            )
            self._remove(plugin)
            plugin.reading.cancel()
        return None

    def _apply(self, updates: Iterable[pb.ContainerUpdate]) -> list[pb.ContainerUpdate]:
        """Change containers, and return the updates that failed."""
        failed = []
        for update in updates:
            try:
                self._state.nri_update(update.container_id, update.linux.resources)
            except ValueError as error:
                logger.warning("container %s not updated: %s", update.container_id, error)
                if not update.ignore_failure:
                    failed.append(update)
        return failed

    # --- plugins

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # a task of ours: asyncio before 3.12 reports it as an error if one of its server's is cancelled
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._serving.discard(task)
            writer.close()

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a plugin until it disconnects."""
        mux = Mux(reader, writer)
        registered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def register(request: Any, _: float | None) -> Message:
            if not (_NAME.fullmatch(request.plugin_name) and re.fullmatch("[0-9]{2}", request.plugin_idx)):
                raise CallError(UNKNOWN, f"invalid plugin name or index {request.plugin_idx}-{request.plugin_name}")
            if not registered.done():
                registered.set_result(f"{request.plugin_idx}-{request.plugin_name}")
            return pb.Empty()

        methods: Mapping[str, Method] = {
            "RegisterPlugin": Method(pb.RegisterPluginRequest, register),
            "UpdateContainers": Method(pb.UpdateContainersRequest, self._update),
        }
        mux.open(RUNTIME_CONNECTION, {RUNTIME_SERVICE: methods})
        connection = mux.open(PLUGIN_CONNECTION)
        reading = asyncio.create_task(mux.run())
        plugin: _Plugin | None = None
        try:
            label = await asyncio.wait_for(registered, REGISTRATION_TIMEOUT)
            plugin = await self._start(label, connection, reading)
            await asyncio.wait({reading})
        except (CallError, ConnectionLost, TimeoutError) as error:
            logger.warning(
                "NRI plugin rejected: it did not register, or cannot be configured: %s", str(error) or "no answer"
            )
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            if plugin is not None:
                self._remove(plugin)

    async def _start(self, label: str, connection: TtrpcConnection, reading: asyncio.Task[None]) -> _Plugin:
        """Configure and synchronize a plugin; no pod or container starts in between."""
        configuration = pb.ConfigureRequest(
            runtime_name=self._runtime[0],
            runtime_version=self._runtime[1],
            registration_timeout=round(REGISTRATION_TIMEOUT * 1000),
            request_timeout=round(self._request_timeout * 1000),
            nri_version=NRI_VERSION,
        )
        answer = await connection.call(
            PLUGIN_SERVICE, "Configure", configuration, pb.ConfigureResponse, timeout=self._request_timeout
        )
        if answer.events & ~_VALID_EVENTS:
            raise CallError(INVALID_ARGUMENT, f"invalid plugin events: {answer.events:#x}")
        plugin = _Plugin(label, connection, answer.events or _VALID_EVENTS, reading)
        async with self._turn:
            async with asyncio.timeout(self._request_timeout):  # the parts share it
                await self._synchronize(connection)
            if not reading.done():
                self._plugins.append(plugin)
                self._plugins.sort(key=lambda item: item.label)
        return plugin

    async def _synchronize(self, connection: TtrpcConnection) -> None:
        pods, containers = self._state.nri_pods(), self._state.nri_containers()
        parts = range(0, max(len(pods), len(containers), 1), _PART)
        for start in parts:
            more = start != parts[-1]
            part = slice(start, start + _PART)
            request = pb.SynchronizeRequest(pods=pods[part], containers=containers[part], more=more)
            answer = await connection.call(PLUGIN_SERVICE, "Synchronize", request, pb.SynchronizeResponse)
            if more and not answer.more:
                raise CallError(UNKNOWN, "plugin does not handle split sync requests")
            self._apply(answer.update)

    def _remove(self, plugin: _Plugin) -> None:
        with suppress(ValueError):
            self._plugins.remove(plugin)

    async def _update(self, request: Any, _: float | None) -> Message:
        async with self._turn:
            return pb.UpdateContainersResponse(failed=self._apply(request.update))


def pod_message(sandbox: PodSandbox) -> pb.PodSandbox:
    """Return a sandbox as plugins see it."""
    config = sandbox.config
    pod = config.pod
    cri = {"io.kubernetes.pod.name": pod.name, "io.kubernetes.pod.namespace": pod.namespace}
    namespaces = [pb.LinuxNamespace(type="network", path=str(sandbox.netns))] if sandbox.netns is not None else []
    return pb.PodSandbox(
        id=sandbox.id,
        name=pod.name,
        uid=pod.uid,
        namespace=pod.namespace,
        labels={**config.labels, **cri, "io.kubernetes.pod.uid": pod.uid},
        annotations=config.annotations,
        pid=0 if sandbox.stopped else os.getpid(),  # the process that stands for the sandbox's own
        linux=pb.LinuxPodSandbox(cgroup_parent=config.cgroup_parent, namespaces=namespaces),
    )


def container_message(
    sandbox: PodSandbox, config: ContainerConfig, status: ContainerStatus, *, started: bool
) -> pb.Container:
    """Return a container as plugins see it; its ID is without the name of the runtime."""
    identity = status.id.partition("://")[2]
    pod = config.pod
    edits = effective_edits(config, status)
    mounts = [
        *(
            pb.Mount(
                destination=item.path,
                source=item.source,
                type="bind",
                options=["rbind", "ro" if item.read_only else "rw"],
            )
            for item in config.mounts
        ),
        *(
            pb.Mount(destination=item.container_path, source=item.host_path, type=item.type, options=item.options)
            for item in edits.mounts
        ),
    ]
    state = pb.CONTAINER_RUNNING if started else pb.CONTAINER_CREATED
    return pb.Container(
        id=identity,
        pod_sandbox_id=sandbox.id,
        name=config.name,
        state=state if status.exit is None else pb.CONTAINER_STOPPED,
        labels={
            "io.kubernetes.container.name": config.name,
            "io.kubernetes.pod.name": pod.name,
            "io.kubernetes.pod.namespace": pod.namespace,
            "io.kubernetes.pod.uid": pod.uid,
        },
        args=config.command,
        env=[f"{name}={value}" for name, value in status.environment.items()],
        mounts=mounts,
        linux=pb.LinuxContainer(
            namespaces=pod_message(sandbox).linux.namespaces,
            devices=[
                pb.LinuxDevice(path=item.path, type=item.type or "c", major=item.major, minor=item.minor)
                for item in edits.device_nodes
            ],
            resources=resources_message(status.resources),
            cgroups_path=f"{sandbox.config.cgroup_parent}:cri-containerd:{identity}",
        ),
        created_at=int(status.started.timestamp() * 1e9),
        exit_code=status.exit.code if status.exit else 0,
        cdi_devices=[pb.CDIDevice(name=name) for name in config.cdi_devices],
    )


def resources_message(resources: HookResources) -> pb.LinuxResources:
    """Return the resources of a container as plugins see them."""
    limit = resources.memory_limit
    return pb.LinuxResources(
        cpu=pb.LinuxCPU(cpus=resources.cpus, mems=resources.memory_nodes),
        memory=pb.LinuxMemory(limit=pb.OptionalInt64(value=limit)) if limit is not None else None,
        hugepage_limits=[pb.HugepageLimit(page_size=size, limit=n) for size, n in resources.hugepages.items()],
        rdt_class=pb.OptionalString(value=resources.rdt_class) if resources.rdt_class else None,
        unified=resources.unified,
    )


def merge_resources(resources: HookResources, change: pb.LinuxResources) -> HookResources:
    """Return resources after a plugin's change; what the change leaves out stays.

    Raises:
        ValueError: a list of CPUs or memory nodes is invalid, as the kernel would find.
    """
    for numbers in (change.cpu.cpus, change.cpu.mems):
        parse_numbers(numbers)
    return replace(
        resources,
        cpus=change.cpu.cpus or resources.cpus,
        memory_nodes=change.cpu.mems or resources.memory_nodes,
        memory_limit=change.memory.limit.value if change.memory.HasField("limit") else resources.memory_limit,
        hugepages={**resources.hugepages, **{item.page_size: item.limit for item in change.hugepage_limits}},
        rdt_class=change.rdt_class.value if change.HasField("rdt_class") else resources.rdt_class,
        unified={**resources.unified, **change.unified},
    )


def adjustment(adjust: pb.ContainerAdjustment) -> HookAdjustment:
    """Return what plugins change in a container, in the terms of CDI.

    Raises:
        ValueError: a list of CPUs or memory nodes is invalid.
    """
    linux = adjust.linux
    resources = merge_resources(HookResources(), linux.resources)
    if linux.rdt.HasField("clos_id"):
        resources = replace(resources, rdt_class=linux.rdt.clos_id.value)
    return HookAdjustment(
        edits=SpecEdits(
            env=tuple(f"{item.key}={item.value}" for item in adjust.env if not _is_removal(item.key)),
            mounts=tuple(
                Mount(
                    host_path=item.source, container_path=item.destination, options=tuple(item.options), type=item.type
                )
                for item in adjust.mounts
                if not _is_removal(item.destination)
            ),
            device_nodes=tuple(
                DeviceNode(path=item.path, type=item.type, major=item.major, minor=item.minor)
                for item in linux.devices
                if not _is_removal(item.path)
            ),
            net_devices=tuple(
                NetDevice(host_interface_name=host, name=device.name or host)
                for host, device in sorted(linux.net_devices.items())
                if not _is_removal(host)
            ),
            hooks=tuple(_hooks(adjust.hooks)),
        ),
        removed=tuple(item.key[1:] for item in adjust.env if _is_removal(item.key)),
        command=tuple(adjust.args),
        resources=resources,
    )


def _hooks(hooks: pb.Hooks) -> Iterator[Hook]:
    for name, found in (
        ("prestart", hooks.prestart),
        ("createRuntime", hooks.create_runtime),
        ("createContainer", hooks.create_container),
        ("startContainer", hooks.start_container),
        ("poststart", hooks.poststart),
        ("poststop", hooks.poststop),
    ):
        for hook in found:
            yield Hook(hook_name=name, path=hook.path, args=tuple(hook.args), env=tuple(hook.env))


def _is_removal(key: str) -> bool:
    return key.startswith("-")


def _settings(adjust: pb.ContainerAdjustment) -> Iterator[tuple[str, ...]]:
    """Yield what an adjustment sets, each of which only one plugin may set, in NRI's terms."""
    linux = adjust.linux
    entries = {
        "Env": [item.key for item in adjust.env],
        "Mounts": [item.destination for item in adjust.mounts],
        "Annotations": list(adjust.annotations),
        "Devices": [item.path for item in linux.devices],
        "LinuxNetDevices": list(linux.net_devices),
    }
    for name, keys in entries.items():
        yield from ((name, key) for key in keys if not _is_removal(key))
    if adjust.args:
        yield ("Args",)
    yield from _resource_settings(linux.resources)


def _resource_settings(resources: pb.LinuxResources) -> Iterator[tuple[str, ...]]:
    simple = {
        "CPUSetCPUs": bool(resources.cpu.cpus),
        "CPUSetMems": bool(resources.cpu.mems),
        "MemLimit": resources.memory.HasField("limit"),
        "RdtClass": resources.HasField("rdt_class"),
    }
    yield from ((name,) for name, is_set in simple.items() if is_set)
    yield from (("HugepageLimits", item.page_size) for item in resources.hugepage_limits)
    yield from (("CgroupsUnified", key) for key in resources.unified)


def rpc_error(code: int, message: str) -> str:
    """Return an error of gRPC as Go prints it."""
    return f"rpc error: code = {_CODES.get(code, 'Unknown')} desc = {message}"
