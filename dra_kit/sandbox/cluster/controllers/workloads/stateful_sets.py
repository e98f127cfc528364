"""StatefulSets: pods with numbers, one after another; without volumes of their own. Pure.

Source: Kubernetes 1.37 ``pkg/controller/statefulset``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster.controllers.workloads.plan import (
    REVISION_LABEL,
    Plan,
    is_active,
    is_ready,
    new_pod,
    ready,
    revision,
    wanted,
)


def plan(stateful_set: ObjectView, pods: Sequence[ObjectView]) -> Plan:
    """Return what to do about a StatefulSet.

    Args:
        stateful_set: the set.
        pods: its own.
    """
    name, spec = stateful_set["metadata"]["name"], stateful_set["spec"]
    update = f"{name}-{revision(stateful_set)}"
    by_name = {pod["metadata"]["name"]: pod for pod in pods}
    names = [f"{name}-{number}" for number in range(wanted(stateful_set))]
    parallel = spec.get("podManagementPolicy") == "Parallel"
    missing = [number for number, pod in enumerate(names) if pod not in by_name]
    broken = [pod for pod in names if pod in by_name and not (is_active(by_name[pod]) and is_ready(by_name[pod]))]
    create: list[dict[str, Any]] = []
    delete: list[ObjectView] = []
    if missing:
        # in order: not before all with lower numbers are ready
        held = not parallel and any(names.index(pod) < missing[0] for pod in broken)
        create = [] if held else [_pod(stateful_set, number, update) for number in missing[: None if parallel else 1]]
    excess = sorted((by_name[pod] for pod in set(by_name) - set(names)), key=_number, reverse=True)
    if excess and (parallel or not missing):
        delete = [pod for pod in excess[: None if parallel else 1] if is_active(pod)]
    elif not missing and not broken:
        delete = _outdated(stateful_set, [by_name[pod] for pod in names], update)
    return Plan(create=create, delete=delete, status=_status(stateful_set, list(by_name.values()), update))


def _outdated(stateful_set: ObjectView, pods: Sequence[ObjectView], update: str) -> list[ObjectView]:
    """Return the pod with the highest number that has a former template, where all are ready."""
    strategy = stateful_set["spec"].get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return []
    partition = (strategy.get("rollingUpdate") or {}).get("partition", 0)
    return [pod for pod in pods[partition:] if _revision_of(pod) != update][-1:]


def _revision_of(pod: ObjectView) -> str:
    return str((pod["metadata"].get("labels") or {}).get(REVISION_LABEL, ""))


def _number(pod: ObjectView) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def _pod(stateful_set: ObjectView, number: int, update: str) -> dict[str, Any]:
    name = f"{stateful_set['metadata']['name']}-{number}"
    labels = {
        REVISION_LABEL: update, "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(number),
    }  # fmt: skip
    pod = new_pod(stateful_set, name, labels)
    pod["spec"] |= {"hostname": name, "subdomain": stateful_set["spec"].get("serviceName", "")}
    return pod


def _status(stateful_set: ObjectView, pods: Sequence[ObjectView], update: str) -> dict[str, Any]:
    active = [pod for pod in pods if is_active(pod)]
    updated = [pod for pod in active if _revision_of(pod) == update]
    current = (stateful_set.get("status") or {}).get("currentRevision") or update
    if len(updated) == ready(updated) == wanted(stateful_set) == len(active):
        current = update
    return {
        "observedGeneration": stateful_set["metadata"]["generation"], "replicas": len(active),
        "readyReplicas": ready(active), "availableReplicas": ready(active), "updatedReplicas": len(updated),
        "currentReplicas": sum(_revision_of(pod) == current for pod in active),
        "currentRevision": current, "updateRevision": update, "collisionCount": 0,
    }  # fmt: skip
