"""A made-up cluster whose events go into the history of a page."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping
from typing import Any

from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.objects import ClaimReference, PodReference
from dra_kit.sandbox.page.history import PageHistory
from dra_kit.sandbox.records import (
    PREPARE,
    CallEnded,
    CallStarted,
    ClusterStarted,
    ContainerOutput,
    ContainerReference,
    ContainerStarted,
    ObjectChanged,
    PluginConnected,
    PodScheduled,
    PodUnschedulable,
    Record,
)
from dra_kit.sandbox.timeline.recording import Timeline

DRIVER = "gpu.example.com"
BEGIN = dt.datetime(2026, 11, 29, 14, 0, tzinfo=dt.UTC)
CLASS = {
    "metadata": {"name": "gpu", "uid": "class-gpu"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


class PageWorld:
    """Makes events; each is a second after the one before.

    Attributes:
        history: what a page shows of them.
        records: all of them.
    """

    def __init__(self, history: PageHistory | None = None) -> None:
        self.history = history or PageHistory(UNMODIFIED)
        self.records: list[Record] = []
        self.time = 0.0
        self._versions = itertools.count(1)
        self._objects: dict[str, dict[str, Any]] = {}
        self._timeline = Timeline(
            wall=lambda: BEGIN + dt.timedelta(seconds=self.time), clock=lambda: self.time, begin=0
        )
        self._timeline.subscribe(self.history.read)
        self._timeline.subscribe(self.records.append)

    def add(self, record: Record, after: float = 1.0) -> None:
        """Add a record so many seconds after the one before."""
        self.time += after
        self._timeline.append(record)

    def start(self, *drivers: str) -> None:
        self.add(ClusterStarted(version="v1.37.1", kubeconfig="/tmp/kubeconfig", drivers=drivers))
        self.change("deviceclasses.resource.k8s.io", CLASS)

    def change(self, resource: str, obj: dict[str, Any], kind: str = "", after: float = 1.0) -> None:
        uid = obj["metadata"]["uid"]
        known = uid in self._objects
        self._objects[uid] = obj
        metadata = {
            "managedFields": [{"manager": "tests"}],
            **obj["metadata"],
            "resourceVersion": str(next(self._versions)),
        }
        change: Any = kind or ("MODIFIED" if known else "ADDED")
        self.add(ObjectChanged(change=change, resource=resource, object={**obj, "metadata": metadata}), after)

    def node(self, name: str, after: float = 1.0) -> None:
        status = {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}}
        metadata = {"name": name, "uid": f"node-{name}", "labels": {"kubernetes.io/hostname": name}}
        self.change("nodes", {"metadata": metadata, "spec": {}, "status": status}, after=after)

    def connect(self, node: str, after: float = 1.0) -> None:
        self.add(PluginConnected(node=node, driver=DRIVER), after)

    def devices(self, node: str, count: int = 8, after: float = 1.0, **more: Mapping[str, Any]) -> None:
        """Publish devices ``gpu-0`` …; ``more`` has fields of some by name, with ``_`` for ``-``."""
        items = [
            {
                "name": f"gpu-{number}",
                "attributes": {"model": {"string": "A100"}, "index": {"int": number}},
                "capacity": {"memory": {"value": "80Gi"}},
                **more.get(f"gpu_{number}", {}),
            }
            for number in range(count)
        ]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": items}
        metadata = {"name": f"{node}-slice", "uid": f"slice-{node}"}
        self.change("resourceslices.resource.k8s.io", {"metadata": metadata, "spec": spec}, after=after)

    def claim(self, name: str, *devices: str, count: int = 1, after: float = 1.0, **more: Any) -> None:
        """Create or change a claim; ``devices`` are what it has, as ``node/device``."""
        exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
        results = [
            {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device, **more}
            for pool, device in (text.split("/") for text in devices)
        ]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"name": name}]} if results else {}
        metadata = {"name": name, "namespace": "default", "uid": f"claim-{name}"}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        self.change(
            "resourceclaims.resource.k8s.io", {"metadata": metadata, "spec": spec, "status": status}, after=after
        )

    def pod(self, name: str, node: str = "", phase: str = "Pending", after: float = 1.0) -> None:
        """Create or change a pod, which uses the claim of its name."""
        spec: dict[str, Any] = {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}], "containers": []}
        if node:
            spec["nodeName"] = node
        metadata = {"name": name, "namespace": "default", "uid": f"pod-{name}"}
        self.change("pods", {"metadata": metadata, "spec": spec, "status": {"phase": phase}}, after=after)

    def delete(self, resource: str, uid: str) -> None:
        self.change(resource, self._objects[uid], "DELETED")

    def unschedulable(self, name: str, message: str = "0/2 nodes are available") -> None:
        self.add(PodUnschedulable(pod=_pod(name), reason="Unschedulable", message=message))

    def run(self, name: str, *devices: str, output: str = "", seconds: float = 0.0123) -> None:
        """Have a pod run with devices of one node, ``node/device``."""
        node = devices[0].partition("/")[0]
        claims = (ClaimReference("default", name, f"claim-{name}"),)
        self.claim(name)
        self.pod(name)
        self.add(PodScheduled(pod=_pod(name), node=node))
        self.claim(name, *devices)
        self.pod(name, node)
        self.add(CallStarted(node=node, driver=DRIVER, method=PREPARE, claims=claims, pod_uid=f"pod-{name}"))
        self.add(CallEnded(node=node, driver=DRIVER, method=PREPARE, claims=claims, duration=seconds, pod=_pod(name)))
        container = ContainerReference(_pod(name), "main", f"local-process://{name}")
        self.add(ContainerStarted(node=node, container=container, environment={"GPU_0_UUID": f"GPU-{name}"}))
        self.pod(name, node, "Running")
        if output:
            self.write(name, output)

    def fail(self, name: str, node: str, error: str) -> None:
        """Have the driver reject the claim of a pod."""
        claims = (ClaimReference("default", name, f"claim-{name}"),)
        self.add(
            CallEnded(
                node=node, driver=DRIVER, method=PREPARE, claims=claims, duration=0.5, pod=_pod(name), error=error
            )
        )

    def write(self, name: str, text: str, offset: int = 0) -> None:
        """Have the container of a pod write."""
        container = ContainerReference(_pod(name), "main", f"local-process://{name}")
        self.add(ContainerOutput(container=container, text=text, offset=offset, size=len(text.encode())))


def _pod(name: str) -> PodReference:
    return PodReference("default", name, f"pod-{name}")


def gpu_cluster() -> PageWorld:
    """Two nodes with 8 devices each, two pods that run, one that waits, and a tainted device."""
    world = PageWorld()
    world.start(DRIVER)
    for node in ("node-1", "node-2"):
        world.node(node)
        world.connect(node)
    world.devices("node-1")
    world.devices("node-2", gpu_5={"taints": [{"key": "example.com/xid-79", "effect": "NoSchedule"}]})
    world.run("train-1", "node-1/gpu-0", output="epoch 1\nepoch 2\n")
    world.run("train-2", "node-1/gpu-1")
    world.claim("train-9", count=9)
    world.pod("train-9")
    world.unschedulable("train-9")
    return world


def large_cluster(nodes: int = 500, pods: int = 1_000) -> PageWorld:
    """Many nodes of 8 devices, with pods that run on the first of them."""
    world = PageWorld()
    world.start(DRIVER)
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    for name in names:
        world.node(name, after=0.001)
        world.connect(name, after=0.001)
        world.devices(name, after=0.001)
    for number in range(pods):
        node, device = names[(number // 4) % nodes], f"gpu-{number % 4 + 4 * (number // (4 * nodes))}"
        world.claim(f"pod-{number}", f"{node}/{device}", after=0.001)
        world.pod(f"pod-{number}", node, "Running", after=0.001)
    return world
