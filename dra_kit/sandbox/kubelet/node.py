"""The kubelet of one node: registers the Node, follows its pods, and runs a worker for each."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final, Self

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.events import EventRecorder, micro_time
from dra_kit.client.informer import Informer
from dra_kit.client.resources import LEASES, NODES, PODS
from dra_kit.errors import Conflict, KubeError, KubeletError, NotFound
from dra_kit.kubelet.cdi.resolution import DEFAULT_DIRECTORIES
from dra_kit.kubelet.plugin_client import CALL_TIMEOUT
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.objects import containers, format_time, init_containers
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.images import ImageStore
from dra_kit.sandbox.containers.node_namespace import NodePlaces
from dra_kit.sandbox.containers.process_runtime import ProcessRuntime
from dra_kit.sandbox.kubelet.claim_manager import ClaimManager
from dra_kit.sandbox.kubelet.container_starter import PodWorkerServices
from dra_kit.sandbox.kubelet.environment import NodeFacts, NodeShape, api_server_variables
from dra_kit.sandbox.kubelet.plugin_manager import WIPING_DELAY, PluginManager, SliceWiper
from dra_kit.sandbox.kubelet.pod_worker import PodWorker
from dra_kit.sandbox.kubelet.volumes import NodePaths, PodVolumes
from dra_kit.sandbox.records import PluginRefused, RecordObserver

log: logging.Logger = logging.getLogger(__name__)
RECONCILE_SECONDS: Final = 60.0
"""Seconds between two looks for claims of pods that are gone."""
_FLUSH_SECONDS = 2.0
_LOOK_SECONDS = 5.0


class NodeKubelet:
    """A kubelet; an asynchronous context manager, which registers the node and then runs until it is left.

    Containers continue to run in their runtime when the kubelet stops, as on a real node.

    Args:
        kubelet_dir: the kubelet's root directory, created if missing; plugins register below it. The path of a
            plugin's socket below it is limited to 107 bytes, so keep the path short.
        cdi_dirs: the directories of CDI specs, in increasing priority.
        time_scale: all of the kubelet's waits are divided by this: retries, back-offs, grace periods, the delay before
            slices are wiped. Deadlines of the calls to drivers are not.
        shape: labels and capacity of the Node in addition to those that every kubelet sets.
        address: the address of the node and its pods, which have no separate network.
        wiping_delay: seconds that a driver may be disconnected before its slices are deleted; also scaled.
        release: of the kubelet; its gates are those that the Node declares in ``status.declaredFeatures``.
            ``DRAOptionalNodeOperations`` lets allocations skip calls to a driver; others are only declared.
        images: what stands for images.
    """

    def __init__(
        self,
        client: Client,
        *,
        node_name: str,
        kubelet_dir: Path,
        runtime: ProcessRuntime,
        cdi_dirs: Sequence[Path] = DEFAULT_DIRECTORIES,
        time_scale: float = 1.0,
        shape: NodeShape | None = None,
        address: str = "127.0.0.1",
        call_timeout: float = CALL_TIMEOUT,
        wiping_delay: float = WIPING_DELAY,
        release: Release,
        images: ImageStore | None = None,
        observer: RecordObserver = lambda _: None,
    ) -> None:
        self._client = client
        self._images = images or ImageStore()
        self._kubelet_dir = kubelet_dir
        self._runtime = runtime
        self._time_scale = time_scale
        self._observe = observer
        self._release = release
        shape = shape or NodeShape()
        self._resources = {**host_capacity(), **shape.capacity}
        namespace = runtime.namespace
        places = NodePlaces(kubelet_dir, cdi_dirs[-1])
        services = api_server_variables(client.server)
        self._node = NodeFacts(node_name, address, self._resources, release.version, services)
        paths = NodePaths(kubelet_dir / "host", places.outside)
        self._volumes = PodVolumes(
            client,
            kubelet_dir,
            self._node,
            images=self._images,
            source=str if namespace else paths.source,
            look=namespace.look if namespace else paths.look,
            runs_images=runtime.runs_images,
        )
        self._labels = dict(shape.labels)
        self.cdi_directories: Sequence[Path] = tuple(cdi_dirs)
        """The directories of CDI specs, in increasing priority."""
        self._recorder = EventRecorder(client, controller="kubelet", instance=node_name)
        self._wiper = SliceWiper(
            client, node_name, self._connected, delay=wiping_delay, time_scale=time_scale, observer=observer
        )
        self._plugins = PluginManager(
            kubelet_dir,
            # a driver reports the path that it knows, and the kubelet of this machine, if any, is another one
            endpoint_path=(namespace or places).outside,
            call_timeout=call_timeout,
            time_scale=time_scale,
            connection_changed=self._wiper.changed,
            health_changed=self._health_changed,
            refused=self._plugin_refused,
            release=release,
        )
        self._manager: ClaimManager | None = None
        self._workers: dict[str, PodWorker] = {}
        self._life: asyncio.Task[None] | None = None
        self._ports: dict[str, frozenset[int]] = {}  # of containers, by UID of the pod
        self._known = asyncio.Event()  # all pods of the node have a worker

    @property
    def name(self) -> str:
        """The node's name."""
        return self._node.name

    @property
    def plugins(self) -> PluginManager:
        """The drivers that are registered with this kubelet."""
        return self._plugins

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._recorder.flush(_FLUSH_SECONDS)

    async def start(self) -> None:
        """Start the kubelet; return when its node is registered and the ResourceSlices of the node are wiped.

        Raises:
            KubeError: the API server rejected the Node, or is unavailable.
            KubeletError: the checkpoint is corrupt.
        """
        if self._life is not None:
            return
        ready = asyncio.Event()
        self._life = asyncio.create_task(self._live(ready), name=f"kubelet {self.name}")
        waiting = asyncio.ensure_future(ready.wait())
        try:
            await asyncio.wait([self._life, waiting], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            waiting.cancel()
        if self._life.done():
            self._life.result()

    async def stop(self) -> None:
        """Stop the kubelet immediately, even in the middle of an action; its checkpoint and the containers stay."""
        life, self._life = self._life, None
        if life is not None:
            life.cancel()
            await asyncio.wait([life])
            self._workers.clear()
            self._known.clear()
            if not life.cancelled():
                life.result()

    async def restart(self) -> None:
        """Restart the kubelet at once: its memory is lost."""
        await self.stop()
        await self.start()

    async def look_again(self) -> None:
        """Try at once what is to be tried again later: claims whose driver was away, for example.

        Returns when all of it was tried, or after some seconds.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._known.wait()
                workers = list(self._workers.values())
                for worker in workers:
                    worker.wake()
                for worker in workers:
                    await worker.idle()

    async def wait(self) -> None:
        """Wait until the kubelet has stopped; raise the error that stopped it, if any."""
        life = self._life
        if life is not None:
            await asyncio.wait([life])
            if not life.cancelled():
                life.result()

    async def _live(self, ready: asyncio.Event) -> None:
        for name in ("plugins", "plugins_registry"):
            (self._kubelet_dir / name).mkdir(parents=True, exist_ok=True)
        self._manager = manager = ClaimManager(
            self._client,
            self.name,
            self._plugins,
            self._kubelet_dir,
            self._observe,
            optional_operations="DRAOptionalNodeOperations" in self._release.declared_by_nodes,
        )
        services = PodWorkerServices(
            client=self._client,
            node=self._node,
            version=self._release.version,
            manager=manager,
            cdi_directories=self.cdi_directories,
            runtime=self._runtime,
            volumes=self._volumes,
            images=self._images,
            recorder=self._recorder,
            observer=self._observe,
            time_scale=self._time_scale,
        )
        node = await register_node(self._client, self._registration())
        # a kubelet cannot distinguish its own restart from a reboot: drivers have to publish again
        await self._wiper.wipe_all()
        unsubscribe = self._runtime.subscribe(self._wake, self._report_containers)
        try:
            async with asyncio.TaskGroup() as group, self._plugins:
                group.create_task(self._recorder.run(asyncio.Event()), name=f"events of {self.name}")
                group.create_task(self._wiper.run(), name=f"slices of {self.name}")
                group.create_task(self._heartbeat(node), name=f"lease of {self.name}")
                pods = Informer(self._client, PODS, field_selector=f"spec.nodeName={self.name}")
                group.create_task(self._follow(pods, services, group), name=f"pods of {self.name}")
                group.create_task(self._see_to_left(pods, services, group), name=f"left pods of {self.name}")
                ready.set()
                await asyncio.get_running_loop().create_future()
        except* Exception as failures:
            raise failures.exceptions[0] from failures
        finally:
            unsubscribe()

    def _registration(self) -> dict[str, Any]:
        return node_object(
            self.name,
            address=self._node.address,
            labels=self._labels,
            capacity=self._resources,
            runtime_version=self._runtime.version,
            release=self._release,
        )

    async def _follow(self, pods: Informer, services: PodWorkerServices, group: asyncio.TaskGroup) -> None:
        """Give every pod of the node a worker, and pass changes of the pod to it."""
        async with aclosing(pods.changes()) as changes:
            async for change in changes:
                self._expose(change.object, gone=change.type == "DELETED")
                worker = self._workers.get(change.object["metadata"]["uid"])
                if worker is None and change.type != "DELETED":
                    self._employ(PodWorker(services, change.object), change.object, group)
                elif worker is not None and change.type == "DELETED":
                    worker.vanish()
                elif worker is not None:
                    worker.update(change.object)

    def _expose(self, pod: ObjectView, *, gone: bool) -> None:
        """Let clients on this machine reach the ports of a pod whose node has another network."""
        namespace = self._runtime.namespace
        if namespace is None:
            return
        if gone:
            self._ports.pop(pod["metadata"]["uid"], None)
        else:
            self._ports[pod["metadata"]["uid"]] = frozenset(
                port["containerPort"]
                for container in (*init_containers(pod), *containers(pod))
                for port in container.get("ports") or ()
                if port.get("protocol", "TCP") == "TCP"
            )
        namespace.expose(frozenset[int]().union(*self._ports.values()))

    def _employ(self, worker: PodWorker, pod: ObjectView, group: asyncio.TaskGroup) -> None:
        uid = pod["metadata"]["uid"]
        self._workers[uid] = worker

        async def work() -> None:
            await worker.run()
            del self._workers[uid]

        group.create_task(work(), name=f"pod {pod['metadata']['name']} on {self.name}")

    async def _see_to_left(self, pods: Informer, services: PodWorkerServices, group: asyncio.TaskGroup) -> None:
        """Clean up after deleted pods once all pods are known; before that, every pod looks deleted."""
        await pods.synced.wait()
        for left in self._runtime.pods():
            if left.uid not in self._workers:  # its object was deleted while the kubelet was down
                pod = {"metadata": {"namespace": left.namespace, "name": left.name, "uid": left.uid}, "spec": {}}
                worker = PodWorker(services, pod)
                worker.vanish()
                self._employ(worker, pod, group)
        self._known.set()
        await self._reconcile(services.manager)

    async def _reconcile(self, manager: ClaimManager) -> None:
        """Release claims of pods that are gone without a worker having seen it."""
        while True:
            await asyncio.sleep(RECONCILE_SECONDS / self._time_scale)
            for uid in manager.pods - self._workers.keys():
                try:
                    await manager.release(uid)
                except KubeletError as error:
                    log.warning("claims of a pod that is gone stay prepared: unprepare dynamic resources: %s", error)

    async def _heartbeat(self, node: Mapping[str, Any]) -> None:
        while True:
            try:
                await renew_lease(self._client, node)
            except KubeError as error:
                log.warning("the Lease of node %s cannot be renewed now: %s", self.name, error)
            await asyncio.sleep(RENEW_SECONDS)

    def _wake(self, pod_uid: str) -> None:
        if worker := self._workers.get(pod_uid):
            worker.wake()

    def _report_containers(self, pod_uid: str) -> None:
        if worker := self._workers.get(pod_uid):
            worker.report_containers()

    def _health_changed(self, driver: str) -> None:
        if self._manager is not None:
            for uid in self._manager.pods_with(driver):
                self._wake(uid)

    def _plugin_refused(self, socket: Path, error: str) -> None:
        self._observe(PluginRefused(node=self.name, socket=str(socket), error=error))

    def _connected(self, driver: str) -> bool:
        return self._plugins.connected(driver)


LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 120
"""How long a Lease is good for, as a kubelet's ``nodeLeaseDurationSeconds`` has it, whose default is 40."""
RENEW_SECONDS = LEASE_SECONDS / 4
"""Between two renewals, as kubelets do it; within the 40 seconds after which a node that is not heard of is lost."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


def node_object(
    name: str,
    *,
    address: str,
    labels: Mapping[str, str],
    capacity: Mapping[str, str],
    runtime_version: str,
    release: Release,
) -> dict[str, Any]:
    """Return the Node as a kubelet registers it."""
    now = format_time()
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    common = {"kubernetes.io/hostname": name}
    for prefix in ("kubernetes.io", "beta.kubernetes.io"):
        common |= {f"{prefix}/os": "linux", f"{prefix}/arch": architecture}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**common, **labels}},
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
                for kind, status, reason, message in _CONDITIONS
            ],
            **({"declaredFeatures": list(release.declared_by_nodes)} if release.declared_by_nodes else {}),
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "nodeInfo": {
                "machineID": "",
                "systemUUID": "",
                "bootID": boot_id(),
                "kernelVersion": platform.release(),
                "osImage": platform.system(),
                "containerRuntimeVersion": runtime_version,
                "kubeletVersion": release.version.published,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": architecture,
            },
        },
    }


def host_capacity() -> dict[str, str]:
    """Return processors and memory of this machine, and the kubelet's usual number of pods."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": str(os.cpu_count() or 1), "memory": f"{memory // 1024}Ki", "pods": "110"}


def boot_id() -> str:
    """Return an ID of this boot of the machine; empty if the kernel does not provide one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


async def register_node(client: Client, node: Mapping[str, Any]) -> dict[str, Any]:
    """Create the Node, or bring one that exists up to date; return it as stored.

    Raises:
        KubeError: the API server refused it.
    """
    try:
        return await client.create(NODES, node)
    except Conflict:
        name = node["metadata"]["name"]
        await client.patch(NODES, name, {"metadata": {"labels": node["metadata"]["labels"]}})
        status = {"status": node["status"]}
        return await client.patch(NODES, name, status, content_type=STRATEGIC_MERGE_PATCH, subresource="status")


async def renew_lease(client: Client, node: Mapping[str, Any]) -> None:
    """Create or renew the node's Lease; do nothing while its namespace does not exist.

    Raises:
        KubeError: the API server refused it.
    """
    name = node["metadata"]["name"]
    renewed = micro_time(dt.datetime.now(dt.UTC))
    try:
        await client.patch(LEASES, name, {"spec": {"renewTime": renewed}}, LEASE_NAMESPACE)
    except NotFound:
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
        lease = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed},
        }
        with suppress(NotFound):
            await client.create(LEASES, lease)
