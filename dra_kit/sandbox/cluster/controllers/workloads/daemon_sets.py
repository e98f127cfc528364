"""DaemonSets: one pod on every node that is for it. Pure.

Source: Kubernetes 1.37 ``pkg/controller/daemon``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dra_kit.kubernetes.scheduler.nodes import is_affine, is_tainted
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster.controllers.workloads.plan import (
    REVISION_LABEL,
    Plan,
    is_active,
    is_ready,
    new_pod,
    ready,
    revision,
    share,
    short_hash,
)

_TOLERATED: Final = (
    ("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"), ("pid-pressure", "NoSchedule"), ("unschedulable", "NoSchedule"),
)  # fmt: skip


def plan(daemon_set: ObjectView, pods: Sequence[ObjectView], nodes: Sequence[ObjectView]) -> Plan:
    """Return what to do about a DaemonSet.

    Args:
        daemon_set: the set.
        pods: its own.
        nodes: all nodes.
    """
    current = revision(daemon_set)
    active = [pod for pod in pods if is_active(pod)]
    by_node = {_node_of(pod): pod for pod in active}
    fitting = [node["metadata"]["name"] for node in nodes if _fits(_pod(daemon_set, node["metadata"]["name"]), node)]
    create = [_pod(daemon_set, name) for name in fitting if name not in by_node]
    delete = [pod for name, pod in by_node.items() if name not in fitting]
    here = [by_node[name] for name in fitting if name in by_node]
    updated = [pod for pod in here if pod["metadata"]["labels"].get(REVISION_LABEL) == current]
    delete += _outdated(daemon_set, [pod for pod in here if pod not in updated], len(fitting) - ready(here))
    status = {
        "observedGeneration": daemon_set["metadata"]["generation"], "currentNumberScheduled": len(here),
        "desiredNumberScheduled": len(fitting), "numberMisscheduled": len(by_node) - len(here),
        "numberReady": ready(here), "numberAvailable": ready(here), "updatedNumberScheduled": len(updated),
        "numberUnavailable": len(fitting) - ready(here),
    }  # fmt: skip
    return Plan(create=create, delete=delete, status=status)


def _outdated(daemon_set: ObjectView, old: list[ObjectView], unavailable: int) -> list[ObjectView]:
    """Return the pods of former templates to delete now: those not ready, and as many others as may be missing."""
    strategy = daemon_set["spec"].get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return []
    limit = share((strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1), len(old), up=True)
    broken = [pod for pod in old if not is_ready(pod)]
    sound = [pod for pod in old if is_ready(pod)]
    return broken + sound[: max(max(limit, 1) - unavailable, 0)]


def _node_of(pod: ObjectView) -> str:
    """Return the node that a pod is on, or was made for."""
    if name := pod["spec"].get("nodeName"):
        return str(name)
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _pod(daemon_set: ObjectView, node: str) -> dict[str, Any]:
    metadata, current = daemon_set["metadata"], revision(daemon_set)
    name = f"{metadata['name']}-{short_hash(metadata['uid'], node, current)}"
    pod = new_pod(daemon_set, name, {REVISION_LABEL: current})
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (node_affinity.get(required) or {}).get("nodeSelectorTerms") or [{}]
    terms = [{**term, "matchFields": [field]} for term in terms]
    spec["affinity"] = {**affinity, "nodeAffinity": {**node_affinity, required: {"nodeSelectorTerms": terms}}}
    spec["tolerations"] = [
        *(spec.get("tolerations") or []),
        *({"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect} for key, effect in _TOLERATED),
    ]
    return pod


def _fits(pod: ObjectView, node: ObjectView) -> bool:
    return is_affine(pod, node) and not is_tainted(pod, node)
