"""The part of the node lifecycle controller that lets pods onto a node once its kubelet says that it is ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import NODES
from dra_kit.errors import NotFound
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster.controllers.workqueue import WorkQueue
from dra_kit.sandbox.cluster.informers import Informers

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


class NodeLifecycle:
    """Keeps the taint ``node.kubernetes.io/not-ready`` true.

    Args:
        client: to write with.
        informers: follow nodes.
    """

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
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
        taints = taints_by_condition(node) if node else None
        if node is None or taints is None:
            return
        version = node["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": {"taints": taints or None}}
        try:
            await self._client.patch(NODES, name, body)
        except NotFound:
            pass
