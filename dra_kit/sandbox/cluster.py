"""The sandbox: a cluster with nodes and drivers, started, used and stopped as one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Final, Literal, Self

from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.apiserver.api import RuntimeConfig
from dra_kit.apiserver.pod_log import PodLogOptions, PodLogUnavailable
from dra_kit.client.api import Client
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.errors import ConfigurationError, InternalError
from dra_kit.kubernetes.release import UNMODIFIED, Release
from dra_kit.kubernetes.scheduler.cycle import SchedulingDecision
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox import service_proxy
from dra_kit.sandbox.cluster_copy import ClusterCopy
from dra_kit.sandbox.containers.images import ImageStore, LocalImage
from dra_kit.sandbox.containers.log import OutputReader, find_log, log_stream
from dra_kit.sandbox.containers.node_namespace import (
    SYSFS,
    NodeNamespace,
    NodePlaces,
    namespaces_refused,
    node_addresses,
    parse_node_files,
)
from dra_kit.sandbox.containers.podman_runtime import find_podman
from dra_kit.sandbox.containers.runtime import ContainerReport
from dra_kit.sandbox.containers.streams import PodSessions
from dra_kit.sandbox.control_plane import ControlPlane
from dra_kit.sandbox.directory import mark_of, sandbox_directory, write_kubeconfig
from dra_kit.sandbox.drivers.accounts import RoleAccounts, RoleCredentials, RoleCredentialsProvider, create_accounts
from dra_kit.sandbox.drivers.command_processes import RunningCommands
from dra_kit.sandbox.drivers.commands import DriverCommand
from dra_kit.sandbox.drivers.control import SandboxDriverControl
from dra_kit.sandbox.drivers.controller_and_webhook import ControllerAndWebhook
from dra_kit.sandbox.drivers.log import DriverLog, RefusedClaims
from dra_kit.sandbox.drivers.node import SandboxNode
from dra_kit.sandbox.drivers.running import RunningDrivers
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.informers import SharedInformers
from dra_kit.sandbox.kubelet.environment import NodeShape, check_shapes, node_shape
from dra_kit.sandbox.pod_causes import PendingCause, explain_pending_pods
from dra_kit.sandbox.records import DriverEnded, Record
from dra_kit.sandbox.service_proxy import ServiceProxy
from dra_kit.sandbox.stories.facts import ResourceFacts


class SandboxSettings(Struct, frozen=True, kw_only=True):
    """The configuration of the cluster.

    Attributes:
        nodes: the number of nodes, named ``node-1``, ``node-2`` ...
        release: of API server, scheduler and kubelets.
        runtime_config: which versions the API server serves.
        time_scale: waits of scheduler, controllers, kubelets and driver are divided by this.
        port: the port of the API server; 0 for a free one.
        kubeconfig: where to write the kubeconfig; None for the sandbox's own directory.
        controller: run the controller role of each driver.
        webhook: run the webhook role of each driver that has configs.
        edited: settings that name files which stories edit; the driver gets copies of these files. If several drivers
            run, ``NAME`` is a setting that only one of them has; ``DRIVER.NAME`` is a setting of that driver.
        roles: run the drivers' roles; if False, they are run outside the sandbox.
        accounts: the service accounts that the roles run as; None for the administrator.
        network_namespaces: give pods network namespaces instead of files that stand for them; only root can, except on
            nodes with namespaces. None gives them to pods of nodes with namespaces, unless the sandbox runs drivers
            itself, whose hardware may be simulated.
        shapes: capacity and labels of Nodes, by node name; ``*`` is every node.
        node_namespaces: give each node a mount and network namespace for its programs and containers. None gives it to
            nodes that run programs of others, or have files, if this machine allows it.
        containers: ``process`` runs containers as processes; ``podman`` has it run them in their images, on nodes with
            namespaces.
        node_files: folders with files that programs of a node see, as ``[NODE:]PATH=DIR``.
        commands: programs that are drivers, or parts of one.
        images: folders that stand for images.
        charts: names of helm charts that are installed, each in a namespace with its name.
        copy: a saved cluster to begin with, whose nodes are there beside those of the sandbox; None for none.
    """

    nodes: int = 1
    release: Release = UNMODIFIED
    runtime_config: RuntimeConfig = field(default_factory=RuntimeConfig)
    time_scale: float = 1.0
    port: int = 0
    kubeconfig: Path | None = None
    controller: bool = True
    webhook: bool = True
    edited: tuple[str, ...] = ()
    roles: bool = True
    accounts: RoleAccounts | None = None
    network_namespaces: bool | None = None
    shapes: Mapping[str, NodeShape] = field(default_factory=dict)
    node_namespaces: bool | None = None
    containers: Literal["process", "podman"] = "process"
    node_files: tuple[str, ...] = ()
    commands: tuple[DriverCommand, ...] = ()
    images: tuple[LocalImage, ...] = ()
    charts: tuple[str, ...] = ()
    copy: ClusterCopy | None = None

    @property
    def runs_programs(self) -> bool:
        """Whether programs of others run on the nodes: started by the sandbox, or by its user."""
        return bool(self.charts or any(command.kind == "plugin" for command in self.commands))

    @property
    def node_names(self) -> list[str]:
        """The names of the nodes that the sandbox runs; those of a copy have other names."""
        first = self.copy.first_node if self.copy is not None else 1
        return [f"node-{number}" for number in range(first, first + self.nodes)]


USER_AGENT: Final = "dra-kit sandbox"
"""The client that applies and deletes what a run asks for."""


class SandboxObserver:
    """Is notified of events in the cluster when they happen; the methods of this base class are no-ops."""

    def decided(self, decision: SchedulingDecision) -> None:
        """Note a decision of the scheduler about a pod."""

    def acted(self, record: Record) -> None:
        """Note what a kubelet did, or what happened to a driver on its node."""

    async def copied(self, copy: ClusterCopy) -> None:
        """Note that the objects of a saved cluster are there; its pods are scheduled later."""

    def started(self, sandbox: Sandbox) -> None:
        """Note that API server, controllers and scheduler run; the nodes come next."""

    def waiting(self, calls: Sequence[str]) -> None:
        """Note that the driver has published nothing for a while; ``calls`` of its code have not returned."""

    def ending(self, calls: Sequence[str]) -> None:
        """Note that the cluster is shut down from now on; ``calls`` of the driver's code have not returned."""


class Sandbox:
    """An asynchronous context manager: a cluster whose drivers, if it has any, have published their devices.

    It is a :class:`dra_kit.sandbox.stories.facts.Cluster`, so that stories run in it.

    Raises:
        ConfigurationError: two drivers have the same name, or a shape or files of a node are invalid.
        SandboxError: a driver does not come up; the message says why.
    """

    def __init__(
        self,
        drivers: SandboxDriver | Sequence[SandboxDriver],
        settings: SandboxSettings | None = None,
        *,
        observers: Sequence[SandboxObserver] = (),
    ) -> None:
        self._settings = settings or SandboxSettings()
        check_shapes(self._settings.shapes, self._settings.node_names, self._settings.release.version)
        self._files = parse_node_files(self._settings.node_files)
        self._files.check(self._settings.node_names)
        self._observers = tuple(observers)
        self._stack = AsyncExitStack()
        self._releases = 0
        self.images: Final = ImageStore(self._settings.images, self._settings.charts)
        self._client: Client | None = None
        self._commands: RunningCommands | None = None
        self._intake = OutputReader()
        self.nodes: list[SandboxNode] = []
        self.log: DriverLog = DriverLog()
        self._refusals: Final = RefusedClaims()
        self.directory: Path = Path()
        self.kubeconfig: Path = Path()
        self.namespaces: str = ""
        """What node namespaces, or their absence, mean for programs on nodes; empty if it does not matter."""
        self._has_namespaces = False
        self._network_namespaces = self._settings.network_namespaces
        self._podman = ""
        self._addresses = node_addresses(self._settings.nodes)
        self.beginning: str = ""
        """A resource version from before the first claim was created."""
        kubelets, copy = frozenset(self._settings.node_names), self._settings.copy
        self._copy = replace(copy, kubelets=kubelets) if copy is not None else None
        self.control_plane: Final = ControlPlane(
            release=self._settings.release,
            runtime_config=self._settings.runtime_config,
            time_scale=self._settings.time_scale,
            port=self._settings.port,
            observe=self._decided,
            copy=self._copy,
        )
        self._drivers = RunningDrivers([drivers] if isinstance(drivers, SandboxDriver) else drivers, self)

    # --- life

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        calls = self._drivers.calls()
        for observer in self._observers:
            observer.ending(calls)
        # first, so that they can still write to the API server
        try:
            await asyncio.gather(self._drivers.stop(), *([self._commands.stop()] if self._commands else []))
        finally:
            await self._stack.aclose()

    async def _start(self) -> None:
        """Start the control plane, then the nodes, then the drivers; the caller stops them if this fails."""
        self.directory = self._stack.enter_context(sandbox_directory())
        # short names: below /var/lib/kubelet, which they stand for, a driver's sockets just fit into their addresses
        places = {name: self.directory / name.removeprefix("node-") for name in self._settings.node_names}
        for place in places.values():
            place.mkdir()
        self._drivers.prepare(places, self._settings.edited)
        self._listen_to_driver()
        self.control_plane.listen_at(self.directory / "apiserver.sock")
        await self._stack.enter_async_context(self.control_plane)
        self.control_plane.server.serve_logs(self._pod_log)
        sessions = PodSessions(lambda: (node.runtime for node in self.nodes))
        self.control_plane.server.serve_streams(sessions)
        self._client = await self.control_plane.connect(USER_AGENT)
        proxy = await self.control_plane.connect(service_proxy.COMPONENT)
        await self._stack.enter_async_context(ServiceProxy(proxy, self.informers, sessions))
        self.beginning = (await self._client.list(RESOURCE_CLAIMS)).resource_version
        self._write_kubeconfig()
        await self._choose_namespaces()
        for observer in self._observers:
            observer.started(self)
        if self._copy is not None:
            for observer in self._observers:
                await observer.copied(self._copy)
        await asyncio.gather(*(self._add_node(*place) for place in places.items()))
        self.nodes.sort(key=lambda node: int(node.name.rpartition("-")[2]))
        if self._settings.accounts is not None:
            await create_accounts(self._settings.accounts, self.control_plane.server, self._client)
        self._start_commands()
        if self._settings.roles:
            await self.or_fail(self._drivers.start(self._access))
        if self._commands is not None:
            await self.or_fail(self._commands.ready())

    def _start_commands(self) -> None:
        server, settings = self.control_plane.server, self._settings
        self._commands = RunningCommands(
            settings.commands,
            self,
            mark=mark_of(self.directory),
            credentials=server.kubeconfig(),
            time_scale=settings.time_scale,
            observe=self._acted,
        )
        server.call_local_webhooks(self._commands.webhook)
        self._commands.start()

    # --- dra_kit.sandbox.drivers.running.DriverHost

    def new_operators(self, *, first: bool) -> ControllerAndWebhook:
        """See :class:`dra_kit.sandbox.drivers.running.DriverHost`."""
        self._releases += 1
        return ControllerAndWebhook(
            self.client,
            self._access,
            self.directory / f"webhook-{self._releases}",
            controller=self._settings.controller,
            webhook=self._settings.webhook,
            since=self.beginning if first else None,
            ended=self._drivers.role_ended,
        )

    def silent(self, calls: Sequence[str]) -> None:
        """See :class:`dra_kit.sandbox.drivers.running.DriverHost`."""
        for observer in self._observers:
            observer.waiting(calls)

    def _listen_to_driver(self) -> None:
        # the level is that of the process: others log here, too, and may look at what they logged
        root = logging.getLogger()
        for handler in (self.log, self._refusals):
            root.addHandler(handler)
            self._stack.callback(root.removeHandler, handler)

    def _write_kubeconfig(self) -> None:
        self.kubeconfig = self._settings.kubeconfig or self.directory / "kubeconfig"
        server = self.control_plane.server
        self._stack.enter_context(write_kubeconfig(self.kubeconfig, server.kubeconfig()))
        files = self._stack.enter_context(ExitStack())
        admin = RoleCredentials(self.control_plane.credentials(), self.kubeconfig)
        self._access = RoleCredentialsProvider(server, admin, self.directory, self._settings.accounts, files)

    async def _choose_namespaces(self) -> None:
        """Decide whether nodes get namespaces.

        Raises:
            SandboxError: they are requested, and this machine does not allow them; or podman is missing.
            ConfigurationError: podman runs containers, or nodes have files, and they are refused.
        """
        wanted = self._settings.node_namespaces
        if self._settings.containers == "podman":
            self._podman = find_podman()
            if wanted is False or self._settings.network_namespaces:
                raise ConfigurationError(
                    "--containers podman needs nodes with namespaces, whose pods share the network of their node; "
                    f"leave out {'--no-node-namespaces' if wanted is False else '--network-namespaces'}"
                )
            wanted = True
        if wanted is None and not (self._settings.runs_programs or self._settings.node_files):
            return
        if wanted is False:
            self._files.check_without_namespaces()
        refusal = await namespaces_refused() if wanted is not False else None
        if refusal is not None and (wanted or self._settings.node_files):
            raise refusal
        self._has_namespaces = wanted is not False and refusal is None
        if self._network_namespaces is None:
            self._network_namespaces = self._has_namespaces and not self.drivers
        if self._has_namespaces:
            self.namespaces = (
                "each node has its own mounts and network: its directories are at /var/lib/kubelet and /var/run/cdi"
            )
        elif self._settings.runs_programs:
            reason = f" ({refusal})" if refusal is not None else ""
            fake = "; {sysfs} is the folder of --node-files, and /sys that of this machine"
            self.namespaces = (
                "nodes share the files and ports of this machine: give programs the paths of a node's directories as "
                f"arguments{fake if self._settings.node_files else ''}{reason}"
            )

    def _namespace_of(self, node: str) -> Callable[[NodePlaces], NodeNamespace] | None:
        if not self._has_namespaces:
            return None
        files, ports = self._files.of(node), (self.control_plane.server.port,)
        podman = self._podman
        address = self._addresses[self._settings.node_names.index(node)]
        return lambda places: NodeNamespace(places, files, ports, name=node, address=address, containers=bool(podman))

    async def _add_node(self, name: str, directory: Path) -> None:
        node = SandboxNode(
            name,
            self.drivers,
            directory,
            await self.control_plane.connect(f"kubelet {name}"),
            mark=mark_of(self.directory),
            time_scale=self._settings.time_scale,
            release=self._settings.release,
            observer=self._acted,
            intake=self._intake,
            shape=node_shape(self._settings.shapes, name),
            network_namespaces=bool(self._network_namespaces),
            namespace=self._namespace_of(name),
            podman=self._podman,
            images=self.images,
            sysfs=SYSFS if self._has_namespaces else self._files.sysfs(name),
        )
        await self._stack.enter_async_context(node)
        self.nodes.append(node)

    def _decided(self, decision: SchedulingDecision) -> None:
        for observer in self._observers:
            observer.decided(decision)

    def _acted(self, record: Record) -> None:
        if isinstance(record, DriverEnded):
            self._drivers.role_ended()
        for observer in self._observers:
            observer.acted(record)

    async def or_fail(self, work: Awaitable[object]) -> None:
        """Wait for something, unless the cluster fails before: then that is cancelled, and the failure raised."""
        await self.control_plane.or_fail(
            work,
            [
                self._drivers.fail(),
                *(item.fail() for item in [self._commands] if item),
                *(node.fails() for node in self.nodes),
            ],
        )

    # --- what there is

    @property
    def informers(self) -> SharedInformers:
        """The informers of the cluster's objects."""
        return self.control_plane.informers

    def container(self, container_id: str) -> ContainerReport | None:
        """Return a container of a pod that is still on a node."""
        found = (node.runtime.find(container_id) for node in self.nodes)
        return next(filter(None, found), None)

    # --- dra_kit.sandbox.stories.facts.Cluster

    @property
    def client(self) -> Client:
        """A client that may do everything."""
        if self._client is None:
            raise InternalError("the sandbox has not been started; enter it first")
        return self._client

    async def causes(self, pods: Sequence[ObjectView]) -> Mapping[str, Sequence[PendingCause]]:
        """Return why pods without a node are pending, by pod UID."""
        if not pods:
            return {}
        return await explain_pending_pods(self.informers, self.client, pods, self._settings.release)

    @property
    def release(self) -> Release:
        """The release of the cluster, with its feature gates."""
        return self._settings.release

    @property
    def drivers(self) -> Sequence[str]:
        """Names of the drivers; empty if they are started outside the sandbox."""
        return self._drivers.names

    @property
    def programs(self) -> Sequence[str]:
        """Names of the programs and charts that are drivers, or parts of one."""
        return [*(command.name for command in self._settings.commands), *self._settings.charts]

    @property
    def never_ready(self) -> Sequence[str]:
        """A text for each program that was not registered, or did not listen, in time, and still is not or does not."""
        return self._commands.never_ready() if self._commands else ()

    def control(self, driver: str = "") -> SandboxDriverControl:
        """See :class:`dra_kit.sandbox.stories.facts.Cluster`."""
        return self._drivers.control(driver)

    async def environment(self, namespace: str, pod: str, container: str) -> Mapping[str, str]:
        """Return the container's whole environment; empty while it has not started."""
        report = self._report(namespace, pod, container)
        return report.environment if report else {}

    async def output(self, namespace: str, pod: str, container: str) -> str:
        """Return what the container wrote, the newest part of it."""
        report = self._report(namespace, pod, container)
        return report.log.text if report else ""

    async def device_nodes(self, namespace: str, pod: str, container: str) -> Mapping[str, str]:
        """See :class:`dra_kit.sandbox.stories.facts.Cluster`."""
        report = self._report(namespace, pod, container)
        return report.device_nodes if report else {}

    async def mounts(self, namespace: str, pod: str, container: str) -> Mapping[str, str]:
        """See :class:`dra_kit.sandbox.stories.facts.Cluster`."""
        report = self._report(namespace, pod, container)
        return report.mounts if report else {}

    async def resources(self, namespace: str, pod: str, container: str) -> ResourceFacts:
        """See :class:`dra_kit.sandbox.stories.facts.Cluster`."""
        report = self._report(namespace, pod, container)
        if report is None:
            return ResourceFacts()
        found, rdt = report.status.resources, report.edits.intel_rdt
        rdt_class = found.rdt_class or (rdt.clos_id if rdt else "")
        return ResourceFacts(found.cpus, found.memory_nodes, found.hugepages, rdt_class)

    async def interfaces(self, namespace: str, pod: str, containers: Sequence[str]) -> Sequence[str] | None:
        """See :class:`dra_kit.sandbox.stories.facts.Cluster`."""
        del containers
        return [name for node in self.nodes for name in node.runtime.interfaces(namespace, pod)]

    async def node_state(self) -> Iterable[str]:
        """Return what the nodes store for claims; with the node's name if there are several."""
        found = []
        for node in self.nodes:
            where = f" on {node.name}" if len(self.nodes) > 1 else ""
            found += [f"{text}{where}" for text in await asyncio.to_thread(list, node.state())]
        return found

    def refusal(self, namespace: str, claim: str) -> str:
        """See :class:`dra_kit.sandbox.stories.facts.Cluster`."""
        return self._refusals.of(namespace, claim)

    def forget_refusals(self, namespace: str) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.Cluster`."""
        self._refusals.forget(namespace)

    async def driver_log(self) -> Sequence[str]:
        """Return the lines that the drivers' roles logged."""
        return self.log.lines

    def _pod_log(self, pod: dict[str, Any], options: PodLogOptions) -> AsyncGenerator[bytes, None]:
        identity = find_log(pod, options.container, previous=options.previous)
        report = self.container(identity)
        if report is None:
            raise PodLogUnavailable(f"unable to retrieve container logs for {identity}")
        return log_stream(report.log, options, time.time_ns())

    def _report(self, namespace: str, pod: str, container: str) -> ContainerReport | None:
        found = (node.runtime.report(namespace, pod, container) for node in self.nodes)
        return max((item for item in found if item), key=lambda item: item.status.started, default=None)
