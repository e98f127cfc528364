"""The node process: wires its parts and runs them until it is asked to stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from dra_kit.author.context import NodeInfo
from dra_kit.author.driver import Driver
from dra_kit.author.prepared import DeviceMetadata, DeviceStatus
from dra_kit.cdi.store import SpecStore
from dra_kit.errors import ConfigurationError, DraKitError, StoreError
from dra_kit.kube.client import Client
from dra_kit.kube.credentials import Credentials, load_credentials
from dra_kit.kube.events import EventRecorder, ObjectReference
from dra_kit.node.claims.news import ClaimNews
from dra_kit.node.claims.preparation import Preparation
from dra_kit.node.claims.service import ClaimService
from dra_kit.node.claims.status import StatusWriter
from dra_kit.node.context import NodeContext
from dra_kit.node.effects.engine import EffectEngine
from dra_kit.node.files.claim_files import ClaimFiles
from dra_kit.node.files.metadata import MetadataFiles
from dra_kit.node.files.strays import StrayFiles
from dra_kit.node.locks.named import NodeLocks
from dra_kit.node.locks.processes import Processes
from dra_kit.node.parts import KubeletConnection, Operator, Startup
from dra_kit.node.server_facts import ServerFacts
from dra_kit.node.settings import NodeSettings
from dra_kit.node.slices.discovery import Discovery
from dra_kit.node.slices.inventory import CurrentInventory
from dra_kit.node.slices.publisher import Publisher
from dra_kit.node.state.store import Store
from dra_kit.node.steps import Step, reached
from dra_kit.node.upkeep.leftovers import Leftovers
from dra_kit.node.upkeep.mending import Mending
from dra_kit.node.upkeep.orphans import Orphans
from dra_kit.node.upkeep.replugging import Replugging
from dra_kit.plugin.registration import RegistrationServer
from dra_kit.plugin.server import PluginServer
from dra_kit.plugin.sockets import plugin_socket, registration_socket
from dra_kit.process.hanging import HangingCalls
from dra_kit.process.probes import Probes, parts_not_ready
from dra_kit.process.supervisor import Supervisor
from dra_kit.process.watchdog import Watchdog
from dra_kit.resource.reference import ClaimReference

logger = logging.getLogger(__name__)
DRAIN: Final = 20.0


async def run_node(driver: Driver[Any, Any], settings: NodeSettings) -> int:
    """Run the node role until SIGTERM.

    Returns:
        The exit code of the process.

    Raises:
        ConfigurationError: a setting, a socket path, the CDI directory, a kubeconfig or an effect does not fit.
        StoreError: the durable state cannot be opened.
    """
    return await Agent(driver, settings, await load_credentials(settings.kubeconfig)).run()


class Agent:
    """Everything the node role consists of; see :func:`run_node` for its other arguments and errors.

    Args:
        driver: what runs.
        settings: how.
        credentials: for the API server.
        clock: gives seconds that only rise.

    Attributes:
        supervisor: runs the parts.
        orphans: looks for claims that the kubelet has forgotten.
    """

    def __init__(
        self,
        driver: Driver[Any, Any],
        settings: NodeSettings,
        credentials: Credentials,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._driver = driver
        self._settings = settings
        self._clock = clock
        self.supervisor = Supervisor(drain=DRAIN)
        self._client = Client(credentials, user_agent=f"{driver.name} dra-kit/node")
        self._events = EventRecorder(self._client, controller=driver.name, instance=settings.node_name)
        self._probes: Probes | None = None
        boot_id = _boot_id(settings)
        self._store = Store(settings.database(driver.name))
        reached(Step.STATE_OPENED)
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
        inventory = CurrentInventory()
        self._discovery = discovery = Discovery(driver, node, inventory)
        context = NodeContext(
            driver=name,
            node=NodeInfo(node),
            state_dir=settings.state(name) / "author",
            settings=settings.author,
            store=self._store,
            rescan=discovery.rescan,
            update=self._update,
            stopping=self.supervisor.stopping.is_set,
        )
        node_locks = NodeLocks.below(locks)
        effects = EffectEngine(self._store, driver.effects, boot_id=boot_id, locks=node_locks.effects)
        started = asyncio.Event()
        metadata_dir = settings.state(name) / "device-metadata"
        metadata = MetadataFiles(metadata_dir, name)
        status = StatusWriter(self._client, name, self._store)
        files = ClaimFiles(cdi, metadata)
        configs = driver.configs.with_settings(settings.author)
        preparation = Preparation(driver, configs, inventory, effects, boot_id, started, metadata)
        news = ClaimNews()
        self._service = ClaimService(
            preparation,
            api=self._client,
            store=self._store,
            files=files,
            locks=node_locks,
            news=news,
            deadline=settings.deadline,
        )
        self._replugging = Replugging(self._store, node_locks.claims, preparation, self._service.prepare_again)
        news.prepared.listen(status.submit)
        news.prepared.listen(self._replugging.prepared)
        news.resumed.listen(status.resume)
        news.released.listen(status.forget)
        news.failed.listen(self._prepare_failed)
        self._processes = Processes(locks / "processes")
        self._leftovers = Leftovers(
            name,
            settings.kubelet_dir,
            self._processes,
            StrayFiles(self._store, files, node_locks.claims),
            epochs=self._service.epochs,
            unasked=self._service.unasked,
            process_ended=self._process_ended,
        )
        facts = ServerFacts(self._client, node, context.node_known)
        publisher = Publisher(driver, node, self._client, facts)
        inventory.listen(publisher.publish)
        inventory.listen(self._replugging.inventory_changed)
        kubelet = self._kubelet()
        startup = Startup(driver, context, self._service.unasked, facts, started)
        watchdog = Watchdog()
        if settings.probe_address:
            self._probes = Probes(
                settings.probe_address,
                live=[watchdog.blocked, partial(self.hanging, settings.hang_timeout)],
                ready=[partial(parts_not_ready, self.supervisor)],
            )
            self.supervisor.add(self._probes)  # stopped last: also what stops is alive
        self.supervisor.add(status)  # stopped after the kubelet's last call
        self.supervisor.add(kubelet, stops_first=True)  # nothing else, kopf least of all, eats the kubelet's drain
        self.supervisor.add(watchdog, after=kubelet)
        self.supervisor.add(self._events, after=kubelet)
        self.supervisor.add(startup, after=kubelet)
        self.supervisor.add(self._replugging, after=startup)
        self.supervisor.add(self._leftovers, after=startup)
        self._mending = Mending(
            (settings.cdi_dir, metadata_dir), self._store, files, node_locks.claims, boot_id=boot_id
        )
        self.supervisor.add(self._mending, after=startup)
        self.orphans = Orphans(
            name,
            self._client,
            self._store,
            self._service.unasked,
            kubelet_dir=settings.kubelet_dir,
            after=settings.orphan_after,
            clock=self._clock,
        )
        self.supervisor.add(self.orphans, after=startup)
        self.supervisor.add(discovery, after=startup)
        self.supervisor.add(publisher, after=kubelet)
        self.supervisor.add(Operator(credentials, name, node, publisher), after=publisher)

    def _kubelet(self) -> KubeletConnection:
        kubelet_dir, name, pod_uid = self._settings.kubelet_dir, self._driver.name, self._settings.pod_uid
        endpoint = plugin_socket(kubelet_dir, name, pod_uid)
        plugin = PluginServer(self._service, endpoint, versions=self._settings.dra_versions)
        registration = RegistrationServer(
            name,
            endpoint=endpoint,
            supported_versions=plugin.supported_versions,
            socket=registration_socket(kubelet_dir, name, pod_uid),
        )
        return KubeletConnection(plugin, registration, self._service, self._settings.drain)

    async def run(self) -> int:
        """Run until SIGTERM or :meth:`stop`; the exit code."""
        try:
            with self._processes.present():
                self._tell_damage()
                await self._leftovers.sweep()
                reached(Step.FILES_SWEPT)
                code = await self.supervisor.run()
                await self._leftovers.sweep()  # of a process that was killed beside this one
                return code
        finally:
            await self._events.flush(2.0)
            await self._client.close()
            self._store.close()
            if self._probes is not None:
                self._probes.close()

    @property
    def probe_port(self) -> int:
        """The port where liveness and readiness are told; 0 for none."""
        return self._probes.port if self._probes is not None else 0

    def hanging(self, patience: float) -> list[str]:
        """A line for each call of the author's code that has not returned for so many seconds; from any thread."""
        return [*HangingCalls(self._loop, patience)(), *self._discovery.hanging(patience)]

    def stop(self) -> None:
        """Ask the process to end."""
        self.supervisor.stop()

    def _prepare_failed(self, claim: ClaimReference, error: DraKitError) -> None:
        self._warn(claim, "FailedPrepareDevices", "Prepare", str(error))

    def _tell_damage(self) -> None:
        """Whose record is damaged is told to whoever has the claim."""
        try:
            for item in self._store.damage():
                if item.claim is not None:
                    self._warn(item.claim, "DamagedRecord", "Keep", str(item.error()))
        except StoreError:  # told where it is needed
            return

    def _warn(self, claim: ClaimReference, reason: str, action: str, note: str) -> None:
        self._events.record(
            ObjectReference("resource.k8s.io/v1", "ResourceClaim", claim.name, claim.uid, claim.namespace),
            "Warning",
            reason=reason,
            action=action,
            note=f"on node {self._settings.node_name}: {note}",
        )

    def _process_ended(self) -> None:
        """What another process had begun, this one sees to: it knows of its own failures only."""
        self._replugging.process_ended()
        self._mending.look_again()

    def _update(self, pool: str, device: str, status: DeviceStatus | None, metadata: DeviceMetadata | None) -> None:
        """Facts that an author's code tells later, from whatever thread it runs in."""
        work = asyncio.run_coroutine_threadsafe(self._service.facts.update(pool, device, status, metadata), self._loop)
        work.add_done_callback(_told_if_failed)


def _told_if_failed(work: Future[None]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        logger.error("facts of a device not written", extra={"error": str(error)})


def _boot_id(settings: NodeSettings) -> str:
    try:
        return settings.boot_id.read_text().strip()
    except OSError as error:
        raise ConfigurationError(f"boot id {settings.boot_id} cannot be read: {error}; is /proc mounted?") from error
