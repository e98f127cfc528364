"""The controller role as a process."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from prometheus_client import Metric
from pydantic import BaseModel

from dra_kit import __version__
from dra_kit.author.driver import Driver
from dra_kit.client.api import Client, discover_release
from dra_kit.client.credentials import Credentials, load_credentials
from dra_kit.client.events import EventRecorder
from dra_kit.controller.announcer import ClaimAnnouncer, agreed_version
from dra_kit.controller.author_handlers import AuthorHandlers, ClaimObserverRunner, load_handlers
from dra_kit.controller.binding import DeviceBinding
from dra_kit.controller.claim_follower import ClaimFollower, ClaimHistory, ClaimWatch
from dra_kit.controller.claim_transitions import (
    UNKNOWN,
    AnnouncementBacklog,
    AnnouncementProgress,
    FollowedVersions,
    announced_of,
)
from dra_kit.controller.cluster_pools import ClusterPools, OrphanSliceCollector
from dra_kit.controller.context import ControllerClusterApi, ControllerContext, ControllerOwner, ControllerStartup
from dra_kit.controller.election import ActiveParts, LeaderElector, Leadership, LeaseTiming
from dra_kit.controller.taint_rules import TaintRuleReconciler
from dra_kit.process.metrics import CLAIMS, LEADER, Metrics, process_metrics
from dra_kit.process.probes import Check, LoopWatchdog, Probes, hanging_calls, unready_parts
from dra_kit.process.supervisor import Part, Supervisor
from dra_kit.slices.inventory import cluster_source

logger: logging.Logger = logging.getLogger(__name__)
_FLUSH_SECONDS: Final = 5.0


class ControllerSettings(Struct, frozen=True, kw_only=True):
    """The deployment settings of the controller.

    Attributes:
        kubeconfig: a kubeconfig; None for ``$KUBECONFIG``, the service account or ``~/.kube/config``.
        instance: names this process in Events; None for the host name, which is the name of the pod.
        resync_seconds: seconds between two complete lists of the claims.
        probe_address: where liveness and readiness are served, ``host:port`` or ``:port``; empty to disable them.
        election: several processes may run, and elect one active process; if False, this is the only process.
        since: only for a single process: a resource version at which no claims existed; no later change has been
            announced yet. None if the state at the start has been announced.
        lease_namespace: the namespace of the Lease; None for that of the credentials (in a pod, the pod's namespace).
        lease_name: the name of the Lease; None for ``<driver>-controller``.
        timing: the timing of the election.
        hang_timeout: seconds after which a call of the author's code that has not returned makes liveness fail.
        author: the author's settings, already filled; None if nothing in the controller may request them.
        cluster_role: the name of the ClusterRole that owns the objects the controller creates, so that they are
            garbage-collected with it; None for objects without an owner.
        pools_published: called when the pools that belong to no node are published for the first time.
    """

    kubeconfig: Path | None = None
    instance: str | None = None
    resync_seconds: float = 600.0
    probe_address: str = ""
    election: bool = True
    since: str | None = None
    lease_namespace: str | None = None
    lease_name: str | None = None
    timing: LeaseTiming = field(default_factory=LeaseTiming)
    hang_timeout: float = 600.0
    author: BaseModel | None = None
    cluster_role: str | None = None
    pools_published: Callable[[], None] = lambda: None


async def run_controller(
    driver: Driver[Any, Any], settings: ControllerSettings, credentials: Credentials | None = None
) -> int:
    """Run the controller until SIGTERM or SIGINT, or until a part of it fails.

    Every replica follows the claims; only the active one calls hooks and writes objects.

    Returns:
        The exit code: 0, or 1 after a failure, or 2 where the failure is a ConfigurationError.

    Raises:
        ConfigurationError: usable credentials are missing, the probe address cannot be used, the author's module of
            handlers cannot be imported, or the cluster does not serve resource.k8s.io/v1.
        KubeError: the API server does not answer at the start.
    """
    credentials = credentials or await load_credentials(settings.kubeconfig)
    async with Client(credentials, user_agent=_user_agent(driver)) as client:
        await discover_release(client)
        recorder = EventRecorder(
            client,
            controller=driver.name,
            instance=settings.instance or socket.gethostname(),
            capacity=4096,  # one controller speaks for a whole cluster
        )
        announced = UNKNOWN
        if settings.election:
            announced = await agreed_version(client, _lease(driver, settings), _lease_namespace(settings, credentials))
        supervisor = _wired(driver, settings, credentials, client, recorder, announced=announced)
        try:
            return await supervisor.run()
        finally:
            if not await recorder.flush(_FLUSH_SECONDS):
                lost = "they are lost: without election no other process has them"
                what_now = "the next active replica writes those of claims" if settings.election else lost
                logger.warning(
                    "stopping with unwritten Events", extra={"events": recorder.waiting, "what_now": what_now}
                )


def _wired(
    driver: Driver[Any, Any],
    settings: ControllerSettings,
    credentials: Credentials,
    client: Client,
    recorder: EventRecorder,
    *,
    announced: int,
) -> Supervisor:
    leadership = Leadership(alone=not settings.election)
    backlog = AnnouncementBacklog(announced)
    follower = ClaimFollower(
        client,
        driver.name,
        resync_seconds=settings.resync_seconds,
        backlog=backlog if settings.election else None,
        since=settings.since,
        announced=announced,
    )
    followed = FollowedVersions(time.monotonic, lambda: follower.seen)
    progress = AnnouncementProgress(followed, lambda: backlog.announced)
    loop = asyncio.get_running_loop()

    lease = _lease(driver, settings)
    supervisor, watchdog, metrics = Supervisor(), LoopWatchdog(), Metrics()
    if settings.probe_address:
        live: list[Check] = [watchdog.blocked, partial(hanging_calls, loop, settings.hang_timeout)]

        def readings() -> Iterator[Metric]:
            yield LEADER.of(int(leadership.leading), lease)
            yield CLAIMS.of(follower.claims)
            yield from process_metrics("controller", client, supervisor, watchdog.lag)

        metrics.read(readings, driver=driver.name)
        ready = [partial(unready_parts, supervisor)]
        supervisor.add(Probes(settings.probe_address, live=live, ready=ready, metrics=metrics))
    supervisor.add(watchdog)
    supervisor.add(recorder)
    supervisor.add(follower)
    watch: Part = ClaimWatch(credentials, follower)
    supervisor.add(watch, after=follower)  # after the first list, so that its claims are known and not announced
    caught_up = watch
    if settings.since is not None:
        supervisor.add(ClaimHistory(client, follower, settings.since), after=follower)
    elif announced != UNKNOWN:
        caught_up = ClaimHistory(client, follower, str(announced))
        supervisor.add(
            caught_up, after=watch, waits_for=lambda: f"changes of claims since resource version {announced}"
        )
    cluster = ControllerClusterApi(client, driver.name, loop)
    context = ControllerContext(driver.name, settings.author, metrics, cluster)
    startup = ControllerStartup(driver, context, supervisor.stopping)
    supervisor.add(startup, after=caught_up)
    elected: Part = startup
    if settings.election:
        leadership.on_renewal(lambda annotations: backlog.renewed(announced_of(annotations)))
        leadership.on_renewal(lambda _: followed.sample())
        elected = LeaderElector(
            client,
            leadership,
            identity=f"{settings.instance or socket.gethostname()}_{secrets.token_hex(8)}",
            namespace=_lease_namespace(settings, credentials),
            lease=lease,
            timing=settings.timing,
            annotations=progress.annotations,
        )
        supervisor.add(elected, after=startup)  # a replica that takes over has missed nothing
    # added last, so that it stops first: its work is done when the lease is released
    active = ActiveParts(leadership)
    of_claims = _for_claims(driver, client, follower, recorder, progress)
    for part in (*of_claims, *_for_cluster(driver, settings, client, context, metrics)):
        active.add(part)
    if driver.handler_module.used:
        registry = load_handlers(driver)
        handlers = AuthorHandlers(
            driver, registry, context,
            credentials=credentials, client=client, user_agent=_user_agent(driver),
        )  # fmt: skip
        metrics.read(handlers.readings, driver=driver.name)
        active.add(handlers)
    supervisor.add(active, after=elected)
    return supervisor


def _for_claims(
    driver: Driver[Any, Any],
    client: Client,
    follower: ClaimFollower,
    recorder: EventRecorder,
    progress: AnnouncementProgress,
) -> Iterator[Part]:
    """Yield what the active replica does for claims."""
    yield ClaimAnnouncer(follower, recorder, progress)
    if driver.observer is not None:
        yield ClaimObserverRunner(follower, driver.observer, driver.name, progress)
    if driver.binder is not None:
        yield DeviceBinding(driver.name, driver.binder, client, follower, recorder)


def _for_cluster(
    driver: Driver[Any, Any], settings: ControllerSettings, client: Client, context: ControllerContext, metrics: Metrics
) -> Iterator[Part]:
    """Yield what the active replica makes in the cluster."""
    yield OrphanSliceCollector(client, driver.name)
    source = cluster_source(driver)
    if source is not None:
        pools = ClusterPools(
            driver.name, source, client, context, ControllerOwner(client, settings.cluster_role),
            published=settings.pools_published,
        )  # fmt: skip
        metrics.read(pools.readings, driver=driver.name)
        yield pools
    if driver.taint_rules is not None:
        yield TaintRuleReconciler(
            driver.name, driver.taint_rules, client, context, ControllerOwner(client, settings.cluster_role)
        )


def lease_name(driver: str) -> str:
    """Return the default name of the Lease of a driver's controller."""
    return f"{driver}-controller"


def _lease(driver: Driver[Any, Any], settings: ControllerSettings) -> str:
    return settings.lease_name or lease_name(driver.name)


def _lease_namespace(settings: ControllerSettings, credentials: Credentials) -> str:
    return settings.lease_namespace or credentials.connection.namespace or "default"


def _user_agent(driver: Driver[Any, Any]) -> str:
    return f"dra-kit/{__version__} {driver.name} controller"
