"""A whole cluster with a driver in one process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pydantic import BaseModel

from dra_kit.apiserver.pod_log import LogOptions, NoLog
from dra_kit.errors import ConfigurationError, DraKitError, InternalError, SandboxError
from dra_kit.kube.client import Client
from dra_kit.kube.resources import RESOURCE_SLICES
from dra_kit.resource.gates import FeatureGates
from dra_kit.sandbox.cluster import kubeconfig
from dra_kit.sandbox.cluster.control_plane import ControlPlane, first_of
from dra_kit.sandbox.cluster.directory import mark_of, sandbox_directory
from dra_kit.sandbox.cluster.informers import Informers
from dra_kit.sandbox.cluster.kubelet.activity import Activity
from dra_kit.sandbox.cluster.pod_log import log_stream, logged_container
from dra_kit.sandbox.cluster.refusals import Refusals
from dra_kit.sandbox.cluster.slow_calls import PATIENCE
from dra_kit.sandbox.cluster.workload.intake import Intake
from dra_kit.sandbox.cluster.workload.report import ContainerReport
from dra_kit.sandbox.driver.control import SandboxControl
from dra_kit.sandbox.driver.drivers import SandboxDriver
from dra_kit.sandbox.driver.edited_files import redirected, replace_files
from dra_kit.sandbox.driver.journal import DriverLog
from dra_kit.sandbox.driver.node import SandboxNode
from dra_kit.sandbox.driver.operators import Operators
from dra_kit.scheduler.decision import Decision
from dra_kit.scheduler.pods import Object

PUBLISH_SECONDS: Final = 15.0
"""A driver that has published nothing by then has a problem."""
_FAILED_SECONDS: Final = 1.5  # a driver whose discover failed may mend itself within this time
_POLL: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class SandboxSettings:
    """How the cluster is to be.

    Attributes:
        nodes: how many there are: ``node-1``, ``node-2`` ...
        gates: feature gates of API server, scheduler and kubelets.
        time_scale: waits of scheduler, controllers, kubelets and driver are divided by this.
        port: of the API server; 0 for a free one.
        kubeconfig: where to write it; None for the sandbox's own directory.
        controller: run the driver's controller role.
        webhook: run the driver's webhook role, if it has configs.
        edited: settings of the driver that name files which stories will edit: the driver gets copies.
        roles: run the driver's roles; without, somebody else does.
    """

    nodes: int = 1
    gates: FeatureGates = field(default_factory=FeatureGates.default)
    time_scale: float = 1.0
    port: int = 0
    kubeconfig: Path | None = None
    controller: bool = True
    webhook: bool = True
    edited: tuple[str, ...] = ()
    roles: bool = True


class SandboxObserver:
    """Told what happens in the cluster, right when it happens; does nothing with it."""

    def decided(self, decision: Decision) -> None:
        """The scheduler decided about a pod."""

    def acted(self, node: str, activity: Activity) -> None:
        """A kubelet did something."""

    def started(self, sandbox: Sandbox) -> None:
        """API server, controllers and scheduler run; the nodes come next."""

    def waiting(self, calls: Sequence[str]) -> None:
        """The driver has published nothing for a while.

        Args:
            calls: of its code that have not returned.
        """

    def ending(self, calls: Sequence[str]) -> None:
        """Everything is taken down from now on.

        Args:
            calls: of the driver's code that have not returned, and are waited for a moment.
        """


class Sandbox:
    """An asynchronous context manager: a cluster whose driver, if it has one, has published its devices.

    It is a :class:`dra_kit.sandbox.stories.facts.Cluster`, so that stories run in it.

    Args:
        driver: to run.
        settings: of the cluster.
        observers: told what happens.

    Raises:
        SandboxError: the driver does not come up; the text says why.
    """

    def __init__(
        self,
        driver: SandboxDriver,
        settings: SandboxSettings | None = None,
        *,
        observers: Sequence[SandboxObserver] = (),
    ) -> None:
        self._driver = driver
        self._settings = settings or SandboxSettings()
        self._observers = tuple(observers)
        self._stack = AsyncExitStack()
        self._control: SandboxControl | None = None
        self._releases = 0
        self._client: Client | None = None
        self._intake = Intake()
        self.nodes: list[SandboxNode] = []
        self.log: Final = DriverLog()
        self._refusals: Final = Refusals()
        self.directory: Path = Path()
        self.kubeconfig: Path = Path()
        self.control_plane: Final = ControlPlane(
            gates=self._settings.gates,
            time_scale=self._settings.time_scale,
            port=self._settings.port,
            observe=self._decided,
        )

    # --- life

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        calls = [f"on {node.name}: {call}" for node in self.nodes for call in node.driver.calls()]
        for observer in self._observers:
            observer.ending(calls)
        # the roles first, all at once: each of them drains
        operators = [self._control.operators.stop()] if self._control else []
        await asyncio.gather(*operators, *(node.driver.close() for node in self.nodes))
        await self._stack.aclose()

    async def _start(self) -> None:
        self.directory = self._stack.enter_context(sandbox_directory())
        places = {f"node-{number}": self.directory / f"node-{number}" for number in range(1, self._settings.nodes + 1)}
        authors = [self._author(*place) for place in places.items()]
        self._listen_to_driver()
        await self._stack.enter_async_context(self.control_plane)
        self.control_plane.server.serve_logs(self._pod_log)
        self._client = await self.control_plane.connect("dra-kit sandbox")
        self._write_kubeconfig()
        for observer in self._observers:
            observer.started(self)
        await asyncio.gather(*(self._add_node(*place) for place in places.items()))
        self.nodes.sort(key=lambda node: int(node.name.rpartition("-")[2]))
        self._control = SandboxControl(
            self._driver,
            self.nodes,
            edited=self._settings.edited,
            published=self._published,
            operators=self._new_operators,
        )
        if self._driver.drivers and self._settings.roles:
            for node, driver, author in zip(self.nodes, self._driver.drivers, authors, strict=True):
                node.start_driver(self._driver.release(author, driver), self.kubeconfig)
            await self.control_plane.or_fail(self._ready())

    def _author(self, node: str, directory: Path) -> BaseModel | None:
        """The author's settings on a node, whose directory they may look into."""
        directory.mkdir()
        return redirected(self._driver.settings_on(node, directory), self._settings.edited, directory / "files")

    async def _ready(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._published())
                group.create_task(self._start_operators())
        except* DraKitError as errors:
            raise first_of(errors) from None

    async def _start_operators(self) -> None:
        try:
            await self.control.start_operators()
        except SandboxError as error:
            raise SandboxError(self._why(str(error))) from None

    def _new_operators(self) -> Operators:
        self._releases += 1
        return Operators(
            self.client,
            self.kubeconfig,
            self.directory / f"webhook-{self._releases}",
            controller=self._settings.controller,
            webhook=self._settings.webhook,
        )

    def _listen_to_driver(self) -> None:
        # the level is that of the process: others log here, too, and may look at what they logged
        root = logging.getLogger()
        for handler in (self.log, self._refusals):
            root.addHandler(handler)
            self._stack.callback(root.removeHandler, handler)

    def _write_kubeconfig(self) -> None:
        self.kubeconfig = self._settings.kubeconfig or self.directory / "kubeconfig"
        self._stack.enter_context(kubeconfig.written(self.kubeconfig, self.control_plane.server.kubeconfig()))

    async def _add_node(self, name: str, directory: Path) -> None:
        node = SandboxNode(
            name,
            directory,
            await self.control_plane.connect(f"kubelet {name}"),
            mark=mark_of(self.directory),
            time_scale=self._settings.time_scale,
            declared_features=self._settings.gates.declared_by_nodes,
            observer=lambda activity: self._acted(name, activity),
            intake=self._intake,
        )
        await self._stack.enter_async_context(node)
        self.nodes.append(node)

    async def _published(self) -> None:
        """Wait until each node's driver is registered and has published something."""
        begin = time.monotonic()
        told = False
        while waiting := [node for node in self.nodes if not (self._has_slices(node.name) and node.driver.serves())]:
            self._check_roles()
            seconds = time.monotonic() - begin
            if seconds > PATIENCE and not told and (calls := self._hanging()):
                told = True
                for observer in self._observers:
                    observer.waiting(calls)
            failed = any("discover failed" in line for line in self.log.problems)
            if seconds > PUBLISH_SECONDS or (failed and seconds > _FAILED_SECONDS):
                raise SandboxError(
                    self._why(f"driver {self.driver} publishes nothing on {waiting[0].name} within {seconds:.0f} s")
                )
            await asyncio.sleep(_POLL)

    def _has_slices(self, node: str) -> bool:
        specs = (item["spec"] for item in self.informers.objects(RESOURCE_SLICES).values())
        return any(spec["driver"] == self.driver and spec.get("nodeName", node) == node for spec in specs)

    def _why(self, text: str) -> str:
        problems = [*self.log.problems, *self._hanging()][-3:]
        return f"{text}: {'; '.join(problems) or 'it logged no problem, and discover() has not yielded an inventory'}"

    def _hanging(self) -> list[str]:
        return [f"on {node.name}: {line}" for node in self.nodes for line in node.driver.hanging(0.0)]

    def _decided(self, decision: Decision) -> None:
        for observer in self._observers:
            observer.decided(decision)

    def _acted(self, node: str, activity: Activity) -> None:
        for observer in self._observers:
            observer.acted(node, activity)

    async def or_fail(self, work: Awaitable[object]) -> None:
        """Wait for something, unless the cluster fails before: then that is cancelled, and the failure raised."""
        await self.control_plane.or_fail(work, [self._role_ended(), *(node.fails() for node in self.nodes)])

    async def _role_ended(self) -> None:
        """Wait until a role of the driver ends by itself, and raise why."""
        while True:
            self._check_roles()
            await asyncio.sleep(_POLL)

    def _check_roles(self) -> None:
        failures = {f"node role on {node.name}": node.driver.failure for node in self.nodes}
        failures |= {role.name: role.failure for role in (self._control.operators.roles if self._control else ())}
        for name, failure in failures.items():
            if failure:
                raise SandboxError(self._why(f"the driver's {name} ended: {failure}"))

    # --- what there is

    @property
    def informers(self) -> Informers:
        """What is known of the cluster's objects."""
        return self.control_plane.informers

    def reports(self, namespace: str, pod: str) -> list[ContainerReport]:
        """The containers of the pods of this name, oldest first."""
        return [report for node in self.nodes for report in node.runtime.reports(namespace, pod)]

    def container(self, container_id: str) -> ContainerReport | None:
        """A container of a pod that is still on a node."""
        found = (node.runtime.find(container_id) for node in self.nodes)
        return next(filter(None, found), None)

    # --- dra_kit.sandbox.stories.facts.Cluster

    @property
    def client(self) -> Client:
        """A client that may do everything."""
        if self._client is None:
            raise InternalError("the sandbox has not been started; enter it first")
        return self._client

    async def causes(self, pods: Sequence[Object]) -> Mapping[str, Sequence[str]]:
        """What stands in the way of pods without a node, a sentence each, by UID."""
        from dra_kit.sandbox.cluster.causes import pod_causes

        return await pod_causes(self.informers, self.client, pods, self._settings.gates) if pods else {}

    @property
    def driver(self) -> str:
        """The driver's name; empty where there is none."""
        return self._driver.name

    async def environment(self, namespace: str, pod: str, container: str) -> Mapping[str, str]:
        """The container's whole environment; empty while it has not started."""
        report = self._report(namespace, pod, container)
        return report.environment if report else {}

    async def output(self, namespace: str, pod: str, container: str) -> str:
        """What the container wrote, the newest part of it."""
        report = self._report(namespace, pod, container)
        return report.log.text if report else ""

    async def node_state(self) -> Iterable[str]:
        """What the nodes keep for claims; with the node's name where there are several."""
        found = []
        for node in self.nodes:
            where = f" on {node.name}" if len(self.nodes) > 1 else ""
            found += [f"{text}{where}" for text in await asyncio.to_thread(list, node.state())]
        return found

    async def replace_file(self, setting: str, text: str) -> str:
        """See :func:`dra_kit.sandbox.driver.edited_files.replace_files`."""
        return await replace_files([node.driver.author for node in self.nodes], self._settings.edited, setting, text)

    async def inject_health(self, device: str, reason: str, message: str | None) -> None:
        """Make a device ill, on each node that has one of the name, or take that back.

        Raises:
            ConfigurationError: the driver has no health source, or no such device or reason.
        """
        pool, _, name = device.rpartition("/")
        refusals = []
        for node in self.nodes:
            try:
                await node.driver.inject_health(name, reason, message, pool or None)
            except ConfigurationError as error:
                refusals.append(error)
        if len(refusals) == len(self.nodes):
            raise refusals[0]

    def refusal(self, namespace: str, claim: str) -> str:
        """See :class:`dra_kit.sandbox.stories.facts.Cluster`."""
        return self._refusals.of(namespace, claim)

    def forget_refusals(self, namespace: str) -> None:
        """See :class:`dra_kit.sandbox.stories.facts.Cluster`."""
        self._refusals.forget(namespace)

    @property
    def control(self) -> SandboxControl:
        """See :class:`dra_kit.sandbox.stories.facts.Cluster`."""
        if self._control is None:
            raise InternalError("the sandbox has not been started; enter it first")
        return self._control

    async def driver_log(self) -> Sequence[str]:
        """The lines that the driver's roles logged."""
        return self.log.lines

    def _pod_log(self, pod: dict[str, Any], options: LogOptions) -> AsyncGenerator[bytes, None]:
        identity = logged_container(pod, options.container, previous=options.previous)
        report = self.container(identity)
        if report is None:
            raise NoLog(f"unable to retrieve container logs for {identity}")
        return log_stream(report.log, options, time.time_ns())

    def _report(self, namespace: str, pod: str, container: str) -> ContainerReport | None:
        found = (node.runtime.report(namespace, pod, container) for node in self.nodes)
        return max((item for item in found if item), key=lambda item: item.status.started, default=None)
