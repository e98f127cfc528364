"""Nodes that are not ready get taints; pods of deleted nodes are deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import NODES, PODS
from dra_kit.errors import NotFound
from dra_kit.kubernetes.resource.objects import ObjectKey, is_terminal, object_key
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.informers import SharedInformers, WorkQueue

QUARANTINE_SECONDS: Final = 40.0
"""A node may come back within this time (kube-controller-manager 1.37, podgc: quarantineTime)."""


class PodGarbageCollector:
    """Deletes, at once, pods whose node has been missing for a while, and those deleted without ever having one.

    Args:
        absent: names of nodes that count as there although the API server does not have them.
    """

    def __init__(
        self, client: Client, informers: SharedInformers, *, time_scale: float = 1.0, absent: Collection[str] = ()
    ) -> None:
        self._client = client
        self._absent = absent
        self._pods: Mapping[ObjectKey, Any] = informers.objects(PODS)
        self._nodes: Mapping[ObjectKey, Any] = informers.objects(NODES)
        self._quarantine = QUARANTINE_SECONDS / time_scale
        self._missing: dict[str, asyncio.TimerHandle] = {}
        self._queue: WorkQueue[ObjectKey] = WorkQueue("pod garbage", self._collect)
        informers.listen(PODS, self._pod_changed)
        informers.listen(NODES, self._node_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await self._queue.run()
        finally:
            for timer in self._missing.values():
                timer.cancel()

    def _pod_changed(self, change: ObjectChange) -> None:
        node = change.object["spec"].get("nodeName")
        if change.type != "DELETED" and node and ("", node) not in self._nodes and node not in self._absent:
            self._watch(node)

    def _node_changed(self, change: ObjectChange) -> None:
        name = change.object["metadata"]["name"]
        if change.type == "DELETED":
            self._watch(name)
        elif timer := self._missing.pop(name, None):
            timer.cancel()

    def _watch(self, node: str) -> None:
        """Look at the node's pods once it has been missing for long enough."""
        if node not in self._missing:
            self._missing[node] = asyncio.get_running_loop().call_later(self._quarantine, self._expire, node)

    def _expire(self, node: str) -> None:
        self._missing.pop(node, None)
        if ("", node) in self._nodes:
            return
        for key, pod in self._pods.items():
            if pod["spec"].get("nodeName") == node:
                self._queue.add(key)

    async def _collect(self, key: ObjectKey) -> None:
        pod = self._pods.get(key)
        if pod is None or ("", pod["spec"].get("nodeName", "")) in self._nodes:
            return
        namespace, name = object_key(pod)
        uid = pod["metadata"]["uid"]
        with suppress(NotFound):
            if not is_terminal(pod):
                condition = {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists",
                }
                body = {"metadata": {"uid": uid}, "status": {"phase": "Failed", "conditions": [condition]}}
                await self._client.patch(
                    PODS, name, body, namespace, subresource="status", content_type=STRATEGIC_MERGE_PATCH
                )
            await self._client.delete(PODS, name, namespace, uid=uid, grace_period_seconds=0)


NOT_READY: Final = "node.kubernetes.io/not-ready"
"""The taint that the API server gives every new node (admission plugin TaintNodesByCondition)."""


def taints_by_condition(node: ObjectView) -> list[Any] | None:
    """Return the taints that a node should have; None where those it has are right."""
    taints = node.get("spec", {}).get("taints", [])
    conditions = {item["type"]: item["status"] for item in node.get("status", {}).get("conditions", [])}
    ready = conditions.get("Ready") == "True"
    marked = any(item["key"] == NOT_READY and item["effect"] == "NoSchedule" for item in taints)
    if ready == (not marked):
        return None
    others = [item for item in taints if item["key"] != NOT_READY]
    return others if ready else [*others, {"key": NOT_READY, "effect": "NoSchedule"}]


class NodeLifecycleController:
    """Keeps the taint ``node.kubernetes.io/not-ready`` true.

    Args:
        copied: UIDs of nodes of a saved cluster, which keep their taints; None if each node has a kubelet. Without a
            kubelet, a node without conditions counts as ready.
        kubelets: names of the nodes that have one.
    """

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        *,
        copied: Collection[str] | None = None,
        kubelets: Collection[str] = (),
    ) -> None:
        self._client = client
        self._copied = copied
        self._kubelets = kubelets
        self._nodes: Mapping[tuple[str, str], Any] = informers.objects(NODES)
        self._queue: WorkQueue[str] = WorkQueue("node lifecycle", self._sync)
        informers.listen(NODES, self._changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run()

    def _changed(self, change: ObjectChange) -> None:
        if change.type != "DELETED":
            self._queue.add(change.object["metadata"]["name"])

    async def _sync(self, name: str) -> None:
        node = self._nodes.get(("", name))
        if node is None or (self._copied is not None and node["metadata"]["uid"] in self._copied):
            return
        status = node.get("status") or {}
        if self._copied is not None and name not in self._kubelets and not status.get("conditions"):
            status = {**status, "conditions": [{"type": "Ready", "status": "True"}]}
        taints = taints_by_condition({**node, "status": status})
        if taints is None:
            return
        version = node["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": {"taints": taints or None}}
        with suppress(NotFound):
            await self._client.patch(NODES, name, body)
