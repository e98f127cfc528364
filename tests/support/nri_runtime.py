"""A container runtime's side of NRI, over its real socket: calls plugins in order, and drops those that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from google.protobuf.message import Message

from dra_kit.kubelet.nri import messages as pb
from dra_kit.kubelet.nri.client import PLUGIN_CONNECTION, PLUGIN_SERVICE, RUNTIME_CONNECTION, RUNTIME_SERVICE
from dra_kit.kubelet.nri.hooks import HOOKS, HookEvent
from dra_kit.kubelet.nri.ttrpc import (
    UNIMPLEMENTED,
    UNKNOWN,
    CallError,
    ConnectionLost,
    Method,
    Mux,
    TtrpcConnection,
)

EVENTS = {event.method: event for event in HOOKS}
OLD_METHODS = frozenset({"CreateContainer", "StopContainer"})
"""Events that had methods before NRI 0.12."""
AnswerT = TypeVar("AnswerT", bound=Message)


class ConnectedPlugin(NamedTuple):
    """A plugin that is registered, configured and synchronized."""

    label: str
    connection: TtrpcConnection
    events: int
    policy: pb.FailurePolicy
    reading: asyncio.Task[None]

    def subscribes(self, event: HookEvent) -> bool:
        return bool(self.events & 1 << (event.event - 1))


class Runtime:
    """Serves plugins at a socket.

    Args:
        socket: its path.
        nri: version of NRI: before 0.12 most events are StateChange, from 0.12.4 on the failure policy is known.
        request_timeout: seconds that are reported to plugins.
        patience: seconds until an answer is given up, if not those.
        pods: that exist.
        containers: that exist.
        parts: in how many parts these are sent.
    """

    def __init__(
        self,
        socket: Path,
        *,
        nri: tuple[int, int, int] = (0, 12, 5),
        request_timeout: float = 60,
        patience: float | None = None,
        pods: tuple[pb.PodSandbox, ...] = (),
        containers: tuple[pb.Container, ...] = (),
        parts: int = 1,
    ) -> None:
        self.plugins: list[ConnectedPlugin] = []
        self.changed = asyncio.Condition()
        self.updates: list[pb.ContainerUpdate] = []
        """Of containers, in the order in which they arrived."""
        self.pods = list(pods)
        self.containers = list(containers)
        self.log: list[str] = []
        """What was received and answered, in order."""
        self._socket = socket
        self._nri = nri
        self._request_timeout = request_timeout
        self._patience = patience or request_timeout
        self._parts = parts
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self._socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._socket.unlink(missing_ok=True)

    async def until(self, plugins: int) -> None:
        """Wait until so many plugins are connected."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.plugins) == plugins)

    async def pod_event(self, method: str, pod: pb.PodSandbox) -> None:
        """Call all plugins; raises CallError if one rejects."""
        await self._event(EVENTS[method], pb.PodSandboxRequest(pod=pod), pb.Empty)

    async def container_event(self, method: str, pod: pb.PodSandbox, container: pb.Container) -> list[Any]:
        """Call all plugins and return their answers; raises CallError if one rejects, or two want the same CPUs."""
        answer = {"CreateContainer": pb.CreateContainerResponse, "StopContainer": pb.StopContainerResponse}
        request = pb.ContainerRequest(pod=pod, container=container)
        answers: list[Any] = await self._event(EVENTS[method], request, answer.get(method, pb.Empty))
        if method == "CreateContainer" and sum(bool(item.adjust.linux.resources.cpu.cpus) for item in answers) > 1:
            raise CallError(UNKNOWN, "plugins both tried to set CPUSetCPUs")
        return answers

    async def _event(
        self, event: HookEvent, request: pb.PodSandboxRequest | pb.ContainerRequest, answer: type[AnswerT]
    ) -> list[AnswerT]:
        answers: list[AnswerT] = []
        async with self._turn:  # as in Go's adaptation: one event at a time
            for plugin in list(self.plugins):
                if not plugin.subscribes(event):
                    continue
                try:
                    answers.append(await self._call(plugin, event, request, answer))
                except (TimeoutError, ConnectionLost) as error:
                    policy = plugin.policy if self._nri >= (0, 12, 4) else pb.FailurePolicy()
                    if isinstance(error, ConnectionLost) or not policy.keep_connected:
                        plugin.reading.cancel()
                    if policy.fail_request:
                        raise CallError(UNKNOWN, f"plugin {plugin.label} failed to handle {event.method}") from error
        return answers

    async def _call(
        self,
        plugin: ConnectedPlugin,
        event: HookEvent,
        request: pb.PodSandboxRequest | pb.ContainerRequest,
        answer: type[AnswerT],
    ) -> AnswerT:
        call = plugin.connection.call
        if self._nri >= (0, 12, 0) or event.method in OLD_METHODS:
            try:
                return await call(PLUGIN_SERVICE, event.method, request, answer, timeout=self._patience)
            except CallError as error:
                if error.code != UNIMPLEMENTED or event.method in OLD_METHODS:
                    raise
        container = request.container if isinstance(request, pb.ContainerRequest) else None
        change = pb.StateChangeEvent(event=event.event, pod=request.pod, container=container)
        await call(PLUGIN_SERVICE, "StateChange", change, pb.Empty, timeout=self._patience)
        return answer()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        mux = Mux(reader, writer)
        registered: asyncio.Future[pb.RegisterPluginRequest] = asyncio.get_running_loop().create_future()

        async def register(request: Any, _: float | None) -> Message:
            registered.set_result(request)
            return pb.Empty()

        methods: Mapping[str, Method] = {
            "RegisterPlugin": Method(pb.RegisterPluginRequest, register),
            "UpdateContainers": Method(pb.UpdateContainersRequest, self._update),
        }
        mux.open(RUNTIME_CONNECTION, {RUNTIME_SERVICE: methods})
        connection = mux.open(PLUGIN_CONNECTION)
        reading = asyncio.create_task(mux.run())
        plugin: ConnectedPlugin | None = None
        try:
            request = await registered
            plugin = await self._start(f"{request.plugin_idx}-{request.plugin_name}", connection, reading)
            await self._change(plugin, connected=True)
            await asyncio.wait({reading})
        except (CallError, ConnectionLost, TimeoutError) as error:
            self.log.append(f"plugin dropped: {error}")
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            if plugin is not None:
                await self._change(plugin, connected=False)
            self._tasks.discard(task)

    async def _change(self, plugin: ConnectedPlugin, *, connected: bool) -> None:
        async with self.changed:
            (self.plugins.append if connected else self.plugins.remove)(plugin)
            self.plugins.sort(key=lambda item: item.label)
            self.changed.notify_all()

    async def _start(self, label: str, connection: TtrpcConnection, reading: asyncio.Task[None]) -> ConnectedPlugin:
        known = self._nri >= (0, 12, 0)
        configuration = pb.ConfigureRequest(
            runtime_name="containerd",
            runtime_version="v2.4.2",
            registration_timeout=5000,
            request_timeout=round(self._request_timeout * 1000),
            nri_version="v{}.{}.{}".format(*self._nri) if known else "",
        )
        answer = await connection.call(
            PLUGIN_SERVICE, "Configure", configuration, pb.ConfigureResponse, timeout=self._patience
        )
        valid = (1 << (14 if self._nri >= (0, 10, 0) else 11)) - 1
        if answer.events & ~valid:
            raise CallError(UNKNOWN, f"invalid plugin events: {answer.events:#x}")
        await self._synchronize(connection)
        return ConnectedPlugin(label, connection, answer.events or valid, answer.failure_policy, reading)

    async def _synchronize(self, connection: TtrpcConnection) -> None:
        for part in range(self._parts):
            more = part < self._parts - 1
            request = pb.SynchronizeRequest(
                pods=self.pods[part :: self._parts], containers=self.containers[part :: self._parts], more=more
            )
            answer = await connection.call(
                PLUGIN_SERVICE, "Synchronize", request, pb.SynchronizeResponse, timeout=self._patience
            )
            if more and (answer.update or not answer.more):
                raise CallError(UNKNOWN, "plugin does not handle split sync requests")
            self.updates += answer.update

    async def _update(self, request: Any, _: float | None) -> Message:
        self.log.append(f"update {' '.join(update.container_id for update in request.update)}")
        known = {container.id for container in self.containers}
        async with self._turn:
            self.updates += request.update
            return pb.UpdateContainersResponse(
                failed=[update for update in request.update if update.container_id not in known]
            )
