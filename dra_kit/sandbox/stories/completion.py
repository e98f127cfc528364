"""Whether all pods succeeded, or are ready if they are long-running."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from dra_kit.kubernetes.resource.objects import containers, is_terminal, object_name
from dra_kit.kubernetes.values.json import ObjectView


class PodsOutcome(Struct, frozen=True):
    """The state of the pods.

    Attributes:
        settled: all pods have reached their final state.
        failures: one text for each failed pod, with causes on separate lines; empty if all pods succeeded.
    """

    settled: bool
    failures: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """All pods succeeded."""
        return self.settled and not self.failures


def judge_pods(
    pods: Sequence[ObjectView],
    problems: Mapping[str, str],
    causes: Mapping[str, Sequence[str]] | None = None,
    refused: Collection[str] = (),
) -> PodsOutcome:
    """Return the state of the pods.

    A pod must exit with 0. A pod that never exits, because one of its containers has no command or is always
    restarted, must be ready when all other pods have exited. Pods whose UIDs are in ``refused`` are not waited for: the
    driver has permanently rejected their claims. Problems and causes are given by pod UID.
    """
    causes = causes or {}
    waiting = [pod for pod in pods if not (_is_ready(pod) if is_long_running(pod) else is_terminal(pod))]
    failed = [pod for pod in pods if pod.get("status", {}).get("phase") == "Failed"]
    bad = [pod for pod in pods if pod in waiting or pod in failed]
    uids = [pod["metadata"]["uid"] for pod in bad]
    reasons = [list(filter(None, dict.fromkeys((problems.get(uid, ""), *causes.get(uid, ()))))) for uid in uids]
    settled = all(pod["metadata"]["uid"] in refused for pod in waiting)
    return PodsOutcome(settled, tuple(_reason(pod, *why) for pod, why in zip(bad, reasons, strict=True)))


def is_long_running(pod: ObjectView) -> bool:
    """Return whether the pod is not expected to exit."""
    if pod["spec"].get("restartPolicy", "Always") == "Always":
        return True
    return any(not container.get("command") for container in containers(pod))


def _is_ready(pod: ObjectView) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def status_problem(pod: ObjectView) -> str:
    """Return what is wrong with a pod and its containers by its status; empty for nothing."""
    status = pod.get("status", {})
    problems_found = [f"{status['reason']}: {status.get('message', '')}".rstrip(": ")] if status.get("reason") else []
    for field, noun in (("initContainerStatuses", "init container"), ("containerStatuses", "container")):
        for item in status.get(field, []):
            problems_found += [f"{noun} {item['name']} {text}" for text in _container_problem(item)]
    return "; ".join(problems_found)


def _container_problem(status: ObjectView) -> Iterator[str]:
    state = status.get("state", {})
    waiting = state.get("waiting", {})
    # one that has to wait for its restart, or was restarted in vain
    end = state.get("terminated") or (not status.get("ready") and status.get("lastState", {}).get("terminated")) or {}
    if end.get("exitCode"):
        restarts = status.get("restartCount", 0)
        times = f", after {restarts} restart{'' if restarts == 1 else 's'}" if restarts else ""
        yield f"ended with exit code {end['exitCode']}{times}: {end.get('message', '')}".rstrip(": ")
    if waiting.get("message"):
        yield f"waits: {waiting.get('reason', '')}: {waiting['message']}"


def _reason(pod: ObjectView, problem: str = "", *causes: str) -> str:
    phase = pod.get("status", {}).get("phase", "Pending")
    text = f"Pod {object_name(pod)} is {phase}"
    if problems_found := status_problem(pod):
        return f"{text}: {problems_found}"
    if problem:
        return "\n  ".join((f"{text}: {problem}", *causes))
    return f"{text} and {_shortcoming(pod)}" if phase == "Running" else text


def _shortcoming(pod: ObjectView) -> str:
    """Return what a running pod without a problem has not done yet."""
    if "deletionTimestamp" in pod["metadata"]:
        return "is being deleted"
    return "not ready" if is_long_running(pod) else "has not exited"


_COUNTS: Final = {
    "Deployment": ("updatedReplicas", "availableReplicas"), "ReplicaSet": ("replicas", "availableReplicas"),
    "StatefulSet": ("updatedReplicas", "availableReplicas"),
    "DaemonSet": ("updatedNumberScheduled", "numberAvailable"),
}  # fmt: skip
"""For each kind the fields of the status that count its pods of the newest template, and those that are available."""


def pods_of_workloads(
    uids: Collection[str], replica_sets: Iterable[ObjectView], pods: Iterable[ObjectView]
) -> list[ObjectView]:
    """Return the pods with these UIDs, or that these objects created."""
    makers = {*uids, *(item["metadata"]["uid"] for item in replica_sets if _owner(item) in uids)}
    return [pod for pod in pods if pod["metadata"]["uid"] in uids or _owner(pod) in makers]


def _owner(obj: ObjectView) -> str | None:
    """Return the UID of the controlling owner."""
    owners = obj["metadata"].get("ownerReferences", [])
    return next((str(item["uid"]) for item in owners if item.get("controller")), None)


def workload_shortfall(workload: ObjectView) -> str:
    """Return what a workload lacks, as a text; empty when all of its pods are of the newest template and available."""
    kind, status = workload["kind"], workload.get("status") or {}
    total = status.get("desiredNumberScheduled", 0) if kind == "DaemonSet" else workload["spec"].get("replicas", 1)
    updated, available = (int(status.get(field, 0)) for field in _COUNTS[kind])
    seen = status.get("observedGeneration", 0) >= workload["metadata"]["generation"]
    if seen and updated == available == total:
        return ""
    return f"{kind} {object_name(workload)} has {min(updated, available)} of {total} pods that are ready"
