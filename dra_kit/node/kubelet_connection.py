"""The service socket and the registration socket, and metrics of the service behind them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from prometheus_client import Metric

from dra_kit.author.calls import call
from dra_kit.author.driver import Driver
from dra_kit.errors import DraKitError, Unavailable
from dra_kit.kubelet.plugin_server import (
    KubeletDevice,
    NodeService,
    PluginServer,
    RegistrationServer,
    RegistrationStatus,
)
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.recovery import ClaimRecovery
from dra_kit.node.context import ClusterFacts, HardwareHandle, NodeContext
from dra_kit.node.deadlines import DeadlineRunner
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.processes import Takeover
from dra_kit.process.metrics import KUBELET_CALL_SECONDS, KUBELET_CLAIMS, BoundedLabel
from dra_kit.process.tracing import span

logger: logging.Logger = logging.getLogger(__name__)
KUBELET_WAIT: Final = 10.0
"""Seconds for a kubelet that watches the registration socket to answer; it needs about one."""
NODE_WAIT: Final = 5.0
"""Seconds that the author's startup waits for the Node's labels; if the API server is down, it starts without them."""
RESUME_AGAIN: Final = 2.0
"""Seconds until unfinished work is searched for again, if the state could not be read."""


class KubeletService:
    """The service socket, on which the kubelet's calls are answered; on stop, they have ``drain`` seconds."""

    name = "service"

    def __init__(self, server: PluginServer, calls: DeadlineRunner, drain: float) -> None:
        self._server = server
        self._calls = calls
        self._drain = drain

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when calls are answered."""
        await self._server.start(bound=partial(hit, Failpoint.SERVICE_BOUND))
        hit(Failpoint.SERVING)
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self._server.stop(self._drain)
            await self._calls.drain(self._drain)
            hit(Failpoint.DRAINED)


class KubeletRegistration:
    """The registration socket, through which the kubelet finds the service socket, once the takeover allows it."""

    name = "kubelet"

    def __init__(self, server: RegistrationServer, takeover: Takeover) -> None:
        self._server = server
        self._takeover = takeover

    @property
    def status(self) -> RegistrationStatus | None:
        """The kubelet's last response to the registration; None before the first, and after the stop."""
        return self._server.status

    @property
    def status_at(self) -> datetime | None:
        """The time of that response; None before the first."""
        return self._server.status_at

    def is_registered(self) -> bool:
        """Return whether the kubelet has registered this process. Thread-safe."""
        status = self.status  # another thread replaces it
        return status is not None and status.registered

    @property
    def is_deferred(self) -> bool:
        """Whether this process has not registered yet, because an older one still serves. Thread-safe."""
        return bool(self._takeover.waits_for)

    def waits_for(self) -> str:
        """Return what it waits for, as text. Thread-safe."""
        status = self._server.status
        if status is not None and not status.registered:
            return f"the kubelet rejects the driver: {status.error}"
        return self._takeover.waits_for

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`.

        Ready when the kubelet can find the driver. While an older process runs: ready when the kubelet has registered
        this one.
        """
        try:
            preceded = await self._takeover.turn()
            self._server.start(bound=partial(hit, Failpoint.REGISTRATION_BOUND))
            hit(Failpoint.REGISTERED)
            warning = asyncio.get_running_loop().call_later(KUBELET_WAIT, self._look_for_kubelet)
            try:
                if preceded:
                    await self._takeover.confirmed(self.is_registered)
                self._takeover.done.set()
                ready.set()
                await asyncio.Event().wait()
            finally:
                warning.cancel()
        finally:
            hit(Failpoint.DRAINING)
            self._takeover.ends()
            await asyncio.to_thread(self._server.stop, 0.5)
            hit(Failpoint.UNREGISTERED)

    def _look_for_kubelet(self) -> None:
        if self._server.status is None:
            logger.warning(
                "no kubelet has registered the driver",
                extra={
                    "waited": KUBELET_WAIT,
                    "remedy": (
                        "a kubelet that has failed to register the driver before tries again within 122 s; otherwise "
                        "none watches plugins_registry: set --kubelet-dir to the kubelet's root directory"
                    ),
                },
            )


class NodeStartup:
    """Starts the author's code (hardware, provider, preparer), and finishes the last process's work.

    ``started`` is set when the author's code may be called. While an older process runs, nothing is finished before
    this one takes over.
    """

    name = "startup"

    def __init__(
        self,
        driver: Driver[Any, Any],
        context: NodeContext,
        recovery: ClaimRecovery,
        facts: ClusterFacts,
        *,
        started: asyncio.Event,
        hardware: HardwareHandle,
        takeover: Takeover,
    ) -> None:
        self._takeover = takeover
        self._driver = driver
        self._context = context
        self._recovery = recovery
        self._facts = facts
        self._started = started
        self._hardware = hardware
        for part in driver.node_bound:
            part.context = context

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when the author's code may be called."""
        try:
            async with asyncio.timeout(NODE_WAIT):  # wait_for of Python 3.11 may lose a cancellation
                await self._facts.owner()
        except (DraKitError, TimeoutError) as error:
            code = error.code if isinstance(error, DraKitError) else Unavailable.default_code
            logger.warning("Node cannot be read yet", extra={"error": str(error) or "no answer", "code": code})
        await _abandonable(self._hardware.make(self._context))
        await _abandonable(call(self._driver.provider.startup, self._context))
        await _abandonable(call(self._driver.preparer.startup, self._context))
        self._started.set()
        ready.set()
        await self._takeover.done.wait()
        await self._resume()
        hit(Failpoint.RESUMED)
        await asyncio.Event().wait()

    async def _resume(self) -> None:
        while True:
            try:
                return await self._recovery.resume()
            except DraKitError as error:  # a failing disk must not stop the process
                logger.error("unfinished claims cannot be resumed", extra={"error": str(error), "code": error.code})
            await asyncio.sleep(RESUME_AGAIN)


async def _abandonable(work: Coroutine[Any, Any, object]) -> None:
    """Wait for an author's call that may be abandoned when the process stops, even if it hangs in its thread."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    finally:
        task.cancel()
    await task


Method: TypeAlias = Literal["prepare", "unprepare"]
_BUG: Final = "internal"


class MeasuredService:
    """Implements :class:`dra_kit.kubelet.plugin_server.NodeService`: counts the results of another one."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._seconds = KUBELET_CALL_SECONDS.histogram()
        self._claims: Counter[tuple[Method, str, str]] = Counter()
        self._codes = BoundedLabel()  # an author may use any code

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[KubeletDevice] | Exception]:
        """See :class:`dra_kit.kubelet.plugin_server.NodeService`."""
        began = time.monotonic()
        with span("NodePrepareResources", claims=len(claims)):
            answer = await self._service.prepare(claims)
        self._count("prepare", began, answer)
        return answer

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        """See :class:`dra_kit.kubelet.plugin_server.NodeService`."""
        began = time.monotonic()
        with span("NodeUnprepareResources", claims=len(claims)):
            answer = await self._service.unprepare(claims)
        self._count("unprepare", began, answer)
        return answer

    def _count(self, method: Method, began: float, answer: Mapping[str, object]) -> None:
        failed = False
        for result in answer.values():
            if isinstance(result, Exception):
                failed = True
                code = result.code if isinstance(result, DraKitError) else _BUG
                self._claims[method, "error", self._codes.of(code)] += 1
            else:
                self._claims[method, "success", ""] += 1
        self._seconds.labels(method, "error" if failed else "success").observe(time.monotonic() - began)

    def readings(self) -> Iterator[Metric]:
        """Yield the counters."""
        yield from self._seconds.collect()
        yield KUBELET_CLAIMS.of_each(list(self._claims.items()))
