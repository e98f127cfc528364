"""The sandbox's control plane and kubelet, and the driver as a process beside them."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from dra_kit.client.api import Client
from dra_kit.client.resources import (
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dra_kit.errors import NotFound
from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.containers.process_runtime import ProcessRuntime
from dra_kit.sandbox.control_plane import ControlPlane
from dra_kit.sandbox.kubelet.node import NodeKubelet
from tests.crash.launch import NodeProcess
from tests.life.cluster import Pace, Process

T = TypeVar("T")
NODE = "node-1"
TIME_SCALE = 60.0
PATIENCE = 60.0
_KINDS = {
    item.kind.lower(): item
    for item in (DEVICE_CLASSES, EVENTS, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES)
}
_WRITES = {
    ("create", "resourceslices"): "slice created",
    ("update", "resourceslices"): "slice updated",
    ("patch", "resourceslices"): "slice updated",
    ("delete", "resourceslices"): "slice deleted",
    ("deletecollection", "resourceslices"): "slice deleted",
    ("patch", "resourceclaims/status"): "status written",
    ("update", "resourceclaims/status"): "status written",
    ("create", "events"): "event written",
    ("patch", "events"): "event written",
}
_WRITING = {"create", "update", "patch", "delete", "deletecollection"}


class SandboxCluster:
    """See :class:`tests.life.cluster.Cluster`; everything but the driver lives in one thread with an event loop.

    Args:
        loop: runs in that thread.
        directory: of everything; a short path, for sockets.
        alpha: all alpha gates of resource.k8s.io are on.
        hasty: timeouts of seconds: the kubelet's calls, the kubelet that
            wipes slices, and the driver itself with the author's code.
    """

    node = NODE

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Path, *, alpha: bool, hasty: bool) -> None:
        self.directory = directory
        self.kubelet_dir = directory / "k"
        self.cdi_dir = directory / "cdi"
        self.pace = Pace(deadline=2.0 if hasty else 60.0, outage=2.0, orphan=60.0)
        self._loop = loop
        self._alpha = alpha
        self._hasty = hasty
        self._boot_id = directory / "boot-id"
        self._stack = AsyncExitStack()
        self._processes: list[NodeProcess] = []

    @classmethod
    @contextmanager
    def open(cls, *, alpha: bool = False, hasty: bool = False) -> Iterator[SandboxCluster]:
        """The cluster, with a node and without a driver, for as long as the context lasts."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="sandbox")
        thread.start()
        try:
            with tempfile.TemporaryDirectory(prefix="l", dir="/tmp") as directory:
                cluster = cls(loop, Path(directory), alpha=alpha, hasty=hasty)
                try:
                    cluster._do(cluster._start())
                    yield cluster
                finally:
                    cluster._do(cluster._stack.aclose())
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _start(self) -> None:
        for directory in (self.kubelet_dir, self.cdi_dir, self.directory / "processes"):
            directory.mkdir()
        self._boot_id.write_text("boot-1")
        self._plane = await self._stack.enter_async_context(
            ControlPlane(release=Release.alpha() if self._alpha else None, time_scale=TIME_SCALE)
        )
        self._client = await self._plane.connect("people")
        self._kubeconfig = self.directory / "kubeconfig"
        self._kubeconfig.write_text(json.dumps(self._plane.server.kubeconfig()))
        self._runtime = await self._stack.enter_async_context(ProcessRuntime())
        self._kubelet = NodeKubelet(
            await self._plane.connect(f"kubelet {NODE}"),
            node_name=NODE,
            kubelet_dir=self.kubelet_dir,
            runtime=self._runtime,
            cdi_dirs=(self.cdi_dir,),
            time_scale=TIME_SCALE,
            release=Release.alpha() if self._alpha else Release.of(),
            call_timeout=4.0 if self._hasty else PATIENCE,
            # scaled; a driver that is started again needs its time, however fast the kubelet's clock goes
            wiping_delay=TIME_SCALE * (1.0 if self._hasty else PATIENCE),
        )
        await self._stack.enter_async_context(self._kubelet)
        self._others = {"people", f"kubelet {NODE}", "dra-kit-sandbox", "kube-controller-manager", "kube-scheduler"}
        self.writes = SandboxWrites(self)

    # -- its parts

    def start_driver(self, arguments: Sequence[str], environment: Mapping[str, str], pod_uid: str) -> Process:
        process = NodeProcess(
            self.directory / "processes" / str(len(self._processes)),
            [
                "node", *arguments, "--node-name", NODE, "--kubeconfig", str(self._kubeconfig),
                "--kubelet-dir", str(self.kubelet_dir), "--cdi-dir", str(self.cdi_dir),
            ],
            environment,
            pod_uid=pod_uid,
            watched=self.directory,
            boot_id=self._boot_id,
            further={"deadline": self.pace.deadline, "drain": 0.5, "orphan_after": 600.0 / TIME_SCALE},
        )  # fmt: skip
        process.start(None)
        self._processes.append(process)
        return process

    def driver_processes(self, pod_uid: str) -> list[int]:
        return [number for number, process in enumerate(self._processes) if process.alive]

    def stop_kubelet(self, number: signal.Signals) -> None:
        self._do(self._kubelet.stop())

    def start_kubelet(self) -> None:
        self._do(self._kubelet.start())

    def stop_api_server(self) -> None:
        self._do(self._plane.server.stop_listening())

    def start_api_server(self) -> None:
        self._do(self._plane.server.listen())

    def delete_node(self) -> None:
        self.delete("node", [NODE])

    def furnish_node(self) -> None:
        """Nothing is missing here."""

    # -- its objects

    def create(self, items: Sequence[Mapping[str, Any]]) -> None:
        async def create() -> None:
            for item in items:
                namespace = item["metadata"].get("namespace")
                await self._client.create(_KINDS[item["kind"].lower()], item, namespace)

        self._do(create())

    def delete(self, kind: str, names: Sequence[str], namespace: str = "", *, force: bool = False) -> None:
        resource = _KINDS[kind]

        async def delete() -> None:
            for name in names:
                await _delete(self._client, resource, name, namespace, force=force and resource is PODS)

        self._do(delete())

    def objects(self, kind: str, namespace: str = "", *, selector: str = "") -> list[dict[str, Any]]:
        found = self._do(self._client.list(_KINDS[kind], namespace or None, field_selector=selector))
        return list(found.items)

    def output(self, namespace: str, pod: str) -> list[str]:
        async def output() -> str:
            report = self._runtime.report(namespace, pod, "eater")
            return report.log.text if report else ""

        return self._do(output()).splitlines()

    def end_container(self, namespace: str, pod: str) -> None:
        async def end() -> None:
            report = self._runtime.report(namespace, pod, "eater")
            assert report is not None
            self._runtime.stop(report.status.id, PATIENCE)

        self._do(end())

    async def written(self) -> Counter[str]:
        """What the driver has written so far."""
        found: Counter[str] = Counter()
        for (agent, verb, resource), number in self._plane.server.requests.items():
            if agent not in self._others and verb in _WRITING:
                found[_WRITES.get((verb, resource), "other")] += number
        return found

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of something that is done in the cluster's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)


class SandboxWrites:
    """See :class:`tests.life.cluster.Writes`."""

    def __init__(self, cluster: SandboxCluster) -> None:
        self._cluster = cluster
        self._before: Counter[str] = Counter()

    def since(self) -> Counter[str]:
        return self._now() - self._before

    def forget(self) -> None:
        self._before = self._now()

    def _now(self) -> Counter[str]:
        return self._cluster._do(self._cluster.written())


async def _delete(client: Client, resource: Resource, name: str, namespace: str, *, force: bool) -> None:
    with suppress(NotFound):
        await client.delete(resource, name, namespace or None, grace_period_seconds=0 if force else None)
