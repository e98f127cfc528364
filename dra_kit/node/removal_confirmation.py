"""A node without any leftovers of a driver: the removal is confirmed, and late calls of the kubelet are answered.

The confirmation is a condition of the decommissioning pod. Everything that waits for a removal reads it: ``dra-kit
drain``, the chart's guard, and ``kubectl wait --for=condition=dra-kit/Decommissioned pod --selector …``.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Final

from msgspec import Struct
from prometheus_client import Metric

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.resources import DECOMMISSIONED, PODS
from dra_kit.errors import ConfigurationError, DraKitError, PermanentError
from dra_kit.kubelet.plugin_server import KubeletDevice, PluginServer, RegistrationServer
from dra_kit.kubelet.sockets import plugin_socket, registration_socket
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.settings import NodeSettings
from dra_kit.process.metrics import REGISTERED, Metrics, process_metrics
from dra_kit.process.probes import LoopWatchdog, Probes, unready_parts
from dra_kit.process.supervisor import Supervisor

logger: logging.Logger = logging.getLogger(__name__)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_UNREGISTER_SECONDS: Final = 0.5


class StopRequest:
    """Records SIGTERM and SIGINT while no supervisor handles them, which is between the removal and what follows it."""

    def __init__(self) -> None:
        self._requested = False
        self._supervisor: Supervisor | None = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record signals instead of being killed by them; outside of the main thread, signals are not handled."""
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
        """Let the signals stop a supervisor that does not run yet, including signals received before."""
        self._supervisor = supervisor
        if self._requested:
            supervisor.stop()

    def _receive(self, *_: object) -> None:
        self._requested = True
        if self._supervisor is not None:
            self._supervisor.stop()


async def answer_late_calls(
    driver: str, settings: NodeSettings, confirmation: RemovalConfirmation | None, *, stop: StopRequest
) -> int:
    """Serve the kubelet without state until SIGTERM, and confirm the removal.

    A claim that was allocated before the devices were withdrawn may still reach the kubelet. Without a registered
    driver, its pod could not be deleted. ``confirmation`` is None if no client waits for one.

    Returns:
        The exit code of the process.
    """
    supervisor = Supervisor()
    stop.stops(supervisor)
    late, watchdog = _LateCallServer(driver, settings), LoopWatchdog()
    if settings.probe_address:
        metrics = Metrics()
        metrics.read(late.readings, driver=driver)
        metrics.read(partial(process_metrics, "node", None, supervisor, watchdog.lag), driver=driver)
        live, ready = [watchdog.blocked], [partial(unready_parts, supervisor)]
        supervisor.add(Probes(settings.probe_address, live=live, ready=ready, metrics=metrics))
    supervisor.add(watchdog)
    supervisor.add(late)
    if confirmation is not None:
        confirmation.set(True, "nothing of the driver is left on this node")
        supervisor.add(confirmation)
    logger.info("answering late calls", extra={"driver": driver})
    return await supervisor.run()


class _NoClaims:
    """A :class:`dra_kit.kubelet.plugin_server.NodeService` without claims: rejects prepares, accepts unprepares."""

    def __init__(self, driver: str) -> None:
        self._driver = driver

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[KubeletDevice] | Exception]:
        return {claim.uid: removed_error(claim, self._driver) for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        return dict.fromkeys(claim.uid for claim in claims)


class _LateCallServer:
    """A part of the process: the service socket and the registration socket."""

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

    def readings(self) -> Iterator[Metric]:
        """Yield whether the kubelet has registered the driver; an alert on that metric needs this process, too."""
        status = self._registration.status
        yield REGISTERED.of(int(status is not None and status.registered))

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


_RETRY_SECONDS: Final = 2.0
_MESSAGE_CHARACTERS: Final = 1024


class PodName(Struct, frozen=True):
    """The pod in which the decommission runs."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> PodName:
        """Parse ``NAMESPACE/NAME``.

        Raises:
            ConfigurationError: the text has another form.
        """
        namespace, slash, name = text.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise ConfigurationError(f"--pod {text!r} is not a pod; write NAMESPACE/NAME")
        return cls(namespace, name)


class RemovalConfirmation:
    """A part of the process: sets the pod's condition, and retries while the API server does not answer.

    ``client`` needs ``patch`` on pods/status of this pod.
    """

    name = "confirmation"

    def __init__(self, client: Client, pod: PodName) -> None:
        self._client = client
        self._pod = pod
        self._wanted: tuple[bool, str] | None = None
        self._changed = asyncio.Event()
        self._logged = ""

    def set(self, done: bool, message: str) -> None:
        """Set the condition: whether nothing is left, and what is left, as text for people."""
        wanted = done, message[:_MESSAGE_CHARACTERS]
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    async def run(self, ready: asyncio.Event) -> None:
        """Write each change, until cancelled; ready at once, so that an API outage does not stop the driver."""
        ready.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write()
            except DraKitError as error:
                self._report(error)
                self._changed.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _write(self) -> None:
        if self._wanted is None:
            return
        done, message = self._wanted
        condition = {
            "type": DECOMMISSIONED,
            "status": "True" if done else "False",
            "reason": "NothingLeft" if done else "Decommissioning",
            "message": message,
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        await self._client.patch(
            PODS, self._pod.name, {"status": {"conditions": [condition]}}, self._pod.namespace,
            content_type=STRATEGIC_MERGE_PATCH, subresource="status",
        )  # fmt: skip
        self._logged = ""
        if done:
            logger.info("removal confirmed", extra={"pod": f"{self._pod.namespace}/{self._pod.name}"})

    def _report(self, error: DraKitError) -> None:
        if str(error) != self._logged:
            logger.error("removal cannot be confirmed", extra={"error": str(error), "code": error.code})
        self._logged = str(error)


def removed_error(claim: ClaimReference, driver: str) -> PermanentError:
    """Return the error that the kubelet gets for a claim that cannot be prepared any more."""
    return PermanentError(
        f"claim {claim} is not prepared: driver {driver} is being removed from this node; delete the pod, or install "
        "the driver again",
        code="driver-removed",
    )
