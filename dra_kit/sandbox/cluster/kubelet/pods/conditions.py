"""The conditions that a kubelet sets on a pod: pure (``pkg/kubelet/status/generate.go``, Kubernetes 1.37)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from dra_kit.kubernetes.resource.objects import init_containers, is_sidecar
from dra_kit.kubernetes.values.json import ObjectView

Sandbox: TypeAlias = Literal["none", "ready", "stopped"]
"""What containers start in: a pod's sandbox."""


def conditions(
    pod: ObjectView,
    inits: Sequence[Mapping[str, Any]],
    regulars: Sequence[Mapping[str, Any]],
    phase: str,
    *,
    sandbox: Sandbox,
    now: str,
) -> list[dict[str, Any]]:
    """Return the conditions of a pod with these container statuses.

    Args:
        pod: the object; conditions that it already has keep the time of their last transition.
        inits: ``initContainerStatuses``.
        regulars: ``containerStatuses``.
        phase: of the pod.
        sandbox: of the pod.
        now: ``metav1.Time`` of those that change.
    """
    known = {item["type"]: item for item in (pod.get("status") or {}).get("conditions") or ()}
    containers_ready = _containers_ready(pod, inits, regulars, phase)
    found = [
        {"type": "PodReadyToStartContainers", **_ready_to_start(sandbox)},
        {"type": "Initialized", **_initialized(pod, inits, regulars, phase)},
        {"type": "Ready", **_ready(pod, containers_ready, known)},
        {"type": "ContainersReady", **containers_ready},
        {"type": "PodScheduled", "status": "True"},
    ]
    for condition in found:
        before = known.get(condition["type"], {})
        same = before.get("status") == condition["status"]
        condition["lastProbeTime"] = None
        condition["lastTransitionTime"] = before.get("lastTransitionTime", now) if same else now
    return found


def _ready_to_start(sandbox: Sandbox) -> dict[str, Any]:
    if sandbox == "ready":
        return {"status": "True"}
    message = "no pod sandbox exists" if sandbox == "none" else "pod sandbox is not ready"
    return {"status": "False", "reason": "PodSandboxNotReady", "message": message}


def _initialized(
    pod: ObjectView, inits: Sequence[Mapping[str, Any]], regulars: Sequence[Mapping[str, Any]], phase: str
) -> dict[str, Any]:
    if phase == "Succeeded":
        return {"status": "True", "reason": "PodCompleted"}
    if any("waiting" not in status["state"] or status["lastState"] for status in regulars):
        return {"status": "True"}
    incomplete = [
        status["name"]
        for container, status in zip(init_containers(pod), inits, strict=True)
        if not (status["started"] if is_sidecar(container) else status["ready"])
    ]
    if incomplete:
        message = f"containers with incomplete status: {_listed(incomplete)}"
        return {"status": "False", "reason": "ContainersNotInitialized", "message": message}
    return {"status": "True"}


def _containers_ready(
    pod: ObjectView, inits: Sequence[Mapping[str, Any]], regulars: Sequence[Mapping[str, Any]], phase: str
) -> dict[str, Any]:
    if phase in {"Succeeded", "Failed"}:
        return {"status": "False", "reason": "PodCompleted" if phase == "Succeeded" else "PodFailed"}
    sidecars = [status for container, status in zip(init_containers(pod), inits, strict=True) if is_sidecar(container)]
    unready = [status["name"] for status in (*sidecars, *regulars) if not status["ready"]]
    if unready:
        message = f"containers with unready status: {_listed(unready)}"
        return {"status": "False", "reason": "ContainersNotReady", "message": message}
    return {"status": "True"}


def _ready(
    pod: ObjectView, containers_ready: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    if containers_ready["status"] != "True":
        return dict(containers_ready)
    problems = []
    for gate in pod["spec"].get("readinessGates") or ():
        name = gate["conditionType"]
        if name not in known:
            problems.append(f'corresponding condition of pod readiness gate "{name}" does not exist.')
        elif known[name]["status"] != "True":
            problems.append(f'the status of pod readiness gate "{name}" is not "True", but {known[name]["status"]}')
    if problems:
        return {"status": "False", "reason": "ReadinessGatesNotReady", "message": ", ".join(problems)}
    return {"status": "True"}


def _listed(names: Sequence[str]) -> str:
    """Return a list as Go prints it."""
    return f"[{' '.join(names)}]"
