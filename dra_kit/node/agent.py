"""The node process: wires its parts and runs them until it is asked to stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dra_kit.author.calls import PendingResult, running_calls
from dra_kit.author.context import NodeInfo, Stopping
from dra_kit.author.device import Device
from dra_kit.author.driver import Driver
from dra_kit.author.effect import Effect
from dra_kit.author.inventory import Inventory
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials, load_credentials
from dra_kit.errors import ConfigurationError, TransientError
from dra_kit.kubelet.cdi.store import SpecStore
from dra_kit.kubelet.device_use import KubeletCheckpoint
from dra_kit.kubelet.plugin_client import RegisteredDriver
from dra_kit.kubelet.plugin_server import NodeService, PluginServer, RegistrationServer
from dra_kit.kubelet.sockets import operation_link, operation_socket, plugin_socket, registration_socket
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.events import ClaimEventRecorder, ClaimEvents
from dra_kit.node.claims.files import ClaimFiles, FileRepair, StrayFileSweeper
from dra_kit.node.claims.guard import HookGuard
from dra_kit.node.claims.metadata import MetadataFiles
from dra_kit.node.claims.preparer_runner import PreparerRunner
from dra_kit.node.claims.recovery import LeftoverSweeper, OrphanReleaser
from dra_kit.node.claims.reservations import ReallocationGuard
from dra_kit.node.claims.service import ClaimService
from dra_kit.node.claims.status import ClaimStatusWriter
from dra_kit.node.claims.updates import Repreparer
from dra_kit.node.context import ClusterFacts, DeclaredReads, DeviceUpdate, HardwareHandle, NodeContext
from dra_kit.node.device_policy import PolicyPart
from dra_kit.node.effects.children import ChildProcesses
from dra_kit.node.effects.classes import EffectClasses
from dra_kit.node.effects.cluster_objects import ClusterObjectFinder, ClusterObjects
from dra_kit.node.effects.engine import EffectEngine, EffectReverter, GoneHardware
from dra_kit.node.effects.unrecorded import EffectFinder, UnrecordedEffects
from dra_kit.node.effects.verifier import EffectVerifier
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.followers import NodeFollower
from dra_kit.node.health_monitor import HealthMonitor
from dra_kit.node.hook_calls import StartedPods
from dra_kit.node.kubelet_connection import (
    KubeletRegistration,
    KubeletService,
    MeasuredService,
    NodeStartup,
)
from dra_kit.node.locks import NamedLocks, NodeLocks
from dra_kit.node.operation_socket import STATUS, WHO, OperationServer
from dra_kit.node.pod_hooks import HookPlugin, PodHooksPart
from dra_kit.node.processes import DriverProcesses, Takeover
from dra_kit.node.settings import NodeSettings
from dra_kit.node.slices import NodeScope, SliceWatch, VanishedDevices, cluster_pool_devices
from dra_kit.node.state.store import StateStore
from dra_kit.node.status import DevicesInUse, NodeMetrics, NodeStatus, NodeView, RecentFailures
from dra_kit.process.logging import context_of
from dra_kit.process.metrics import Metrics
from dra_kit.process.probes import LoopWatchdog, Probes, hanging_calls, unready_parts
from dra_kit.process.supervisor import Supervisor
from dra_kit.slices.discovery import Discovery
from dra_kit.slices.inventory import CurrentInventory, node_source
from dra_kit.slices.publisher import Publisher

if TYPE_CHECKING:
    from dra_kit.node.decommission import Decommission


logger: logging.Logger = logging.getLogger(__name__)
DRAIN: Final = 20.0
_A_MOMENT: Final = 1.0
"""Seconds after which a call of the author's code that has not returned is reported."""


async def run_node(driver: Driver[Any, Any], settings: NodeSettings) -> int:
    """Run the node role until SIGTERM.

    Returns:
        The exit code of the process.

    Raises:
        ConfigurationError: a setting, a socket path, the CDI directory, a kubeconfig or an effect is invalid.
        StoreError: the durable state cannot be opened.
    """
    if not driver.on_nodes:
        raise ConfigurationError(
            f"driver {driver.name} has no preparer, so nothing of it runs on nodes; run its controller only, with "
            "node.enabled=false in the chart's values"
        )
    return await NodeAgent(driver, settings, await load_credentials(settings.kubeconfig)).run()


class NodeAgent:
    """All parts of the node role; see :func:`run_node` for its errors.

    With ``decommission``, the driver is being decommissioned: it has no devices and prepares nothing new.

    Attributes:
        supervisor: runs the parts.
        orphans: looks for claims that the kubelet has forgotten.
        nothing_left: when decommissioning, set once no claim and no effect is left.
    """

    def __init__(
        self,
        driver: Driver[Any, Any],
        settings: NodeSettings,
        credentials: Credentials,
        *,
        decommission: Decommission | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._driver = driver
        self._settings = settings
        self._decommission = decommission
        self._clock = clock
        self.supervisor: Supervisor = Supervisor(drain=DRAIN)
        self._stopping = Stopping()
        self._client = Client(credentials, user_agent=f"{driver.name} dra-kit/node")
        self._probes: Probes | None = None
        self._health: HealthMonitor | None = None
        self._policy: PolicyPart | None = None
        self._pod_hooks: PodHooksPart | None = None
        follows_node = driver.follows_node and decommission is None
        self._node_follower = (
            NodeFollower(self._client, settings.node_name, self._node_changed) if follows_node else None
        )
        self._labels_known = False
        self._waiting_calls: dict[asyncio.Future[bool], tuple[str, str]] = {}  # UIDs of claims: in a call, waited for
        self._started = asyncio.Event()
        self.nothing_left: bool = False
        boot_id = settings.read_boot_id()
        self._store = StateStore(settings.database(driver.name))
        hit(Failpoint.STATE_OPENED)
        self._metrics, self._failures, self._watchdog = Metrics(), RecentFailures(), LoopWatchdog()
        self._event_recorder = ClaimEventRecorder(self._client, driver.name, settings.node_name, self._store)
        try:
            self._wire(credentials, boot_id)
        except BaseException:
            self._store.close()
            raise

    def _wire(self, credentials: Credentials, boot_id: str) -> None:
        driver, settings = self._driver, self._settings
        name, node = driver.name, settings.node_name
        cdi = SpecStore(settings.cdi_dir, name)
        cdi.require_writable()
        locks = settings.state(name) / "locks"
        self._advertised = self._inventory = inventory = CurrentInventory()
        self._source = node_source(driver, node)
        self._discovery = discovery = Discovery(self._source, inventory)
        self._context = context = NodeContext(
            driver=name,
            node=NodeInfo(node),
            state_dir=settings.state(name) / "author",
            settings=settings.author,
            store=self._store,
            rescan=discovery.rescan,
            update=self._update,
            effects=lambda: self._effect_engine.known(),  # noqa: PLW0108 - the engine is created later
            stopping=self._stopping,
            metrics=self._metrics,
            api=DeclaredReads(driver, settings.author, self._client, self._loop),
            other_driver=lambda other: RegisteredDriver(other, settings.kubelet_dir, self._loop),
        )
        node_locks = NodeLocks.below(locks)
        cluster_facts = ClusterFacts(self._client, node, self._node_read)
        hardware, effect_engine, effect_verifier = self._effects(cluster_facts, node_locks, boot_id)
        claim_events, started = ClaimEvents(), self._started
        metadata_dir = settings.state(name) / "device-metadata"
        metadata, guard = MetadataFiles(metadata_dir, name), HookGuard(settings.state(name) / "pod-hooks", name)
        status, files = (
            ClaimStatusWriter(self._client, name, self._store),
            ClaimFiles(cdi, metadata, guard if driver.pod_hooks is None and self._decommission is None else None),
        )
        runner = PreparerRunner(
            driver, driver.configs.with_settings(settings.author), inventory, effect_engine, boot_id, started,
            metadata, hardware, effect_verifier, checks_device_files=settings.check_device_nodes,
            simulated_in=settings.simulated_in(),
            cluster_pool_devices=cluster_pool_devices(driver, self._client, cluster_facts),
            guard=None if driver.pod_hooks is None else guard,
        )  # fmt: skip
        checkpoint = KubeletCheckpoint(settings.kubelet_dir)
        self._service = ClaimService(
            runner, api=self._client, store=self._store, files=files, locks=node_locks, events=claim_events,
            guard=ReallocationGuard(boot_id, checkpoint, after=settings.orphan_after, clock=self._clock),
            deadline=settings.deadline,
        )  # fmt: skip
        self._connect_hooks(guard, locks, boot_id)
        prepare_again = partial(self._service.begin_prepare, again=True)
        self._repreparer = Repreparer(self._store, node_locks.claims, runner, prepare_again)
        self._report(claim_events, status)
        self._processes = DriverProcesses(locks / "processes")
        self._leftovers = LeftoverSweeper(
            name, settings.kubelet_dir, self._processes, StrayFileSweeper(self._store, files, node_locks.claims),
            epochs=self._service.epochs, recovery=self._service.recovery, process_ended=self._process_ended,
            every=settings.leftovers_interval,
        )  # fmt: skip
        scope = NodeScope(name, node, cluster_facts, processes=self._processes)
        self._publisher = publisher = Publisher(scope, self._client)
        if self._decommission is None:
            self._connect_publisher()
        else:
            self._advertised = CurrentInventory()
            self._advertised.listen(publisher.publish)
        inventory.listen(lambda _: self._repreparer.look_again())
        # a driver that is being decommissioned has no inventory
        found = inventory if self._decommission is None else CurrentInventory()
        self._vanished = VanishedDevices(
            self._store, found, cluster_pools=driver.cluster_provider is not None,
            report=self._event_recorder.device_vanished,
        )  # fmt: skip
        claim_events.prepared.listen(self._vanished.prepared)
        self._takeover = Takeover(
            self._processes, missing=self._missing, publishable=self._publishable, settle=settings.settle,
            clock=self._clock,
        )  # fmt: skip
        kubelet_service, registration = self._kubelet_sockets(boot_id)
        startup = NodeStartup(
            driver, context, self._service.recovery, cluster_facts,
            started=started, hardware=hardware, takeover=self._takeover,
        )  # fmt: skip
        self._file_repair = FileRepair(
            (settings.cdi_dir, metadata_dir), self._store, files, node_locks.claims,
            boot_id=boot_id, every=settings.repair_interval,
        )  # fmt: skip
        self.orphans: OrphanReleaser = OrphanReleaser(
            self._store, self._service.recovery,
            checkpoint=checkpoint, after=settings.orphan_after, clock=self._clock,
        )  # fmt: skip
        self._registration = registration
        slice_watch = SliceWatch(credentials, name, node, publisher)
        self._add_parts(kubelet_service, registration, startup, status, slice_watch=slice_watch)
        if self._decommission is not None:
            self._advertised.replace(Inventory(pools=[]), {})
            if not self._decommission.has_code:
                inventory.replace(Inventory(pools=[]), {})
            end = self._decommission.remaining(
                name, self._store, checkpoint, publisher, title=self._effect_classes.title,
                all_known=lambda: self._unrecorded_effects.has_looked or not driver.effects,
                others=self._processes.has_others if self._decommission.keep_running else lambda: False,
                confirmation=self._decommission.confirmation, finished=self._nothing_left,
            )  # fmt: skip
            self.supervisor.add(end, after=startup)

    def _add_parts(
        self,
        kubelet_service: KubeletService,
        registration: KubeletRegistration,
        startup: NodeStartup,
        status: ClaimStatusWriter,
        *,
        slice_watch: SliceWatch,
    ) -> None:
        self._add_probes()
        self.supervisor.add(self._operation(registration, slice_watch))
        self.supervisor.add(status)  # stopped after the kubelet's last call
        # nothing else, in particular not kopf, may use up the time in which the kubelet's calls drain
        self.supervisor.add(kubelet_service, stops_first=True)
        self.supervisor.add(registration, after=kubelet_service, stops_first=True, waits_for=registration.waits_for)
        self.supervisor.add(self._watchdog, after=kubelet_service)
        self.supervisor.add(self._event_recorder.recorder, after=kubelet_service)
        self.supervisor.add(startup, after=kubelet_service, waits_for=self._calls_under_way)
        if (follower := self._node_follower) is not None:
            self.supervisor.add(follower, after=startup, waits_for=follower.waits_for)
        # while an older process runs, that one does all maintenance, until this one has taken over
        serving = (startup, registration)
        self.supervisor.add(self._repreparer, after=serving)
        self.supervisor.add(self._leftovers, after=serving)
        self.supervisor.add(self._file_repair, after=serving)
        if self._driver.effects:
            self.supervisor.add(self._effect_verifier, after=serving)
            self.supervisor.add(self._unrecorded_effects, after=serving)
        self.supervisor.add(self.orphans, after=serving)
        if self._decommission is None:
            self.supervisor.add(self._discovery, after=startup, waits_for=self._waits_for_discover)
        elif self._decommission.has_code:
            self.supervisor.add(self._decommission.devices(self._discovery), after=startup)
        if self._health is not None:
            self.supervisor.add(self._health, after=serving)
        if self._policy is not None:
            self.supervisor.add(self._policy, after=startup, waits_for=self._calls_under_way)
        if self._pod_hooks is not None:
            known = (*serving, self._discovery) if self._decommission is None else serving
            self.supervisor.add(self._pod_hooks, after=known, waits_for=self._pod_hooks.waits_for)
        self.supervisor.add(self._publisher, after=registration, waits_for=lambda: self._publisher.last_error)
        if self._decommission is None:
            self.supervisor.add(slice_watch, after=self._publisher)

    def _node_read(self, node: NodeInfo) -> None:
        """Process the Node as a single request returned it, which may be older than what the watch has reported."""
        if self._node_follower is None or not self._node_follower.known:
            self._node_changed(node)

    def _node_changed(self, node: NodeInfo) -> None:
        first, self._labels_known = not self._labels_known, True
        changed = node.labels != self._context.node.labels
        if changed:
            self._context.node_known(node)
        if self._node_follower is None:
            return
        if changed and self._started.is_set():
            self._discovery.rescan()
        if (changed or first) and self._policy is not None:
            self._policy.node_changed()

    def _known_labels(self) -> Mapping[str, str] | None:
        """Return the labels of the Node; None until they were read."""
        return self._context.node.labels if self._labels_known else None

    def _missing(self) -> list[str]:
        """Return what this process needs before it can serve the kubelet, one line each."""
        return unready_parts(self.supervisor, self.supervisor.before(self._registration))

    async def _publishable(self) -> None:
        if self._decommission is None:  # otherwise nothing is published, and a release needs no inventory
            await self._publisher.try_out()

    def _calls_under_way(self) -> str:
        return "; ".join(hanging_calls(self._loop, _A_MOMENT))

    @property
    def discover_problem(self) -> str:
        """Why the last ``discover`` failed; empty if it did not. May be called from any thread."""
        return self._inventory.problem

    def _waits_for_discover(self) -> str:
        if self.discover_problem:
            return f"discover fails: {self.discover_problem}"
        return "; ".join(self._discovery.hanging(_A_MOMENT))

    def _effects(
        self, cluster_facts: ClusterFacts, locks: NodeLocks, boot_id: str
    ) -> tuple[HardwareHandle, EffectEngine, EffectVerifier]:
        driver, settings, store = self._driver, self._settings, self._store
        without_code = self._decommission.classes if self._decommission is not None else None
        self._effect_classes = classes = without_code or EffectClasses(driver.effects)
        runner: ChildProcesses | None = None
        keeper: ClusterObjects | None = None
        finders: list[EffectFinder] = []
        if driver.effects or store.effects():
            keeper = ClusterObjects(self._client, driver.name, cluster_facts, records=store.effects)
            finders.append(ClusterObjectFinder(keeper, driver.effects.values(), settings.author))
        if classes.runs_programs:
            directory = settings.state(driver.name) / "children"
            runner = ChildProcesses(
                directory, locks.children, environment=settings.child_environment, records=store.effects
            )  # fmt: skip
            finders.append(runner)
        hardware = HardwareHandle(driver, runner, keeper, self._context)
        known = self._inventory if self._decommission is None or self._decommission.has_code else CurrentInventory()
        gone = GoneHardware(store, known, look_again=self._discovery.rescan)
        reverter = EffectReverter(store, classes, hardware, locks.effects, gone)
        self._effect_engine = engine = EffectEngine(
            store, classes, hardware, reverter, boot_id=boot_id, locks=locks.effects, replaced=self._effect_replaced
        )  # fmt: skip
        verifier = EffectVerifier(
            store, driver.effects, classes, hardware, engine,
            boot_id=boot_id, locks=locks.effects, every=settings.effects_interval,
        )  # fmt: skip
        self._unrecorded_effects = UnrecordedEffects(
            store, classes, finders, locks.effects, claims=locks.claims, every=settings.orphan_after
        )  # fmt: skip
        self._effect_verifier = verifier
        if runner is not None:
            self.supervisor.add(runner)  # stopped once no claim needs a program
            runner.listen(verifier.look_again)
        return hardware, engine, verifier

    def _connect_hooks(self, guard: HookGuard, locks: Path, boot_id: str) -> None:
        hooks, context = self._driver.pod_hooks, self._context
        if hooks is None:
            return
        named = NamedLocks(locks / "pod-hooks.lock")
        self._pod_hooks = PodHooksPart(
            hooks,
            lambda calls: HookPlugin(
                hooks, calls, driver=self._driver.name, boot_id=boot_id, store=self._store, inventory=self._inventory,
                updates=self._service.updates, guard=guard, consumers=context.consumers,
                started=StartedPods(guard.directory / "started", boot_id), locks=named,
            ),
            driver=self._driver.name, socket=self._settings.nri_socket, context=context, guard=guard, locks=named,
        )  # fmt: skip

    def _report(self, claim_events: ClaimEvents, status: ClaimStatusWriter) -> None:
        claim_events.prepared.listen(status.submit)
        claim_events.prepared.listen(self._repreparer.prepared)
        claim_events.resumed.listen(status.resume)
        claim_events.released.listen(status.forget)
        claim_events.failed.listen(self._event_recorder.prepare_failed)
        claim_events.failed.listen(self._failures.failed)

    def _add_probes(self) -> None:
        if not self._settings.probe_address:
            return
        self._probes = Probes(
            self._settings.probe_address,
            live=[self._watchdog.blocked, partial(self.hanging, self._settings.hang_timeout)],
            ready=[partial(unready_parts, self.supervisor)],
            metrics=self._metrics,
        )
        self.supervisor.add(self._probes)  # stopped last: a process that is shutting down is still alive

    def _connect_publisher(self) -> None:
        """Connect the inventory to the publisher, through health and policy if the driver has them."""
        driver, settings, inventory = self._driver, self._settings, self._inventory
        publish: Callable[[Inventory[Device]], None] = self._publisher.publish
        if driver.policy is not None:
            self._policy = PolicyPart(
                driver.policy, self._client, settings.node_name,
                current=inventory, publish=publish, serving=self._source.serving,
                settings=settings.author, labels=self._known_labels,
            )  # fmt: skip
            publish = self._policy.publish
        if driver.health is not None:
            self._health = HealthMonitor(
                driver.name, driver.health, state_dir=settings.state(driver.name),
                current=inventory, publish=publish, changed=self._event_recorder.device_changed,
            )  # fmt: skip
            publish = self._health.inventory_changed
        inventory.listen(publish)

    def _kubelet_sockets(self, boot_id: str) -> tuple[KubeletService, KubeletRegistration]:
        name, service, settings = self._driver.name, self._service, self._settings
        calls: NodeService = service
        if self._decommission is not None:
            in_force = None if self._decommission.has_code else self._effect_engine.is_in_force
            calls = self._decommission.service(
                service, self._store, name, boot_id, is_in_force=in_force, title=self._effect_classes.title
            )
        self._calls = MeasuredService(calls)
        endpoint = plugin_socket(settings.kubelet_dir, name, settings.pod_uid)
        health = None if self._health is None else self._health.streams
        plugin = PluginServer(self._calls, endpoint, versions=settings.dra_versions, health=health)
        registration = RegistrationServer(
            name, endpoint=endpoint, supported_versions=plugin.supported_versions,
            socket=registration_socket(settings.kubelet_dir, name, settings.pod_uid),
        )  # fmt: skip
        return KubeletService(plugin, service.calls, settings.drain), KubeletRegistration(registration, self._takeover)

    def _operation(self, kubelet: KubeletRegistration, slice_watch: SliceWatch) -> OperationServer:
        name, settings = self._driver.name, self._settings
        in_use = DevicesInUse(name, settings.node_name, self._store, settings.kubelet_dir)
        view = NodeView(
            prepared=in_use,
            store=self._store,
            in_force=self._effect_engine.is_in_force,
            title=self._effect_classes.title,
            publisher=self._publisher,
            inventory=self._advertised,
            vanished=self._vanished,
            client=self._client,
            kubelet=kubelet,
            pod_uid=settings.pod_uid or "",
            health=None if self._health is None else self._health.shown,
            supervisor=self.supervisor,
            failures=self._failures,
            pod_hooks=self._pod_hooks,
        )
        self._metrics.read(
            NodeMetrics(view, self._loop, self._calls, self._watchdog, slice_watch.restarts), driver=name
        )

        async def who() -> Mapping[str, Any]:
            uses = await in_use.in_use()
            return {"driver": name, "node": in_use.node, "devices": [use.to_json() for use in uses]}

        return OperationServer(
            operation_socket(settings.kubelet_dir, name, settings.pod_uid),
            operation_link(settings.kubelet_dir, name),
            {WHO: who, STATUS: NodeStatus(view).document},
            self._metrics.text,
            self._takeover.done,
        )

    async def run(self) -> int:
        """Run until SIGTERM or :meth:`stop`; return the exit code."""
        try:
            with self._processes.present():
                self._event_recorder.report_corrupt_records()
                await self._leftovers.sweep()
                hit(Failpoint.FILES_SWEPT)
                code = await self._run_parts()
                await self._leftovers.sweep()  # leftovers of another process that was killed meanwhile
                return code
        finally:
            await self._event_recorder.close()
            await self._client.close()
            self._store.close()
            if self._probes is not None:
                self._probes.close()

    async def _run_parts(self) -> int:
        announcing = asyncio.create_task(self._announce_stop())
        try:
            return await self.supervisor.run()
        finally:
            self._stopping.set()
            announcing.cancel()

    async def _announce_stop(self) -> None:
        """Notify the author's code immediately that the driver stops, however long running calls take to drain."""
        await self.supervisor.stopping.wait()
        self._stopping.set()

    @property
    def probe_port(self) -> int:
        """The port where liveness and readiness are served; 0 for none."""
        return self._probes.port if self._probes is not None else 0

    def hanging(self, patience: float) -> list[str]:
        """Return a line for each call of the author's code that has hung for ``patience`` seconds. Thread-safe."""
        health = [] if self._health is None else self._health.hanging(patience)
        discover = [] if self._decommission is not None else self._discovery.hanging(patience)  # no undo waits for it
        return [*hanging_calls(self._loop, patience), *discover, *health]

    def inject_health(self, device: str, reason: str, message: str | None, *, pool: str | None = None) -> Future[None]:
        """Simulate a problem with a device, for drills and tests. Thread-safe.

        Args:
            device: the name of the device.
            reason: a key of the health source's policy.
            message: a text for people; None withdraws the problem.
            pool: the pool of the device, if the name alone is ambiguous.

        Returns:
            A future that is done when the consequences are published. It fails with a ConfigurationError if the
            driver has no health source, or if the device or the reason is unknown.
        """

        async def inject() -> None:
            if self._health is None:
                raise ConfigurationError(f"driver {self._driver.name} has no health source; write Driver(…, health=…)")
            await self._health.inject(device, pool, reason, None if message is None else (message, None))
            await self._publisher.up_to_date.wait()

        return asyncio.run_coroutine_threadsafe(inject(), self._loop)

    def stop(self) -> None:
        """Ask the process to stop."""
        self.supervisor.stop()

    def _nothing_left(self) -> None:
        self.nothing_left = True
        self.stop()

    def _effect_replaced(self, effect: Effect[Any, Any], claims: Sequence[ClaimReference]) -> None:
        self._repreparer.look_again()
        self._event_recorder.effect_replaced(effect, claims)

    def _process_ended(self) -> None:
        """Take over the unfinished work and the programs of another process that has exited."""
        self._repreparer.look_again()
        if self._health is not None:
            self._health.process_ended()
        self._file_repair.look_again()
        self._effect_verifier.look_again()
        self._publisher.look_again()

    def _update(self, update: DeviceUpdate, wait: bool) -> None:
        """Write what the author's code reports about a device later, from any thread."""
        if not wait:
            with suppress(RuntimeError):  # the process has stopped, the author's thread has not
                self._loop.call_soon_threadsafe(self._service.updates.report, update)
            return
        caller = self._caller_of_wait(update)
        title = "context.update(…, wait=True)"

        async def write() -> bool:
            written: asyncio.Future[bool] = self._loop.create_future()
            if caller is None or update.claim is None:
                self._service.updates.report(update, written)
                return await written
            self._refuse_circle(update, caller, update.claim)
            self._waiting_calls[written] = caller, update.claim
            try:
                self._service.updates.report(update, written)
                return await written
            finally:
                del self._waiting_calls[written]

        if not PendingResult(write, lambda: self._loop, title, title).result():
            raise TransientError(
                f"device {update.pool}/{update.device}: facts not written: no claim is prepared with it; report them "
                "again when one is"
            )

    def _caller_of_wait(self, update: DeviceUpdate) -> str | None:
        """Return the UID of the claim for which the running call of the driver's code is; None outside of one.

        Waiting is rejected in an event loop, and in a call for a claim if the facts are about that claim.

        Raises:
            ConfigurationError: naming what to do instead.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise ConfigurationError(
                "context.update(…, wait=True) blocks the event loop; in async def write 'await "
                "asyncio.to_thread(self.context.update, …, wait=True)'"
            )
        uid = context_of(copy_context()).get("claim_uid")
        if uid is None or not any(
            context_of(item.context).get("claim_uid") == uid for item in running_calls(self._loop)
        ):
            return None
        if update.claim in {None, uid}:
            raise ConfigurationError(
                f"device {update.pool}/{update.device}: context.update(…, wait=True) would wait for the call of the "
                "driver's code that it is in; return the facts in Prepared(…), or omit wait"
            )
        return uid

    def _refuse_circle(self, update: DeviceUpdate, caller: str, target: str) -> None:
        """Reject a wait for a claim whose call waits for the one in which this is: neither would end.

        Raises:
            ConfigurationError: naming what to do instead.
        """
        reached, former = {target}, set[str]()
        while reached != former:
            former, reached = reached, reached | {to for of, to in self._waiting_calls.values() if of in reached}
        # with this concurrency, all other calls wait until the one that this is in returns
        serial = self._driver.concurrency == "driver" and self._service.calls.works_on(target)
        if serial or caller in reached:
            raise ConfigurationError(
                f"device {update.pool}/{update.device}: context.update(…, wait=True) for claim {target} would wait in "
                f"a circle: the call for that claim waits for the call for claim {caller}, which this is in; omit wait"
            )
