"""What becomes of applied pods and workloads: their pods, and which workloads are not through yet. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from dra_kit.kubernetes.resource.objects import object_name
from dra_kit.kubernetes.values.json import ObjectView

_COUNTS: Final = {
    "Deployment": ("updatedReplicas", "availableReplicas"), "ReplicaSet": ("replicas", "availableReplicas"),
    "StatefulSet": ("updatedReplicas", "availableReplicas"),
    "DaemonSet": ("updatedNumberScheduled", "numberAvailable"),
}  # fmt: skip
"""For each kind the fields of the status that count its pods of the newest template, and those that are available."""


def pods_of(uids: Collection[str], replica_sets: Iterable[ObjectView], pods: Iterable[ObjectView]) -> list[ObjectView]:
    """Return the pods with these UIDs, or that these objects created.

    Args:
        uids: of pods and workloads.
        replica_sets: all of them, for the pods of Deployments.
        pods: all of them.
    """
    makers = {*uids, *(item["metadata"]["uid"] for item in replica_sets if _owner(item) in uids)}
    return [pod for pod in pods if pod["metadata"]["uid"] in uids or _owner(pod) in makers]


def _owner(obj: ObjectView) -> str | None:
    """Return the UID of the controlling owner."""
    owners = obj["metadata"].get("ownerReferences", [])
    return next((str(item["uid"]) for item in owners if item.get("controller")), None)


def shortfall(workload: ObjectView) -> str:
    """Return what a workload lacks, as a text; empty when all of its pods are of the newest template and available."""
    kind, status = workload["kind"], workload.get("status") or {}
    total = status.get("desiredNumberScheduled", 0) if kind == "DaemonSet" else workload["spec"].get("replicas", 1)
    updated, available = (_number(status, field) for field in _COUNTS[kind])
    seen = status.get("observedGeneration", 0) >= workload["metadata"]["generation"]
    if seen and updated == available == total:
        return ""
    return f"{kind} {object_name(workload)} has {min(updated, available)} of {total} pods that are ready"


def _number(status: ObjectView, field: str) -> int:
    number: int = status.get(field, 0)
    return number
