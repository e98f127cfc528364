"""The controller role as a process."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from dra_kit import __version__
from dra_kit.author.driver import Driver
from dra_kit.controller import handlers
from dra_kit.controller.claims.follower import ClaimFollower
from dra_kit.kube.client import Client
from dra_kit.kube.credentials import load_credentials
from dra_kit.kube.events import EventRecorder
from dra_kit.kube.operator import OperatorThread, kopf, quiet_settings
from dra_kit.kube.versions import discover
from dra_kit.process.probes import Probes, parts_not_ready
from dra_kit.process.supervisor import Supervisor
from dra_kit.process.watchdog import Watchdog

_PAGE: Final = 500  # objects per page of kopf's list
_WAITING_EVENTS: Final = 4096  # one controller speaks for a whole cluster
_FLUSH_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """What whoever deploys the controller decides.

    Attributes:
        kubeconfig: a kubeconfig; None for ``$KUBECONFIG``, the service account or ``~/.kube/config``.
        context: a context of the kubeconfig; None for its current one.
        instance: names this process in Events; None for the host's name, which is the pod's.
        resync_seconds: between two complete lists of the claims.
        probe_address: where liveness and readiness are told, ``host:port`` or ``:port``; empty: nowhere.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    instance: str | None = None
    resync_seconds: float = 600.0
    probe_address: str = ""


async def run_controller(driver: Driver[Any, Any], settings: ControllerSettings) -> int:
    """Runs the controller until SIGTERM or SIGINT, or until a part of it fails.

    One process per cluster: a second one would repeat every Event.

    Returns:
        The exit code: 0, or 1 after a failure, or 2 where the failure is a ConfigurationError.

    Raises:
        ConfigurationError: there are no usable credentials, the address of the probes cannot be had, or the cluster
            does not serve resource.k8s.io/v1.
        KubeError: the API server does not answer at the start.
    """
    credentials = await load_credentials(settings.kubeconfig, settings.context)
    async with Client(credentials, user_agent=f"dra-kit/{__version__} {driver.name} controller") as client:
        await discover(client)
        recorder = EventRecorder(
            client,
            controller=driver.name,
            instance=settings.instance or socket.gethostname(),
            capacity=_WAITING_EVENTS,
        )
        follower = ClaimFollower(client, driver.name, recorder, resync_seconds=settings.resync_seconds)
        loop = asyncio.get_running_loop()

        def build() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
            registry = kopf.OperatorRegistry()
            handlers.register(registry, follower, loop)
            return registry, quiet_settings(chunk_size=_PAGE)

        supervisor = Supervisor()
        watchdog = Watchdog()
        if settings.probe_address:
            ready = partial(parts_not_ready, supervisor)
            supervisor.add(Probes(settings.probe_address, live=[watchdog.blocked], ready=[ready]))
        supervisor.add(watchdog)
        supervisor.add(recorder)
        supervisor.add(follower)
        # after the first list, so that its claims are known and not announced; without back-off: kopf that ended may
        # have lost what it watched, and the pod starts again from a list
        supervisor.add(OperatorThread(credentials, build, backoff=()), after=follower)
        code = await supervisor.run()
        await recorder.flush(_FLUSH_SECONDS)
        return code
