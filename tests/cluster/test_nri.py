"""A plugin of NRI with containerd and the kubelet: containers on one CPU, and pods that it rejects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from typing_extensions import override

from dra_kit.kubelet.nri import NriClient, Plugin
from dra_kit.kubelet.nri import messages as pb
from tests.cluster.deployed import wait_for
from tests.cluster.plane import Plane

NAMESPACE = "nri"
POD = f"""
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
---
apiVersion: v1
kind: Pod
metadata:
  name: pinned
  namespace: {NAMESPACE}
spec:
  restartPolicy: Never
  containers:
    - name: app
      image: busybox:stable
      imagePullPolicy: IfNotPresent
      command: [grep, Cpus_allowed_list, /proc/self/status]
"""


class Pinner(Plugin):
    """Gives the containers of the namespace CPU 0; other pods of the node are left alone."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    @override
    async def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.ContainerAdjustment | None:
        if pod.namespace != NAMESPACE:
            return None
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        cpus = pb.LinuxResources(cpu=pb.LinuxCPU(cpus="0"))
        return pb.ContainerAdjustment(linux=pb.LinuxContainerAdjustment(resources=cpus))


class Started:
    """A plugin that is connected, and its pod."""

    def __init__(self, plane: Plane, client: NriClient, plugin: Pinner) -> None:
        self.client = client
        self.plugin = plugin
        self._plane = plane

    async def create(self) -> None:
        await asyncio.to_thread(self._plane.kubectl, "apply", "-f", "-", stdin=POD)

    async def succeeds_on_one_cpu(self) -> None:
        def phase() -> object:
            return self._plane.get("pod", "pinned", "-n", NAMESPACE)["status"]["phase"]

        await asyncio.to_thread(wait_for, phase, "Succeeded")
        logs = await asyncio.to_thread(self._plane.kubectl, "logs", "pinned", "-n", NAMESPACE)
        assert logs.stdout.split() == ["Cpus_allowed_list:", "0"]

    async def has_event(self, text: str) -> None:
        def found() -> bool:
            return text in self._plane.kubectl("describe", "pod", "pinned", "-n", NAMESPACE).stdout

        await asyncio.to_thread(wait_for, found, True)


@pytest.fixture
async def started(node_plane: Plane) -> AsyncIterator[Started]:
    plugin = Pinner()
    connected = asyncio.Event()
    client = NriClient(
        plugin, name="pinner.example", on_state=lambda state: connected.set() if state.connected else None
    )
    running = asyncio.create_task(client.run())
    try:
        await asyncio.wait_for(connected.wait(), 60)
        yield Started(node_plane, client, plugin)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await asyncio.to_thread(
            node_plane.kubectl, "delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=100s"
        )


async def test_container_runs_on_the_cpu_of_the_plugin(started: Started) -> None:
    await started.create()
    await started.succeeds_on_one_cpu()


async def test_rejected_container_starts_after_a_retry_of_the_kubelet(started: Started) -> None:
    started.plugin.error = RuntimeError("no CPUs left")
    await started.create()
    await started.has_event("container nri/pinned/app not created: NRI plugin 00-pinner.example: no CPUs left")
    started.plugin.error = None
    await started.succeeds_on_one_cpu()


async def test_container_whose_hook_hangs_does_not_start_without_it(started: Started) -> None:
    started.plugin.gate.clear()
    await started.create()
    await started.has_event("container nri/pinned/app not created: the hook of NRI plugin 00-pinner.example has not")
    assert started.client.connected
    started.plugin.gate.set()
    await started.succeeds_on_one_cpu()
