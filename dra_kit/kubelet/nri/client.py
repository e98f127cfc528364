"""Connects a plugin with a container runtime: registers, serves, and connects again."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from dra_kit.kubelet.nri.hooks import (
    HOOKS,
    HookCounters,
    HookEvent,
    HookRunner,
    Plugin,
    RuntimeParameters,
    answer_within,
    cancel,
)
from dra_kit.kubelet.nri.proto import nri_v1alpha1_pb2 as pb
from dra_kit.kubelet.nri.ttrpc import UNKNOWN, CallError, ConnectionLost, Method, Mux, NriError, TtrpcConnection

SOCKET: Final = Path("/var/run/nri/nri.sock")
"""Where containerd and CRI-O listen by default."""
NRI_VERSION: Final = "v0.12.5"
"""The version of NRI whose messages this package knows."""
PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN_CONNECTION: Final = 1
RUNTIME_CONNECTION: Final = 2
FAIL_CLOSED: Final = pb.FailurePolicy(fail_request=True, keep_connected=True)
"""A request without an answer fails, in runtimes of NRI 0.12.4 and newer."""
REQUEST_TIMEOUT: Final = 2.0
"""Seconds that a runtime waits for an answer if it does not say (NRI's default)."""
REGISTRATION_TIMEOUT: Final = 5.0
"""Seconds until a runtime must have answered the registration (NRI's default)."""
UPDATE_TIMEOUT: Final = 30.0
"""Seconds until a runtime must have updated containers."""
RETRY_FIRST: Final = 0.1
"""Seconds before the first reconnect; short, because pods start without the plugin in the meantime."""
RETRY_MAX: Final = 5.0
"""Seconds before a reconnect, at most."""
EMPTY_PARTS_MAX: Final = 100
"""Empty parts after which a synchronization fails. NRI 0.12.5 sends them until its timeout if a node has a single pod
and the containers have more than 4 MiB."""
_NAME = re.compile(r"[a-zA-Z0-9_.+-]+")
_REQUESTS: Final = {False: pb.PodSandboxRequest, True: pb.ContainerRequest}

logger: logging.Logger = logging.getLogger(__name__)


class ClientState(NamedTuple):
    """Whether hooks run, for readiness."""

    connected: bool
    """The plugin is registered and has synchronized."""
    reason: str
    """What the client does, or why it is not connected."""
    runtime: RuntimeParameters | None = None
    """The runtime that configured the plugin."""


class NriClient:
    """Runs a plugin; to be used in one event loop.

    It fails closed: every request is answered before the runtime's timeout, with an error if need be, because a runtime
    that gets no answer disconnects the plugin and starts the container without it. While no plugin is connected, pods
    start without it: :meth:`Plugin.synchronize` sees them later.

    Args:
        plugin: has the hooks.
        name: of the plugin; letters, digits and ``_.+-``.
        index: two digits; the runtime calls plugins in this order.
        socket: the runtime's NRI socket.
        failure_policy: for runtimes of NRI 0.12.4 and newer; older ones ignore it.
        on_state: called when :attr:`state` changes.

    Attributes:
        state: whether hooks run, or why not.
        counters: of hooks that failed or were missed, and of reconnects.

    Raises:
        ValueError: the name or the index is invalid, or the plugin has no hook.
    """

    def __init__(
        self,
        plugin: Plugin,
        *,
        name: str,
        index: str = "00",
        socket: Path = SOCKET,
        failure_policy: pb.FailurePolicy = FAIL_CLOSED,
        on_state: Callable[[ClientState], None] | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"NRI plugin name {name!r} invalid: only letters, digits and '_.+-' are allowed; rename it"
            )
        if not re.fullmatch("[0-9]{2}", index):
            raise ValueError(
                f"index {index!r} of NRI plugin {name} invalid: it is not two digits; use for example '00'"
            )
        if not plugin.events:
            # the runtime would take an empty set for all events
            raise ValueError(
                f"NRI plugin {name} has no events: {type(plugin).__name__} overrides no hook; override one"
            )
        self.state: ClientState = ClientState(connected=False, reason="not started")
        self.counters: HookCounters = HookCounters()
        self._plugin = plugin
        self._label = f"{index}-{name}"
        self._registration = pb.RegisterPluginRequest(plugin_name=name, plugin_idx=index, nri_version=NRI_VERSION)
        self._socket = socket
        self._failure_policy = failure_policy
        self._on_state = on_state
        self._warning = ""
        self._hooks = HookRunner(plugin, self._label, self.counters)
        self._session: _Session | None = None
        self._deferred: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        """Whether hooks run."""
        return self.state.connected

    async def run(self) -> None:
        """Connect and serve until cancelled; connect again whenever the connection ends.

        When it is cancelled, open requests are answered with an error and running hooks are cancelled.
        """
        delay = RETRY_FIRST
        clock = asyncio.get_running_loop().time
        try:
            while True:
                session = _Session(self._plugin, self._label, self._hooks, self._failure_policy, self._report)
                self._session = session
                try:
                    cause = await session.serve(self._socket, self._registration)
                    if session.synchronized_at is not None and clock() - session.synchronized_at >= delay:
                        delay = RETRY_FIRST
                    self._report(ClientState(connected=False, reason=cause), logging.WARNING)
                    # after a failed synchronization the connection is still open, and no container starts
                    await asyncio.sleep(delay)
                finally:
                    await session.close()
                delay = min(2 * delay, RETRY_MAX)
                self.counters.reconnects += 1
        finally:
            self._session = None
            await cancel(self._deferred)
            await self._hooks.close()
            self._report(ClientState(connected=False, reason="stopped"))

    async def update_containers(self, updates: Iterable[pb.ContainerUpdate]) -> list[pb.ContainerUpdate]:
        """Change the resources of existing containers.

        While the runtime waits for a hook, the update waits: the runtime would lock up (containerd/nri#301). Called in
        a hook, it returns at once; the update is sent after the answer, and its errors are only logged.

        Returns:
            The updates that the runtime could not apply.

        Raises:
            ConnectionLost: the plugin is not connected. The next :meth:`Plugin.synchronize` can return the update.
            CallError: the runtime rejected the request.
            TimeoutError: the runtime did not answer.
        """
        request = pb.UpdateContainersRequest(update=updates)
        if self._hooks.in_hook():
            task = asyncio.create_task(_log_failures(self._update, request))
            self._deferred.add(task)
            task.add_done_callback(self._deferred.discard)
            return []
        return await self._update(request)

    async def _update(self, request: pb.UpdateContainersRequest) -> list[pb.ContainerUpdate]:
        await self._hooks.until_answered()
        if self._session is None:
            raise ConnectionLost("containers not updated: the NRI client is not running; call run")
        return await self._session.update(request)

    def _report(self, state: ClientState, level: int = logging.INFO) -> None:
        if state == self.state:
            return
        self.state = state
        if level == logging.WARNING or state.connected:
            if state.reason == self._warning:
                level = logging.DEBUG  # each attempt to connect fails alike
            self._warning = state.reason
        logger.log(level, "NRI plugin %s: %s", self._label, state.reason)
        if self._on_state is not None:
            try:
                self._on_state(state)
            except Exception:
                logger.exception("NRI plugin %s: on_state failed", self._label)


async def _log_failures(
    update: Callable[[pb.UpdateContainersRequest], Awaitable[list[pb.ContainerUpdate]]],
    request: pb.UpdateContainersRequest,
) -> None:
    """Send an update for which no caller waits."""
    try:
        for failed in await update(request):
            logger.warning("container %s not updated: the runtime could not apply the update", failed.container_id)
    except (NriError, TimeoutError) as error:
        logger.warning("%s", str(error) or "containers not updated: the runtime did not answer")


class _Session:
    """One connection of a client."""

    def __init__(
        self,
        plugin: Plugin,
        label: str,
        hooks: HookRunner,
        failure_policy: pb.FailurePolicy,
        report: Callable[[ClientState], None],
    ) -> None:
        self.synchronized_at: float | None = None
        self._plugin = plugin
        self._label = label
        self._hooks = hooks
        self._failure_policy = failure_policy
        self._report = report
        self._events = {event.event: event for event in plugin.events}
        self._connection: TtrpcConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._parameters: RuntimeParameters | None = None
        self._pods: list[pb.PodSandbox] = []
        self._containers: list[pb.Container] = []
        self._empty_parts = 0
        self._ended = False
        self._synchronizing: asyncio.Task[Sequence[pb.ContainerUpdate]] | None = None
        # why hooks cannot run, empty if they can
        self._synchronization: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(self, socket: Path, registration: pb.RegisterPluginRequest) -> str:
        """Connect, register and serve.

        Returns:
            Why the connection is to be replaced: it is lost, or the plugin could not synchronize.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(socket)
        except OSError as error:
            return (
                f"not connected to {socket}: {error.strerror or error}; check that the container runtime runs and "
                "that its NRI is enabled, and mount the socket's directory into the plugin's pod"
            )
        self._writer = writer
        mux = Mux(reader, writer)
        mux.open(PLUGIN_CONNECTION, {PLUGIN_SERVICE: self._methods()})
        self._connection = mux.open(RUNTIME_CONNECTION)
        self._reading = asyncio.create_task(mux.run())
        self._report(ClientState(connected=False, reason="registering"))
        try:
            # the runtime may configure the plugin before it answers
            await self._connection.call(
                RUNTIME_SERVICE, "RegisterPlugin", registration, pb.Empty, timeout=REGISTRATION_TIMEOUT
            )
            ends: tuple[asyncio.Future[Any], ...] = (self._synchronization, self._reading)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._synchronization.done() and self._synchronization.result():
                return self._synchronization.result()
            await self._reading
        except TimeoutError:
            return f"not registered with {socket}: the runtime did not answer in {REGISTRATION_TIMEOUT:g} s; restart it"
        except NriError as error:
            return f"not connected to {socket}: {error}"
        finally:
            self._ended = True
        return f"disconnected from {socket}: the runtime stopped, or a hook took too long; the runtime's log says why"

    async def close(self) -> None:
        """Answer open requests with an error, and close the connection."""
        if self._reading is not None:
            await cancel([self._reading])
        if self._writer is not None:
            self._writer.close()  # the task may have been cancelled before it began
        if self._synchronizing is not None:
            await cancel([self._synchronizing])
        if not self._synchronization.done():
            self._synchronization.set_result("the connection to the runtime was lost; the kubelet tries again")

    async def update(self, request: pb.UpdateContainersRequest) -> list[pb.ContainerUpdate]:
        """Send an update, and return what the runtime could not apply.

        Raises:
            CallError, ConnectionLost, TimeoutError: as :meth:`NriClient.update_containers`.
        """
        if self._connection is None:
            raise ConnectionLost("containers not updated: the NRI plugin is not connected; repeat it in synchronize")
        response = await self._connection.call(
            RUNTIME_SERVICE, "UpdateContainers", request, pb.UpdateContainersResponse, timeout=UPDATE_TIMEOUT
        )
        return list(response.failed)

    def _methods(self) -> dict[str, Method]:
        """Return what the runtime can call; it takes a missing method for an older plugin and uses StateChange."""
        methods = {
            "Configure": Method(pb.ConfigureRequest, self._configure),
            "Synchronize": Method(pb.SynchronizeRequest, self._synchronize),
            "Shutdown": Method(pb.Empty, self._shutdown),
            "StateChange": Method(pb.StateChangeEvent, self._state_change),
        }
        for event in HOOKS:
            methods[event.method] = Method(_REQUESTS[event.of_container], self._method(event))
        return methods

    def _method(self, event: HookEvent) -> Callable[[Any, float | None], Awaitable[Message]]:
        async def serve(request: Any, remaining: float | None) -> Message:
            result = await self._hook(event, request.pod, request.container if event.of_container else None, remaining)
            if event.event == pb.CREATE_CONTAINER:
                return (
                    pb.CreateContainerResponse(adjust=result)
                    if isinstance(result, pb.ContainerAdjustment)
                    else result or pb.CreateContainerResponse()
                )
            if event.event == pb.STOP_CONTAINER:
                return pb.StopContainerResponse(update=result or ())
            return pb.Empty()

        return serve

    async def _state_change(self, request: Any, remaining: float | None) -> Message:
        event = self._events.get(request.event)
        if event is not None:
            await self._hook(event, request.pod, request.container if event.of_container else None, remaining)
        return pb.Empty()

    async def _hook(
        self, event: HookEvent, pod: pb.PodSandbox, container: pb.Container | None, remaining: float | None
    ) -> Any:
        if event.event not in self._events:
            return None
        return await self._hooks.answer(event, pod, container, self._synchronization, self._seconds(remaining))

    def _seconds(self, remaining: float | None) -> float:
        configured = REQUEST_TIMEOUT if self._parameters is None else self._parameters.request_timeout
        return answer_within(configured, remaining)

    async def _shutdown(self, _: Any, __: float | None) -> Message:
        return pb.Empty()  # the connection ends soon

    async def _configure(self, request: Any, remaining: float | None) -> Message:
        self._parameters = RuntimeParameters(
            name=request.runtime_name,
            version=request.runtime_version,
            nri_version=request.nri_version,
            config=request.config,
            request_timeout=request.request_timeout / 1000 or REQUEST_TIMEOUT,
        )
        seconds = self._seconds(remaining)
        limit = asyncio.timeout(seconds)
        async with self._hooks.awaited():
            try:
                async with limit:
                    await self._plugin.configure(self._parameters)
            except Exception as error:
                cause = str(error) or type(error).__name__
                if limit.expired():
                    cause = f"configure has not finished after {seconds:.3g} s"
                if not self._synchronization.done():
                    self._synchronization.set_result(f"not configured for runtime {request.runtime_name}: {cause}")
                raise CallError(UNKNOWN, f"NRI plugin {self._label} not configured: {cause}") from error
        mask = sum(1 << (event - 1) for event in self._events)
        return pb.ConfigureResponse(events=mask, failure_policy=self._failure_policy)

    async def _synchronize(self, request: Any, remaining: float | None) -> Message:
        self._pods += request.pods
        self._containers += request.containers
        if request.more:
            self._empty_parts = 0 if request.pods or request.containers else self._empty_parts + 1
            if self._empty_parts <= EMPTY_PARTS_MAX:
                return pb.SynchronizeResponse(more=True)
            cause = (
                f"not synchronized: the runtime sends empty parts without end, after {len(self._pods)} pods and "
                f"{len(self._containers)} containers; start or delete pods on this node until it has several"
            )
            if not self._synchronization.done():
                self._synchronization.set_result(cause)
            raise CallError(UNKNOWN, f"NRI plugin {self._label} {cause}")
        async with self._hooks.awaited():
            self._synchronizing = asyncio.create_task(self._run_synchronize())
            await asyncio.wait({self._synchronizing}, timeout=self._seconds(remaining))
            if self._synchronizing.done():
                return pb.SynchronizeResponse(update=self._synchronizing.result())
        # an error would end the connection, and pods would start without the plugin; hooks wait instead
        self._hooks.counters.late += 1
        return pb.SynchronizeResponse()

    async def _run_synchronize(self) -> Sequence[pb.ContainerUpdate]:
        """Run the hook; its updates are returned, and sent separately if the runtime has its answer already."""
        pods, self._pods = self._pods, []
        containers, self._containers = self._containers, []
        self._hooks.count_skipped(
            [
                *(pod.id for pod in pods if pb.RUN_POD_SANDBOX in self._events),
                *(container.id for container in containers if pb.CREATE_CONTAINER in self._events),
            ]
        )
        try:
            async with self._hooks.synchronizing:
                updates = list(await self._plugin.synchronize(pods, containers))
        except Exception as error:  # no container starts until it succeeds
            self._hooks.counters.failed += 1
            logger.warning("synchronize failed", exc_info=error)
            if not self._synchronization.done():
                self._synchronization.set_result(f"not synchronized: {str(error) or type(error).__name__}")
            return []
        if self._ended:
            return []
        self.synchronized_at = asyncio.get_running_loop().time()
        if not self._synchronization.done():
            self._synchronization.set_result("")
        self._report(ClientState(connected=True, reason="connected", runtime=self._parameters))
        if updates and not self._hooks.in_hook():
            await self._hooks.until_answered()
            await _log_failures(self.update, pb.UpdateContainersRequest(update=updates))
        return updates
