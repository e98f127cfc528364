"""A plugin that has every hook, and a client that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from typing_extensions import override

from dra_kit.kubelet.nri import ClientState, NriClient, Plugin, RuntimeParameters
from dra_kit.kubelet.nri import messages as pb


def cpus(value: str) -> pb.LinuxResources:
    return pb.LinuxResources(cpu=pb.LinuxCPU(cpus=value))


def update(container: str, value: str) -> pb.ContainerUpdate:
    return pb.ContainerUpdate(container_id=container, linux=pb.LinuxContainerUpdate(resources=cpus(value)))


class Recorder(Plugin):
    """Has all hooks; each waits for ``gate`` and raises ``error``."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.inside: Callable[[], Awaitable[object]] | None = None
        self.runtime: RuntimeParameters | None = None
        self.synchronizations: list[tuple[Sequence[pb.PodSandbox], Sequence[pb.Container]]] = []
        self.updates: list[pb.ContainerUpdate] = []
        self.synchronize_error: Exception | None = None
        self.on_configure: Callable[[], None] | None = None
        self.synchronize_gate = asyncio.Event()
        self.synchronize_gate.set()

    async def _hook(self, name: str, id_: str) -> None:
        self.calls.append((name, id_))
        if self.inside is not None:
            await self.inside()
        await self.gate.wait()
        if self.error is not None:
            raise self.error

    @override
    async def configure(self, runtime: RuntimeParameters) -> None:
        self.runtime = runtime
        if self.on_configure is not None:
            self.on_configure()

    @override
    async def synchronize(
        self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]
    ) -> Iterable[pb.ContainerUpdate]:
        self.synchronizations.append((pods, containers))
        await self.synchronize_gate.wait()
        if self.synchronize_error is not None:
            raise self.synchronize_error
        return self.updates

    @override
    async def run_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        await self._hook("RunPodSandbox", pod.id)

    @override
    async def stop_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        await self._hook("StopPodSandbox", pod.id)

    @override
    async def remove_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        await self._hook("RemovePodSandbox", pod.id)

    @override
    async def create_container(
        self, pod: pb.PodSandbox, container: pb.Container
    ) -> pb.CreateContainerResponse | pb.ContainerAdjustment | None:
        await self._hook("CreateContainer", container.id)
        return pb.ContainerAdjustment(linux=pb.LinuxContainerAdjustment(resources=cpus("2-3")))

    @override
    async def stop_container(self, pod: pb.PodSandbox, container: pb.Container) -> Iterable[pb.ContainerUpdate]:
        await self._hook("StopContainer", container.id)
        return [update("c2", "0-3")]

    @override
    async def remove_container(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        await self._hook("RemoveContainer", container.id)


async def eventually(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 (nothing announces it)
        await asyncio.sleep(0)


class Running:
    """A client that runs, and the states that it reported."""

    def __init__(self, plugin: Plugin, socket: Path, name: str = "cpu.example.com") -> None:
        self.states: list[ClientState] = []
        self._changed = asyncio.Event()
        self.client = NriClient(plugin, name=name, socket=socket, on_state=self._note)
        self.task = asyncio.create_task(self.client.run())

    def _note(self, state: ClientState) -> None:
        self.states.append(state)
        self._changed.set()

    async def until(self, reason: str) -> ClientState:
        """Wait for a state whose reason contains a text, from now on."""
        while not self.states or reason not in self.states[-1].reason:
            self._changed.clear()
            await self._changed.wait()
        return self.states[-1]

    async def until_connected(self) -> None:
        while not self.client.connected:
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def running(plugin: Plugin, socket: Path, name: str = "cpu.example.com") -> AsyncIterator[Running]:
    run = Running(plugin, socket, name)
    try:
        yield run
    finally:
        await run.stop()
