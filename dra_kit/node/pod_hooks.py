"""The node's connection to the container runtime: runs the author's ``PodHooks`` when pods and containers start."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from prometheus_client import Metric
from typing_extensions import override

from dra_kit.author.calls import PendingResult, call
from dra_kit.author.claim import ConsumerReference
from dra_kit.author.pod_hooks import (
    ContainerAdjustment,
    ContainerResources,
    ContainerUpdate,
    HeldDevice,
    PodHooks,
    Runtime,
    RuntimeContainer,
    RuntimePod,
)
from dra_kit.author.prepared import DeviceNode, Mount
from dra_kit.errors import DraKitError, StoreError, TransientError, Unavailable
from dra_kit.kubelet.cdi.edits import device_variable
from dra_kit.kubelet.cdi.store import claim_kind
from dra_kit.kubelet.nri import HOOKS, ClientState, HookEvent, NriClient, NriError, Plugin, RuntimeParameters
from dra_kit.kubelet.nri import messages as pb
from dra_kit.kubelet.nri.hooks import ANSWERED_WITHIN
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.events import log_failure
from dra_kit.node.claims.guard import HookGuard
from dra_kit.node.claims.updates import DeviceUpdateWriter
from dra_kit.node.context import NodeContext
from dra_kit.node.hook_calls import HookCalls, StartedPods, checked_updates, device_updates, held_devices
from dra_kit.node.locks import HeldLock, NamedLocks
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import StateStore
from dra_kit.process.metrics import HOOK_CALLS, HOOKS_SKIPPED, RUNTIME_CONNECTED, RUNTIME_RECONNECTS
from dra_kit.slices.inventory import CurrentInventory

logger: logging.Logger = logging.getLogger(__name__)
INDEX: Final = "10"
"""The runtime calls plugins in the order of their two digits."""
READ_WITHIN: Final = 0.7
"""Seconds until the API server must have answered who uses a shared claim; the runtime waits for two."""
READ_AGAIN: Final = 5.0
"""Seconds after such a read without an answer in which no pod waits for another one."""
REPAIRED_WITHIN: Final = 2.0
"""Seconds that other pods wait for the hooks of those that started without the driver."""
LOOK_EVERY: Final = 0.2
"""Seconds between two checks whether a younger process takes over the connection."""
TRY_AGAIN: Final = 2.0
"""Seconds until a file or lock is tried again after an error of the disk."""
_CLOSED: Final = 0.1  # seconds in which the runtime notices that a connection was closed
_REMEMBERED: Final = 10_000  # pods that do not use a claim


# -- what the runtime reports, as the author's code gets it


def _container(container: pb.Container, *, created: bool) -> RuntimeContainer:
    variables = (item.partition("=") for item in container.env)
    cpu = container.linux.resources.cpu
    return RuntimeContainer(
        id=container.id,
        name=container.name,
        state=_state(container) if created else "creating",
        cgroup=container.linux.cgroups_path if created else "",
        cpus=cpu.cpus,
        memory_nodes=cpu.mems,
        env={name: value for name, _, value in variables},
    )


def _state(container: pb.Container) -> Literal["created", "running", "stopped"]:
    if container.state in {pb.CONTAINER_RUNNING, pb.CONTAINER_PAUSED}:
        return "running"
    return "stopped" if container.state == pb.CONTAINER_STOPPED else "created"


def _pod(
    pod: pb.PodSandbox, devices: Iterable[HeldDevice[Any]], containers: Iterable[RuntimeContainer] = ()
) -> RuntimePod:
    networks = [item.path for item in pod.linux.namespaces if item.type == "network" and item.path]
    return RuntimePod(
        id=pod.id,
        name=pod.name,
        namespace=pod.namespace,
        uid=pod.uid,
        labels=dict(pod.labels),
        annotations=dict(pod.annotations),
        netns=Path(networks[0]) if networks else None,
        cgroup_parent=pod.linux.cgroup_parent,
        devices=tuple(devices),
        containers=tuple(containers),
    )


# -- what the author's code returns, as the runtime gets it


def _resources(given: ContainerResources) -> pb.LinuxResources | None:
    """Return the resources that are set; two plugins that set the same one fail the container."""
    resources = pb.LinuxResources()
    if given.cpus is not None:
        resources.cpu.cpus = given.cpus
    if given.memory_nodes is not None:
        resources.cpu.mems = given.memory_nodes
    if given.memory_limit is not None:
        resources.memory.limit.value = given.memory_limit
    for size, limit in given.hugepages.items():
        resources.hugepage_limits.add(page_size=size, limit=limit)
    if given.rdt_class is not None:
        resources.rdt_class.value = given.rdt_class
    return resources if resources.ByteSize() else None


def update_message(update: ContainerUpdate) -> pb.ContainerUpdate:
    """Return an update of a container as the runtime gets it."""
    return pb.ContainerUpdate(
        container_id=update.container, linux=pb.LinuxContainerUpdate(resources=_resources(update))
    )


def _mount(mount: Mount) -> pb.Mount:
    return pb.Mount(
        destination=mount.container_path,
        source=mount.host_path,
        type=mount.type or "bind",
        options=mount.effective_options,
    )


_KINDS: Final = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}


def _device_node(node: DeviceNode) -> pb.LinuxDevice:
    """Return a device file, with its type and numbers, which NRI requires.

    Raises:
        TransientError: they are not given, and the host's file cannot be read.
    """
    kind, major, minor = node.type, node.major, node.minor
    if kind is None or major is None or minor is None:
        path = node.host_path or node.path
        try:
            found = os.lstat(path)
        except OSError as error:
            raise TransientError(
                f"device node {path} cannot be read: {error.strerror}; mount the node's /dev into the driver's pod, or "
                "give the DeviceNode type, major and minor",
                code="device-node-missing",
            ) from error
        kind = kind or _KINDS.get(stat.S_IFMT(found.st_mode))  # type: ignore[assignment]
        major = os.major(found.st_rdev) if major is None else major
        minor = os.minor(found.st_rdev) if minor is None else minor
    if kind is None:
        raise TransientError(f"{node.path} is not a device file; correct its path", code="device-node-missing")
    device = pb.LinuxDevice(path=node.path, type=kind, major=major, minor=minor)
    if node.file_mode is not None:
        device.file_mode.value = node.file_mode
    if node.uid is not None:
        device.uid.value = node.uid
    if node.gid is not None:
        device.gid.value = node.gid
    return device


def adjustment_message(adjustment: ContainerAdjustment, mounts: Iterable[Mount] = ()) -> pb.CreateContainerResponse:
    """Return the answer to CreateContainer, with further mounts."""
    adjust = pb.ContainerAdjustment(
        env=[pb.KeyValue(key=name, value=value) for name, value in adjustment.env.items()],
        mounts=map(_mount, (*adjustment.mounts, *mounts)),
    )
    resources = _resources(adjustment)
    if resources is not None or adjustment.device_nodes:
        devices = map(_device_node, adjustment.device_nodes)
        adjust.linux.CopyFrom(pb.LinuxContainerAdjustment(devices=devices, resources=resources))
    return pb.CreateContainerResponse(adjust=adjust, update=map(update_message, adjustment.updates))


# -- the hooks


class _Refused(Exception):
    """The answer to the runtime, with a text for users."""


_Reserved: TypeAlias = dict[str, Sequence[ConsumerReference] | None]
"""For whom claims are reserved, by UID; None if that could not be read."""


class HookPlugin(Plugin):
    """The driver's plugin of NRI: finds a pod's devices, calls the author's hooks, and stores what they return.

    Args:
        hooks: of the author.
        calls: calls them.
        locks: one for each pod, shared with the driver's other processes.
        consumers: returns for whom a claim is reserved now, from the API server.
    """

    def __init__(
        self,
        hooks: PodHooks[Any, Any, Any],
        calls: HookCalls,
        *,
        driver: str,
        boot_id: str,
        store: StateStore,
        inventory: CurrentInventory,
        updates: DeviceUpdateWriter,
        guard: HookGuard,
        started: StartedPods,
        locks: NamedLocks,
        consumers: Callable[[ClaimReference], Awaitable[Sequence[ConsumerReference]]],
    ) -> None:
        self._all_pods = hooks.scope == "all"
        self._module = type(hooks).__module__
        self._calls = calls
        self._boot_id = boot_id
        self._store = store
        self._inventory = inventory
        self._updates = updates
        self._guard = guard
        self._started = started
        self._consumers = consumers
        self._driver = driver
        self._own_kind = f"{claim_kind(driver)}="
        self._without: OrderedDict[tuple[str, str], None] = OrderedDict()  # UIDs of pods, and of claims they do not use
        self._locks = locks
        self._repairs: dict[str, asyncio.Task[None]] = {}  # of the last synchronization, by sandbox
        self._no_answer_until = 0.0
        self.runtime: RuntimeParameters | None = None

    @property
    @override
    def events(self) -> Sequence[HookEvent]:
        wanted = {pb.CREATE_CONTAINER}
        if self._calls.has("pod_starts"):
            # after an error of others, the runtime removes a sandbox that it does not stop
            wanted |= {pb.RUN_POD_SANDBOX, pb.STOP_POD_SANDBOX, pb.REMOVE_POD_SANDBOX}
        if self._calls.has("pod_stops"):
            wanted.add(pb.STOP_POD_SANDBOX)
        return [event for event in HOOKS if event.event in wanted]

    @override
    async def configure(self, runtime: RuntimeParameters) -> None:
        self.runtime = runtime

    @override
    async def synchronize(
        self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]
    ) -> Iterable[pb.ContainerUpdate]:
        with self._reported("pods not synchronized with the container runtime"):
            return await self._synchronize(pods, containers)

    async def _synchronize(
        self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]
    ) -> Iterable[pb.ContainerUpdate]:
        self._started.retain(pod.id for pod in pods)
        by_pod: dict[str, list[pb.Container]] = {}
        for container in containers:
            by_pod.setdefault(container.pod_sandbox_id, []).append(container)
        known: list[tuple[pb.PodSandbox, RuntimePod]] = []
        reserved: _Reserved = {}  # each claim is read once, not for each pod
        for pod in pods:
            of_pod = by_pod.get(pod.id, [])
            records = await self._held(pod, of_pod, reserved)
            if records or self._all_pods:
                found = [_container(item, created=True) for item in of_pod]
                known.append((pod, _pod(pod, self._devices(records), found)))
        updates = await self._calls.synchronize([described for _, described in known])
        self._repairs = {sandbox: repair for sandbox, repair in self._repairs.items() if not repair.done()}
        for pod, described in known:
            # runtimes also list sandboxes that have stopped; those without containers get the hook with the first one
            runs = pod.pid or any(container.state != "stopped" for container in described.containers)
            if runs and pod.id not in self._repairs:
                self._repairs[pod.id] = asyncio.create_task(self._repair(described))
        if self._repairs:
            await asyncio.wait(self._repairs.values(), timeout=REPAIRED_WITHIN)
        return map(update_message, updates)

    async def _repair(self, pod: RuntimePod) -> None:
        """Call the pod hook of a pod that started without the driver; its next container repeats it if it fails."""
        with suppress(_Refused), self._reported("pod that started without the driver not repaired"):
            await self._start_once(pod)

    def close(self) -> None:
        """Cancel what is left of the last connection. A hook that blocks keeps the lock of its pod."""
        for repair in self._repairs.values():
            repair.cancel()

    @override
    def needs_synchronization(self, pod: pb.PodSandbox, container: pb.Container | None) -> bool:
        if self._all_pods:
            return True
        try:
            held, shareable = self._recorded(pod, () if container is None else (container,))
        except StoreError:
            return True
        return bool(held) or any((pod.uid, record.uid) not in self._without for record in shareable)

    @override
    def activity(self, pod: pb.PodSandbox) -> str:
        found = self._calls.activity(f"{pod.namespace}/{pod.name}")
        with suppress(StoreError):
            if not found and self._locks.held_elsewhere(_turn_name(pod)):
                return "another process of the driver runs a hook of this pod"
        return found

    @override
    async def run_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        with self._reported("pod not started"):
            records = await self._held(pod, ())
            if records or self._all_pods:
                await self._start_once(_pod(pod, self._devices(records)))

    @override
    async def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse | None:
        with self._reported("container not created"):
            return await self._create_container(pod, container)

    async def _create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse | None:
        records = await self._held(pod, (container,))
        if not records and not self._all_pods:
            self._refuse_unknown(pod, container, ())
            return None
        described = _pod(pod, self._devices(records))
        await self._start_once(described)
        used = [(record, index) for record in records for index in self._used(record, container)]
        claims = list({record.uid: record for record, _ in used}.values())
        self._refuse_unknown(pod, container, claims)
        if not used and not self._all_pods:
            return None
        devices = [held_devices(record, self._inventory)[index] for record, index in used]
        async with self._turn(pod):
            adjustment = await self._calls.container_starts(described, _container(container, created=False), devices)
        opened = [self._guard.replacement(record.uid) for record in claims]
        return adjustment_message(adjustment or ContainerAdjustment(), opened)

    @override
    async def stop_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        with self._reported("pod not stopped"):
            records = await self._held(pod, ())
            if records or self._all_pods:
                async with self._turn(pod):
                    await self._calls.pod_stops(_pod(pod, self._devices(records)))
        self._started.remove(pod.id)

    @override
    async def remove_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        self._started.remove(pod.id)

    @contextmanager
    def _reported(self, message: str) -> Iterator[None]:
        """Log an error, and raise what users may read: the text is shown in the pod's Events."""
        try:
            yield
        except DraKitError as error:
            raise _Refused(log_failure(error, message, module=self._module, logger=logger).public) from None

    def _turn(self, pod: pb.PodSandbox | RuntimePod) -> HeldLock:
        """Return the lock that a hook of a pod holds: an earlier one may hang, also in an older process."""
        return self._locks.hold(_turn_name(pod))

    async def _start_once(self, pod: RuntimePod) -> None:
        """Call the pod hook for a sandbox, unless it has succeeded for all claims of the pod."""
        if not self._calls.has("pod_starts"):
            return
        claims = {device.claim.uid for device in pod.devices}
        async with self._turn(pod):
            done = self._started.claims(pod.id)
            if done is not None and claims <= done:
                return
            facts = await self._calls.pod_starts(pod)
            for claim, updates in device_updates(facts).items():
                await self._updates.store(claim, updates, who="pod_starts returned")
            self._started.add(pod.id, claims)

    def _devices(self, records: Iterable[ClaimRecord]) -> Iterator[HeldDevice[Any]]:
        for record in records:
            yield from held_devices(record, self._inventory)

    # -- which claims a pod holds, and which of their devices a container uses

    async def _held(
        self, pod: pb.PodSandbox, containers: Iterable[pb.Container], reserved: _Reserved | None = None
    ) -> list[ClaimRecord]:
        """Return the claims of a pod that are prepared in this boot.

        ``reserved`` has what the API server has answered already; by default it is asked.
        """
        held, shareable = self._recorded(pod, containers)
        known = {} if reserved is None else reserved
        added = await asyncio.gather(*(self._was_added(record, pod, known) for record in shareable))
        return held + [record for record, is_held in zip(shareable, added, strict=True) if is_held]

    def _recorded(
        self, pod: pb.PodSandbox, containers: Iterable[pb.Container]
    ) -> tuple[list[ClaimRecord], list[ClaimRecord]]:
        """Return the claims of a pod by records, or by its containers' CDI devices, and those that it may share.

        Only the kubelet gives a container CDI devices, for claims of its pod. Runtimes that do not report them report
        the mounts that they have made.
        """
        earlier = self._started.claims(pod.id) or frozenset[str]()
        given = list(containers)
        named = {item.name for container in given for item in container.cdi_devices}
        mounted = {
            (item.destination, item.source)
            for container in given
            if not container.cdi_devices
            for item in container.mounts
        }
        held, others = list[ClaimRecord](), list[ClaimRecord]()
        for record in self._store.claims():
            if record.is_in_force(self._boot_id) and record.namespace == pod.namespace:
                is_held = (
                    record.uid in earlier
                    or _has_pod(record.consumers, pod)
                    or any(name in named for item in record.devices for name in self._own_names(item.cdi_devices))
                    or self._is_guarded(record, mounted)
                )
                (held if is_held else others).append(record)
        # the kubelet does not prepare a claim again for further pods; only its owner can use one from a template
        return held, [record for record in others if not (record.consumers and record.pod_claim_name)]

    def _is_guarded(self, record: ClaimRecord, mounted: AbstractSet[tuple[str, str]]) -> bool:
        guard = self._guard.mount(record.uid)
        return (guard.container_path, guard.host_path) in mounted

    async def _was_added(self, record: ClaimRecord, pod: pb.PodSandbox, reserved: _Reserved) -> bool:
        """Return whether a pod uses a claim that was prepared for others."""
        key = (pod.uid, record.uid)
        if key in self._without:
            return False
        if record.uid not in reserved:
            reserved[record.uid] = await self._read_consumers(record)
        consumers = reserved[record.uid]
        if consumers is None:
            return False
        if _has_pod(consumers, pod):
            return True
        self._without[key] = None
        if len(self._without) > _REMEMBERED:
            self._without.popitem(last=False)
        return False

    async def _read_consumers(self, record: ClaimRecord) -> Sequence[ConsumerReference] | None:
        """Return for whom a claim is reserved; None if the API server does not answer in time.

        The pods that start during an outage do not each wait for it.
        """
        clock = asyncio.get_running_loop().time
        if clock() < self._no_answer_until:
            return None
        try:
            async with asyncio.timeout(READ_WITHIN):
                return await self._consumers(record.reference)
        except (DraKitError, TimeoutError) as error:
            if isinstance(error, TimeoutError | Unavailable):
                self._no_answer_until = clock() + READ_AGAIN
            # not an error of a pod, which may not use the claim: if it does, the guard keeps its containers away
            fields = {"claim": str(record.reference), "error": str(error) or "no answer", "code": "kube-unavailable"}
            logger.warning("pods that use a claim cannot be read", extra=fields)
            return None

    def _own_names(self, cdi_devices: Iterable[str]) -> Iterator[str]:
        """Yield the names that only this claim has; an author may add names of others."""
        return (name for name in cdi_devices if name.startswith(self._own_kind))

    def _used(self, record: ClaimRecord, container: pb.Container) -> Iterator[int]:
        """Yield the places of the claim's devices that a container uses.

        Runtimes that report no CDI devices report the variables that these set. The pod's author can set those, too,
        but only of claims that the pod holds do they matter.
        """
        named = {item.name for item in container.cdi_devices}
        variables = {item.partition("=")[0] for item in container.env}
        for index, item in enumerate(record.devices):
            own = set(self._own_names(item.cdi_devices))
            if own & named if named else device_variable(self._driver, record.uid, index) in variables:
                yield index

    def _refuse_unknown(self, pod: pb.PodSandbox, container: pb.Container, used: Sequence[ClaimRecord]) -> None:
        """Raise an error that says why, for a container that the guard would not let start."""
        places = {self._guard.path(record.uid) for record in used}
        for mount in container.mounts:
            if Path(mount.destination).parent == Path(self._guard.path("")) and mount.destination not in places:
                raise TransientError(
                    f"claim {Path(mount.destination).name} of pod {pod.namespace}/{pod.name} is not prepared for this "
                    "pod on this node; the kubelet tries again; if this repeats, delete the pod",
                    code="claim-not-held",
                )


def _turn_name(pod: pb.PodSandbox | RuntimePod) -> str:
    return f"pod {pod.uid or pod.id}"  # the UID stays the same when the kubelet tries again


def _has_pod(consumers: Iterable[ConsumerReference], pod: pb.PodSandbox) -> bool:
    return any(item.resource == "pods" and not item.api_group and item.uid == pod.uid for item in consumers)


# -- the connection


class ConnectedRuntime(Runtime):
    """The container runtime, as the author's code sees it; ``client`` returns the client that is connected, if any."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: Callable[[], NriClient | None]) -> None:
        self._loop = loop
        self._client = client

    @property
    @override
    def connected(self) -> bool:
        client = self._client()
        return client is not None and client.connected

    @override
    def update(self, updates: Iterable[ContainerUpdate]) -> PendingResult[Sequence[ContainerUpdate]]:
        given = checked_updates(updates)

        async def update() -> Sequence[ContainerUpdate]:
            client = self._client()
            if client is None:
                raise Unavailable(
                    "containers not updated: the driver is not connected to the container runtime; return the updates "
                    "from synchronize, which is called after the next connection",
                    code="no-answer",
                )
            try:
                failed = {item.container_id for item in await client.update_containers(map(update_message, given))}
            except (NriError, TimeoutError) as error:
                text = str(error) or "containers not updated: the container runtime does not answer; look at its log"
                raise Unavailable(text, code="no-answer") from error
            return tuple(item for item in given if item.container in failed)

        return PendingResult(update, lambda: self._loop, "runtime.update(…)", "self.runtime.update(…)")


class PodHooksPart:
    """A part of the node process: the connection to the container runtime, of one process of the driver at a time.

    Two processes of a rolling update that are connected at once would both adjust each container, and the runtime would
    fail it. So the process that the kubelet calls holds a lock while it is connected. A younger one that has taken over
    asks for it with a second lock, and the older one closes its connection first. The kernel releases both locks
    however a process exits: the other one then connects at once.

    Args:
        hooks: of the driver.
        make_plugin: makes the plugin, from the object that calls the hooks.
        socket: of the runtime, for NRI.
        context: for ``startup``.
    """

    name = "pod-hooks"

    def __init__(
        self,
        hooks: PodHooks[Any, Any, Any],
        make_plugin: Callable[[HookCalls], HookPlugin],
        *,
        driver: str,
        socket: Path,
        context: NodeContext,
        guard: HookGuard,
        locks: NamedLocks,
    ) -> None:
        self._hooks = hooks
        self._calls = HookCalls(hooks, self._allowed)
        self._plugin = make_plugin(self._calls)
        self._driver = driver
        self._socket = socket
        self._context = context
        self._guard = guard
        self._locks = locks
        self._client: NriClient | None = None
        self._reconnects = self._skipped = 0  # of earlier clients
        self._looking_failed = ""  # why the last look for a younger process failed
        self._problem = f"{type(hooks).__name__}.startup has not returned yet"
        hooks.runtime = ConnectedRuntime(asyncio.get_running_loop(), lambda: self._client)

    def waits_for(self) -> str:
        """Return why hooks do not run, as text; empty if they run. Thread-safe."""
        client = self._client
        if client is None:
            return self._problem
        return "" if client.connected else client.state.reason

    def document(self) -> Mapping[str, Any]:
        """Return the connection for ``dra-kit status``."""
        client, runtime = self._client, self._plugin.runtime
        connected = client is not None and client.connected
        return {
            "connected": connected,
            "socket": str(self._socket),
            "runtime": f"{runtime.name} {runtime.version.removeprefix('v')}" if connected and runtime else "",
            "text": self.waits_for(),
        }

    def readings(self) -> Iterator[Metric]:
        """Yield the metrics. Thread-safe."""
        client = self._client
        counters = None if client is None else client.counters
        yield HOOK_CALLS.of_each(list(self._calls.results.items()))
        yield RUNTIME_CONNECTED.of(int(client is not None and client.connected))
        yield RUNTIME_RECONNECTS.of(self._reconnects + (counters.reconnects if counters else 0))
        yield HOOKS_SKIPPED.of(self._skipped + (counters.skipped if counters else 0))

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready while hooks run, or those of a younger process do."""
        await self._repeat(partial(asyncio.to_thread, self._guard.create))
        await call(self._hooks.startup, self._context)
        self._problem = "another process of the driver is connected to the container runtime"
        connection, successor = (self._locks.hold(name) for name in ("connection", "successor"))
        await self._repeat(successor.take)
        try:
            await self._repeat(connection.take)
        finally:
            successor.give_up()
        while True:
            try:
                await self._serve(ready)
            finally:
                connection.give_up()
            logger.info("a younger process connects to the container runtime")
            ready.set()  # its readiness counts
            await asyncio.sleep(LOOK_EVERY)  # so that it takes the lock first
            await self._repeat(connection.take)

    async def _repeat(self, attempt: Callable[[], Awaitable[object]]) -> None:
        """Repeat what needs the disk until it succeeds: a failing disk must not stop the process."""
        problem = self._problem
        while True:
            try:
                await attempt()
            except StoreError as error:
                if self._problem != str(error):
                    fields = {"error": str(error), "code": error.code}
                    logger.error("not connected to the container runtime", extra=fields)
                self._problem = str(error)
                await asyncio.sleep(TRY_AGAIN)
            else:
                self._problem = problem
                return

    async def _serve(self, ready: asyncio.Event) -> None:
        """Be connected until a younger process asks for the connection."""

        def changed(state: ClientState) -> None:
            (ready.set if state.connected else ready.clear)()

        self._client = client = NriClient(
            self._plugin, name=self._driver, index=INDEX, socket=self._socket, on_state=changed
        )
        serving = asyncio.create_task(client.run())
        try:
            while not self._is_succeeded():
                await asyncio.wait({serving}, timeout=LOOK_EVERY)
                if serving.done():
                    serving.result()
        finally:
            serving.cancel()
            await asyncio.wait({serving})
            self._plugin.close()
            self._client = None
            self._reconnects += client.counters.reconnects
            self._skipped += client.counters.skipped
        await asyncio.sleep(_CLOSED)

    def _is_succeeded(self) -> bool:
        try:
            found, problem = self._locks.held_elsewhere("successor"), ""
        except StoreError as error:  # a failing disk must not stop the process
            found, problem = False, str(error)
            if problem != self._looking_failed:
                logger.warning("younger processes not looked for", extra={"error": problem, "code": error.code})
        self._looking_failed = problem
        return found

    def _allowed(self) -> float:
        runtime = self._plugin.runtime
        return ANSWERED_WITHIN * (2.0 if runtime is None else runtime.request_timeout)
