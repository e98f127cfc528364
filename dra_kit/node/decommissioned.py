"""A node on which nothing of a driver is left: late calls of the kubelet are answered, until the pod is deleted."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.settings import NodeSettings
from dra_kit.node.undertaking.confirmation import Confirmation
from dra_kit.node.undertaking.service import removed_error
from dra_kit.plugin.registration import RegistrationServer
from dra_kit.plugin.server import PluginServer
from dra_kit.plugin.service import PreparedDevice
from dra_kit.plugin.sockets import plugin_socket, registration_socket
from dra_kit.process.metrics import families
from dra_kit.process.metrics.families import Reading
from dra_kit.process.metrics.process import process_readings
from dra_kit.process.metrics.registry import Metrics
from dra_kit.process.probes import Probes, parts_not_ready
from dra_kit.process.supervisor import Supervisor
from dra_kit.process.watchdog import Watchdog

logger: logging.Logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_UNREGISTER_SECONDS: Final = 0.5


class StopRequest:
    """Notes SIGTERM and SIGINT while no supervisor handles them: between the removal and what follows it."""

    def __init__(self) -> None:
        self._requested = False
        self._supervisor: Supervisor | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals instead of being killed by them; off the main thread signals are left alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stops(self, supervisor: Supervisor) -> None:
        """Let the signals stop a supervisor that does not run yet, also those that came before."""
        self._supervisor = supervisor
        if self._requested:
            supervisor.stop()

    def _receive(self, *_: object) -> None:
        self._requested = True
        if self._supervisor is not None:
            self._supervisor.stop()


async def answer_late_calls(
    driver: str, settings: NodeSettings, confirmation: Confirmation | None, *, stop: StopRequest
) -> int:
    """Serve the kubelet without state until SIGTERM, and confirm the removal.

    A claim that was allocated before the devices were withdrawn may still reach the kubelet. Without a registered
    driver its pod could not be deleted.

    Args:
        driver: its name.
        settings: of the node role.
        confirmation: of the removal; None where nothing waits for one.
        stop: of this process.

    Returns:
        The exit code of the process.
    """
    supervisor = Supervisor()
    stop.stops(supervisor)
    late, watchdog = _LateCalls(driver, settings), Watchdog()
    if settings.probe_address:
        metrics = Metrics()
        metrics.read(late.readings, driver=driver)
        metrics.read(lambda: process_readings("node", None, supervisor, watchdog))
        live, ready = [watchdog.blocked], [partial(parts_not_ready, supervisor)]
        supervisor.add(Probes(settings.probe_address, live=live, ready=ready, metrics=metrics))
    supervisor.add(watchdog)
    supervisor.add(late)
    if confirmation is not None:
        confirmation.set(True, "nothing of the driver is left on this node")
        supervisor.add(_Confirming(confirmation))
    logger.info("answering late calls", extra={"driver": driver})
    return await supervisor.run()


class _NoClaims:
    """A :class:`dra_kit.plugin.service.NodeService` that has no claims: none is prepared, and all are released."""

    def __init__(self, driver: str) -> None:
        self._driver = driver

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[PreparedDevice] | Exception]:
        return {claim.uid: removed_error(claim, self._driver) for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        return dict.fromkeys(claim.uid for claim in claims)


class _LateCalls:
    """A part of the process: both sockets."""

    name = "kubelet"

    def __init__(self, driver: str, settings: NodeSettings) -> None:
        endpoint = plugin_socket(settings.kubelet_dir, driver, settings.pod_uid)
        self._drain = settings.drain
        self._plugin = PluginServer(_NoClaims(driver), endpoint, versions=settings.dra_versions)
        self._registration = RegistrationServer(
            driver,
            endpoint=endpoint,
            supported_versions=self._plugin.supported_versions,
            socket=registration_socket(settings.kubelet_dir, driver, settings.pod_uid),
        )

    def readings(self) -> Iterator[Reading]:
        """Yield whether the kubelet has registered the driver: without that number an alert would miss the process."""
        status = self._registration.status
        yield families.REGISTERED.of(int(status is not None and status.registered))

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        await self._plugin.start()
        try:
            self._registration.start()
            ready.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(self._registration.stop, _UNREGISTER_SECONDS)
            await self._plugin.stop(self._drain)


class _Confirming:
    """A part of the process: writes the confirmation; ready at once, so that an outage does not stop the driver."""

    name = "confirmation"

    def __init__(self, confirmation: Confirmation) -> None:
        self._confirmation = confirmation

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        ready.set()
        await self._confirmation.run()
