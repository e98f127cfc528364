"""The control plane: API server, scheduler and controllers, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from dra_kit.apiserver.api import RuntimeConfig
from dra_kit.apiserver.authentication import Authenticator
from dra_kit.apiserver.garbage_collection import NAMESPACE_SECONDS
from dra_kit.apiserver.server import BACKLOG, ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.events import EventRecorder
from dra_kit.client.resources import (
    CONFIG_MAPS,
    CRON_JOBS,
    ENDPOINT_SLICES,
    ENDPOINTS,
    JOBS,
    NAMESPACES,
    POD_GROUPS,
    RESOURCE_POOL_STATUS_REQUESTS,
    SERVICES,
    VALIDATING_ADMISSION_POLICIES,
    Resource,
)
from dra_kit.client.transport import CONNECTIONS
from dra_kit.errors import DraKitError, InternalError
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import UNMODIFIED, Release
from dra_kit.kubernetes.scheduler.cycle import SchedulingDecision
from dra_kit.sandbox.cluster_copy import ClusterCopy, CopiedNodes
from dra_kit.sandbox.controllers import cron_jobs, device_taint_eviction, jobs, resource_claims
from dra_kit.sandbox.controllers.certificates import FOLLOWED, CertificateController, RootCertificatePublisher
from dra_kit.sandbox.controllers.cron_jobs import CronJobController
from dra_kit.sandbox.controllers.device_taint_eviction import DeviceTaintEvictionController
from dra_kit.sandbox.controllers.endpoints import EndpointController
from dra_kit.sandbox.controllers.jobs import JobController
from dra_kit.sandbox.controllers.node_lifecycle import NodeLifecycleController, PodGarbageCollector
from dra_kit.sandbox.controllers.policy_status import KindLookup, PolicyStatusController, ServedKind
from dra_kit.sandbox.controllers.resource_claims import PoolStatusController, ResourceClaimController
from dra_kit.sandbox.controllers.workloads import (
    COMPONENTS,
    WORKLOADS,
    PodGroupProtectionController,
    WorkloadController,
)
from dra_kit.sandbox.informers import SCHEDULING_RESOURCES, SharedInformers
from dra_kit.sandbox.scheduler import DeviceTracker, Scheduler

SOMAXCONN: Final = Path("/proc/sys/net/core/somaxconn")
"""Where Linux reports how many clients may wait at a socket."""
_RESOURCES: Final = (*SCHEDULING_RESOURCES, NAMESPACES, CONFIG_MAPS, SERVICES, ENDPOINTS, ENDPOINT_SLICES)
_CALM_TURNS: Final = 25  # a moment: so many times, the event loop has had the time to run everybody
_CALM_SECONDS: Final = 0.01
_CLOSE_SECONDS: Final = 0.05  # connections that were closed are gone some turns of the event loop later


class ControlPlane:
    """Everything of a cluster but its nodes; an asynchronous context manager that runs it.

    Args:
        release: of API server and scheduler; by default the newest, unmodified.
        runtime_config: which versions the API server serves; by default the newest, unmodified.
        time_scale: waits of controllers and scheduler are divided by this.
        port: of the API server; 0 for a free one.
        observe: notified of every decision of the scheduler.
        copy: a saved cluster to begin with. Its pods are scheduled once :meth:`schedule` is called.
    """

    def __init__(
        self,
        *,
        release: Release | None = None,
        runtime_config: RuntimeConfig | None = None,
        time_scale: float = 1.0,
        port: int = 0,
        observe: Callable[[SchedulingDecision], None] = lambda _: None,
        copy: ClusterCopy | None = None,
    ) -> None:
        self._copy = copy
        self._release = release or UNMODIFIED
        self._time_scale = time_scale
        self._observe = observe
        self.door: Final = Authenticator()
        self.server: Final = ApiServer(
            release=self._release,
            runtime_config=runtime_config,
            port=port,
            tls=True,
            authenticator=self.door,
            namespace_seconds=NAMESPACE_SECONDS / time_scale,
        )
        self._stack = AsyncExitStack()
        self._work: asyncio.Task[None] | None = None
        self._failure_raised = False
        self._informers: SharedInformers | None = None
        self._scheduler: Scheduler | None = None
        self._credentials: Credentials | None = None

    def listen_at(self, path: Path) -> None:
        """Let clients in this process connect over a unix socket, without TLS; call it before the server starts.

        Clients notice no other difference. The socket is not used if its backlog would be too small: asyncio reports a
        connection that does not fit in the backlog as established.

        Args:
            path: at most 107 bytes long, in a directory that only this user can access.
        """
        try:
            allowed = int(SOMAXCONN.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return
        if allowed >= BACKLOG:
            self.server.socket = path

    async def __aenter__(self) -> Self:
        """Start the API server, then the controllers and the scheduler as its clients.

        Raises:
            ConfigurationError: an object of the saved cluster does not have the types of its kind.
        """
        try:
            if self._copy is not None:
                self._copy.restore(self.server.api)
            self.server.enforce_quotas()
            await self._stack.enter_async_context(self.server)
            # what lists each kind once does so one after the other: connections take longer than the lists
            client = await self.connect("dra-kit-sandbox", connections=1, warnings=False)
            late = {
                resource: partial(self._first_object, resource)
                for resource in (
                    *WORKLOADS,
                    JOBS,
                    CRON_JOBS,
                    VALIDATING_ADMISSION_POLICIES,
                    RESOURCE_POOL_STATUS_REQUESTS,
                    POD_GROUPS,
                    *FOLLOWED,
                )
            }
            informers = self._informers = SharedInformers(client, _RESOURCES, late=late, served=self._served)
            manager = ControllerManager(
                await self.connect("kube-controller-manager", warnings=False),
                informers,
                self._release,
                authority=self.server.authority,
                kinds=self._served_kind,
                time_scale=self._time_scale,
                copy=self._copy,
            )
            scheduler = self._scheduler = Scheduler(
                await self.connect("kube-scheduler"),
                informers,
                DeviceTracker(AllocatorRules.of(self._release)),
                observe=self._observe,
                time_scale=self._time_scale,
                held=self._copy is not None,
                provide_resources="DRAExtendedResource" in self._release,
            )
            self._work = asyncio.create_task(_run(informers, manager, scheduler), name="control plane")
            await self.or_fail(informers.synced())
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
        await self._stack.aclose()
        await asyncio.sleep(_CLOSE_SECONDS)
        if self._work is not None and not self._work.cancelled() and not self._failure_raised and error is None:
            self._work.result()

    @property
    def informers(self) -> SharedInformers:
        """What the control plane knows of its objects."""
        if self._informers is None:
            raise InternalError("the control plane has not been started; enter it first")
        return self._informers

    def hold(self) -> None:
        """Let no pod be scheduled until :meth:`schedule` is called, so that it does not matter what changes first."""
        if self._scheduler is not None:
            self._scheduler.hold()

    def schedule(self) -> None:
        """Schedule pods again, the oldest first."""
        if self._scheduler is not None:
            self._scheduler.release()

    async def calm(self) -> None:
        """Wait until the scheduler has tried all pods, unless it is held, and nothing was written for a moment."""
        turns, seen = 0, self.server.api.storage.revision
        while turns < _CALM_TURNS:
            await asyncio.sleep(_CALM_SECONDS)
            before, seen = seen, self.server.api.storage.revision
            busy = self._scheduler is not None and self._scheduler.busy
            turns = 0 if busy or seen != before else turns + 1

    def credentials(self) -> Credentials:
        """Return credentials for clients: they may do everything."""
        if self._credentials is None:
            self._credentials = Credentials(self.server.connection())  # one TLS context for all clients
        return self._credentials

    async def connect(self, user_agent: str, *, connections: int = CONNECTIONS, warnings: bool = True) -> Client:
        """Return a client for the running event loop, closed with the control plane.

        Without ``warnings``, it does not log those of the API server.
        """
        return await self._stack.enter_async_context(
            Client(self.credentials(), user_agent=user_agent, connections=connections, warnings=warnings)
        )

    def _served(self, resource: Resource) -> Resource | None:
        find = self.server.api.registry.find
        return next((item for item in resource.versions if find(item.group, item.version, item.plural)), None)

    def _served_kind(self, group: str, version: str, name: str) -> ServedKind | None:
        registry = self.server.api.registry
        found = registry.find(group, version, name) or registry.by_kind(f"{group}/{version}", name)
        if found is None or version not in found.types or registry.is_custom(found):
            return None
        return group, version, found.kind, found.types[version]

    async def _first_object(self, resource: Resource) -> None:
        """Wait until there is an object of a resource; to follow one takes a list, a watch and a connection."""
        came, storage, name = asyncio.Event(), self.server.api.storage, resource.full_name
        end = storage.listen(name, lambda _: came.set())
        try:
            if next(storage.items(name), None) is None:
                await came.wait()
        finally:
            end()

    async def or_fail(self, work: Awaitable[object], others: Iterable[Awaitable[object]] = ()) -> None:
        """Wait for something, unless the control plane fails before: then that is cancelled, and the failure raised."""
        task = asyncio.ensure_future(work)
        watched = [asyncio.ensure_future(item) for item in others]
        vital = [*watched, *([self._work] if self._work else [])]
        try:
            await asyncio.wait([task, *vital], return_when=asyncio.FIRST_COMPLETED)
            ended = next((item for item in (task, *vital) if item.done()), task)
            self._failure_raised = ended is self._work
            ended.result()
        except* DraKitError as errors:
            raise first_error(errors) from None
        finally:
            for item in (task, *watched):
                item.cancel()
            await asyncio.wait([task, *watched])


async def _run(informers: SharedInformers, manager: ControllerManager, scheduler: Scheduler) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(informers.run(), name="informers")
        await informers.synced()  # as in Kubernetes: controllers never see only a part of the objects
        group.create_task(manager.run(), name="controllers")
        group.create_task(scheduler.run(), name="scheduler")


def first_error(errors: BaseExceptionGroup[DraKitError]) -> DraKitError:
    """Return the first error of a group, however deep it lies."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, DraKitError):
        raise error
    return error


class _Controller(Protocol):
    async def run(self) -> None: ...


class ControllerManager:
    """Claims, eviction by device taint, status of pools, pods of lost nodes, readiness of nodes, workloads and Jobs.

    Args:
        release: of the cluster.
        authority: of the API server's certificate, as PEM.
        kinds: that the API server serves.
        copy: the saved cluster that the objects come from; None for none.
    """

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        release: Release,
        *,
        authority: str,
        kinds: KindLookup,
        time_scale: float = 1.0,
        copy: ClusterCopy | None = None,
    ) -> None:
        own = (resource_claims, device_taint_eviction, jobs, cron_jobs)
        claim_events, taint_events, job_events, cron_job_events, *_ = self._recorders = tuple(
            EventRecorder(client, controller=component, instance=component)
            for component in (*(module.COMPONENT for module in own), *COMPONENTS.values())
        )
        workload_events = dict(zip(COMPONENTS, self._recorders[len(own) :], strict=True))
        self._controllers: tuple[_Controller, ...] = (
            ResourceClaimController(
                client,
                informers,
                claim_events,
                release=release,
                absent=copy.absent_consumers if copy else None,
            ),
            DeviceTaintEvictionController(
                client, informers, taint_events, time_scale=time_scale, spare=copy is not None, release=release
            ),
            PodGarbageCollector(client, informers, time_scale=time_scale, absent=copy.absent_nodes if copy else ()),
            NodeLifecycleController(
                client,
                informers,
                copied=copy.node_uids if copy else None,
                kubelets=copy.kubelets if copy else (),
            ),
            *([CopiedNodes(client, informers, copy)] if copy else []),
            RootCertificatePublisher(client, informers, authority),
            EndpointController(client, informers),
            PolicyStatusController(client, informers, kinds, release),
            WorkloadController(client, informers, workload_events, time_scale=time_scale),
            JobController(client, informers, job_events, time_scale=time_scale),
            CronJobController(client, informers, cron_job_events),
            PodGroupProtectionController(client, informers),
            CertificateController(client, informers),
            *(
                [PoolStatusController(client, informers, release.version, time_scale=time_scale)]
                if resource_claims.POOL_STATUS_GATE in release
                else []
            ),
        )

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for recorder in self._recorders:
                group.create_task(recorder.run(asyncio.Event()), name="events")
            for controller in self._controllers:
                group.create_task(controller.run(), name=type(controller).__name__)
