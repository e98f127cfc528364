"""The status of a pod from what its containers did, and the patch that writes it; pure.

The rules and messages are those of ``pkg/kubelet/kubelet_pods.go`` and ``pkg/kubelet/status/generate.go`` of Kubernetes
1.37. A running container without probes is started and ready.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from dra_kit.kubernetes.resource.objects import (
    containers,
    ephemeral_containers,
    format_time,
    init_containers,
    is_deleted,
    is_sidecar,
    phase,
    should_restart,
)
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.runtime import ContainerExit, ContainerStatus

Waiting: TypeAlias = tuple[str, str]
"""Reason and message of a container that waits, such as ``("CrashLoopBackOff", "back-off 10s …")``."""
_NEVER = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Sandbox: TypeAlias = Literal["none", "ready", "stopped"]
"""What containers start in: a pod's sandbox."""


class ContainerHealth(Struct, frozen=True):
    """What the probes of a running container say.

    Attributes:
        started: it has started.
        ready: it can serve.
        failed: the probe because of which it has to be restarted; empty for none.
        grace: seconds that it then has to terminate; None for those of the pod.
    """

    started: bool = True
    ready: bool = True
    failed: Literal["", "startup", "liveness"] = ""
    grace: int | None = None


class ObservedPod(Struct, frozen=True):
    """What the kubelet knows of a pod.

    Attributes:
        containers: all statuses of the runtime, oldest first.
        waiting: why containers that should run do not run.
        sandbox: whether containers can start: only after the claims are prepared, and before the pod terminates.
        devices: ``allocatedResourcesStatus`` by container.
        terminated: all containers have exited and the claims are released, so the phase may be final.
        health: of the running containers that have probes, by name.
        failure: the reason and message if the kubelet terminates the pod; else None.
    """

    containers: Sequence[ContainerStatus] = ()
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    sandbox: Sandbox = "none"
    devices: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    terminated: bool = False
    health: Mapping[str, ContainerHealth] = field(default_factory=dict)
    failure: tuple[str, str] | None = None


def pod_status(pod: ObjectView, seen: ObservedPod, *, now: dt.datetime, address: str) -> dict[str, Any]:
    """Return the part of a pod's ``status`` that the kubelet writes; unchanged parts retain their times."""
    inits = [_container_status(pod, item, seen) for item in init_containers(pod)]
    regulars = [_container_status(pod, item, seen) for item in containers(pod)]
    found = "Failed" if seen.failure else _phase(pod, inits, regulars)
    if found in {"Succeeded", "Failed"} and not seen.terminated:
        # a final phase promises that nothing of the pod is left on the node
        found = phase(pod)
    before = pod.get("status") or {}
    status: dict[str, Any] = {
        "phase": found,
        "startTime": before.get("startTime") or format_time(now),
        "hostIP": address,
        "hostIPs": [{"ip": address}],
        "conditions": pod_conditions(pod, inits, regulars, found, sandbox=seen.sandbox, now=format_time(now)),
        "containerStatuses": regulars,
    }
    if seen.failure and found == "Failed":
        status["reason"], status["message"] = seen.failure
    if seen.sandbox == "ready":
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    if inits:
        status["initContainerStatuses"] = inits
    if added := ephemeral_containers(pod):
        statuses = [_container_status(pod, item, seen) for item in added]
        status["ephemeralContainerStatuses"] = [
            {name: value for name, value in item.items() if name != "started"} | {"ready": False} for item in statuses
        ]
    generation = pod["metadata"].get("generation")
    if generation is not None:
        status["observedGeneration"] = generation
        for condition in status["conditions"]:
            condition["observedGeneration"] = generation
    return status


def _container_status(pod: ObjectView, container: ObjectView, seen: ObservedPod) -> dict[str, Any]:
    name = container["name"]
    known = [item for item in seen.containers if item.name == name]
    waiting = seen.waiting.get(name)
    status: dict[str, Any] = {"name": name}
    ended = next((item for item in reversed(known) if item.exit is not None), None)
    last_exit = known[-1].exit if known else None
    waits = last_exit is not None and waiting is not None and should_restart(pod, container, last_exit.code)
    if known and not waits:
        status["state"] = _state(known[-1])
        ended = next((item for item in reversed(known[:-1]) if item.exit is not None), None)
    else:
        default = "PodInitializing" if init_containers(pod) else "ContainerCreating"
        reason, message = waiting or (default, "")
        status["state"] = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    running = "running" in status["state"]
    succeeded = status["state"].get("terminated", {}).get("exitCode") == 0
    health = seen.health.get(name, ContainerHealth())
    one_off = not is_sidecar(container) and any(item["name"] == name for item in init_containers(pod))
    return {
        **status,
        "lastState": _state(ended) if ended else {},
        "ready": succeeded if one_off else running and health.ready,
        "restartCount": known[-1].attempt if known else 0,
        "image": container.get("image", ""),
        "imageID": "",
        **({"containerID": known[-1].id} if known else {}),
        "started": running and health.started,
        **({"resources": container["resources"]} if known and container.get("resources") else {}),
        **({"allocatedResourcesStatus": seen.devices[name]} if known and seen.devices.get(name) else {}),
    }


def _state(status: ContainerStatus) -> dict[str, Any]:
    if status.exit is None:
        return {"running": {"startedAt": format_time(status.started)}}
    ended: ContainerExit = status.exit
    # containerd knows no start of a container that could not start
    started = _NEVER if ended.reason == "StartError" else status.started
    return {
        "terminated": {
            "exitCode": ended.code,
            "reason": ended.reason,
            **({"message": ended.message} if ended.message else {}),
            "startedAt": format_time(started),
            "finishedAt": format_time(ended.at),
            "containerID": status.id,
        }
    }


def _phase(pod: ObjectView, inits: Sequence[Mapping[str, Any]], regulars: Sequence[Mapping[str, Any]]) -> str:
    begun = any("waiting" not in status["state"] or status["lastState"] for status in regulars)
    for container, status in zip(init_containers(pod), inits, strict=True):
        terminated = status["state"].get("terminated")
        if begun or (is_sidecar(container) and status["started"]):
            continue
        if terminated is None or is_sidecar(container):
            return "Pending"
        if terminated["exitCode"] != 0:
            return (
                "Pending"
                if not is_deleted(pod) and should_restart(pod, container, terminated["exitCode"])
                else "Failed"
            )
    waiting = [status for status in regulars if "waiting" in status["state"] and not status["lastState"]]
    running = [status for status in regulars if "running" in status["state"]]
    if waiting or not regulars:
        return "Pending"
    if running:
        return "Running"
    codes = [_exit_code(status) for status in regulars]
    policies = zip(containers(pod), codes, strict=True)
    if not is_deleted(pod) and any(should_restart(pod, container, code) for container, code in policies):
        return "Running"
    return "Failed" if any(codes) else "Succeeded"


def _exit_code(status: Mapping[str, Any]) -> int:
    state = status["state"].get("terminated") or status["lastState"]["terminated"]
    return int(state["exitCode"])


def pod_conditions(
    pod: ObjectView,
    inits: Sequence[Mapping[str, Any]],
    regulars: Sequence[Mapping[str, Any]],
    phase: str,
    *,
    sandbox: Sandbox,
    now: str,
) -> list[dict[str, Any]]:
    """Return the conditions of a pod; unchanged conditions keep the time of their last transition."""
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


# a condition loses these when it becomes true
_REMOVABLE = ("reason", "message")


def status_patch(pod: ObjectView, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``status`` of the patch.

    Conditions are merged by type: those of others stay, and PodScheduled is the scheduler's where it has set it.
    What a merged condition has no longer is named with a null.
    """
    known = {item["type"]: item for item in (pod.get("status") or {}).get("conditions") or ()}
    merged = []
    for condition in wanted["conditions"]:
        before = known.get(condition["type"], {})
        if condition["type"] == "PodScheduled" and before:
            continue
        removed = {name: None for name in _REMOVABLE if name in before and name not in condition}
        merged.append({**condition, **removed})
    return {**wanted, "conditions": merged}
