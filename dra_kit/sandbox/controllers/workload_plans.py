"""Which pods a Deployment, ReplicaSet or StatefulSet needs; pure.

Sources: Kubernetes 1.37 ``pkg/controller/deployment``, ``rolling.go`` and ``sync.go``; Kubernetes 1.37
``pkg/controller/replicaset``; Kubernetes 1.37 ``pkg/controller/statefulset``.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count, islice
from typing import Any, Final, Literal

from msgspec import Struct, field

from dra_kit.kubernetes.resource.objects import format_time, is_terminal
from dra_kit.kubernetes.values.json import ObjectView

_HASH_LABEL: Final = "pod-template-hash"
_REVISION: Final = "deployment.kubernetes.io/revision"
_HISTORY: Final = 10


def plan_deployment(deployment: ObjectView, sets: Sequence[ObjectView], *, late: bool = False) -> WorkloadPlan:
    """Return what to do about a Deployment; ``late``: it has exceeded its progress deadline."""
    name = f"{deployment['metadata']['name']}-{revision(deployment)}"
    same = [item for item in sets if _has_template(item, deployment)]
    new = min(same, key=lambda item: str(item["metadata"]["creationTimestamp"]), default=None)
    old = sorted((item for item in sets if item is not new), key=_revision)
    number = max((_revision(item) for item in old), default=0) + 1
    if new is not None:
        number = max(number, _revision(new))
    if deployment["spec"].get("paused"):
        return WorkloadPlan(status=_deployment_status(deployment, new, old, late=late))
    target, scaled = _rolled(deployment, new, old)
    create, replicas = [], [(item, size) for item, size in scaled if size != wanted_replicas(item)]
    if new is None:
        create.append(_new_set(deployment, name, target, number))
    elif target != wanted_replicas(new):
        replicas.append((new, target))
    limit = deployment["spec"].get("revisionHistoryLimit", _HISTORY)
    done = [item for item in old if not wanted_replicas(item) and not _count(item, "replicas")]
    return WorkloadPlan(
        create=create, replicas=replicas, delete=done[: max(len(done) - limit, 0)],
        status=_deployment_status(deployment, new, old, late=late), annotations={_REVISION: str(number)},
    )  # fmt: skip


def _has_template(replica_set: ObjectView, deployment: ObjectView) -> bool:
    """Return whether a ReplicaSet makes the pods of a Deployment, also one that was adopted."""
    template = replica_set["spec"]["template"]
    metadata = template.get("metadata") or {}
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if name != _HASH_LABEL}
    wanted = deployment["spec"]["template"]
    expected = wanted.get("metadata") or {}
    return bool(
        template["spec"] == wanted["spec"]
        and labels == (expected.get("labels") or {})
        and (metadata.get("annotations") or {}) == (expected.get("annotations") or {})
    )


def _revision(replica_set: ObjectView) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(_REVISION, 0))


def _count(replica_set: ObjectView | None, name: str) -> int:
    number: int = ((replica_set or {}).get("status") or {}).get(name, 0)
    return number


def _limits(deployment: ObjectView) -> tuple[int, int]:
    """Return how many pods there may be beyond the number asked for, and how many of it may be missing."""
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    total = wanted_replicas(deployment)
    surge = scaled_count(rolling.get("maxSurge", "25%"), total, up=True)
    lacking = scaled_count(rolling.get("maxUnavailable", "25%"), total, up=False)
    return surge, lacking if surge or lacking else 1


def _rolled(
    deployment: ObjectView, new: ObjectView | None, old: Sequence[ObjectView]
) -> tuple[int, list[tuple[ObjectView, int]]]:
    """Return the size that the new set should have, and those of the old ones."""
    total, size = wanted_replicas(deployment), 0 if new is None else wanted_replicas(new)
    if (deployment["spec"].get("strategy") or {}).get("type") == "Recreate":
        gone = not any(_count(item, "replicas") for item in old)
        return total if gone else size, [(item, 0) for item in old]
    surge, lacking = _limits(deployment)
    sizes = {item["metadata"]["name"]: wanted_replicas(item) for item in old}
    room = total + surge - size - sum(sizes.values())
    target = total if size > total else min(total, size + max(room, 0))
    least = total - lacking
    available = _count(new, "availableReplicas") + sum(_count(item, "availableReplicas") for item in old)
    spare = sum(sizes.values()) + size - least - (size - _count(new, "availableReplicas"))
    for item in old:  # what is not available is given up first
        name = item["metadata"]["name"]
        given_up = min(max(sizes[name] - _count(item, "availableReplicas"), 0), max(spare, 0))
        sizes[name] -= given_up
        spare -= given_up
    spare = available - least
    for item in old:
        name = item["metadata"]["name"]
        given_up = min(sizes[name], max(spare, 0))
        sizes[name] -= given_up
        spare -= given_up
    return target, [(item, sizes[item["metadata"]["name"]]) for item in old]


def _new_set(deployment: ObjectView, name: str, size: int, number: int) -> dict[str, Any]:
    template = deployment["spec"]["template"]
    metadata = template.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), _HASH_LABEL: revision(deployment)}
    selector = deployment["spec"]["selector"]
    matched = {**(selector.get("matchLabels") or {}), _HASH_LABEL: revision(deployment)}
    return {
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": name, "namespace": deployment["metadata"]["namespace"], "labels": labels,
            "annotations": {_REVISION: str(number)}, "ownerReferences": [owner_reference(deployment)],
        },
        "spec": {
            "replicas": size, "selector": {**selector, "matchLabels": matched},
            "minReadySeconds": deployment["spec"].get("minReadySeconds", 0),
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }  # fmt: skip


def _deployment_status(
    deployment: ObjectView, new: ObjectView | None, old: Sequence[ObjectView], *, late: bool
) -> dict[str, Any]:
    every = [*old, *([new] if new is not None else [])]
    replicas, available = (sum(_count(item, name) for item in every) for name in ("replicas", "availableReplicas"))
    total, updated = wanted_replicas(deployment), _count(new, "replicas")
    complete = updated == replicas == available == total
    progress = "NewReplicaSetAvailable" if complete else "ProgressDeadlineExceeded" if late else "ReplicaSetUpdated"
    enough = available >= total - _limits(deployment)[1]
    former = {item["type"]: item for item in (deployment.get("status") or {}).get("conditions", [])}
    name = deployment["metadata"]["name"]
    text = "has successfully progressed." if complete else "has timed out progressing." if late else "is progressing."
    conditions = [
        _condition(former, "Available", enough, "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
                   f"Deployment {'has' if enough else 'does not have'} minimum availability."),
        _condition(former, "Progressing", complete or not late, progress,
                   f'ReplicaSet "{name}-{revision(deployment)}" {text}'),
    ]  # fmt: skip
    return {
        "observedGeneration": deployment["metadata"]["generation"], "replicas": replicas, "updatedReplicas": updated,
        "readyReplicas": sum(_count(item, "readyReplicas") for item in every), "availableReplicas": available,
        "unavailableReplicas": max(total - available, 0), "conditions": conditions,
    }  # fmt: skip


def _condition(former: dict[str, Any], type_: str, holds: bool, reason: str, message: str) -> dict[str, Any]:
    before = former.get(type_) or {}
    status = "True" if holds else "False"
    now = format_time()
    same = (before.get("status"), before.get("reason"), before.get("message")) == (status, reason, message)
    return {
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastUpdateTime": before["lastUpdateTime"] if same else now,
        "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == status else now,
    }  # fmt: skip


REVISION_LABEL: Final = "controller-revision-hash"
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' own, without vowels


class WorkloadPlan(Struct, frozen=True, kw_only=True):
    """The changes that bring a workload closer to its spec.

    Attributes:
        create: objects to create. Names are deterministic, so an object that already exists is the right one.
        replicas: ReplicaSets to scale, each with the new number of replicas.
        events: type, reason and note of Events about the workload.
        again: seconds after which to plan again, because a pod that is ready becomes available then.
    """

    status: Mapping[str, Any]
    create: Sequence[dict[str, Any]] = ()
    delete: Sequence[ObjectView] = ()
    replicas: Sequence[tuple[ObjectView, int]] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[tuple[Literal["Normal", "Warning"], str, str]] = ()
    again: float | None = None


def template_hash(*parts: object, length: int = 5) -> str:
    """Return a short hash of JSON values, in letters."""
    number = int.from_bytes(hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest(), "big")
    letters = []
    for _ in range(length):
        number, rest = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[rest])
    return "".join(letters)


def revision(workload: ObjectView) -> str:
    """Return the hash of a workload's template."""
    return template_hash(workload["spec"]["template"], length=10)


def owner_reference(owner: ObjectView) -> dict[str, Any]:
    """Return the controlling owner."""
    return {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def new_pod(owner: ObjectView, name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a pod of a workload's template."""
    template = owner["spec"]["template"]
    metadata = template.get("metadata") or {}
    return {
        "apiVersion": "v1", "kind": "Pod", "spec": dict(template["spec"]),
        "metadata": {
            "name": name, "namespace": owner["metadata"]["namespace"],
            "labels": {**(metadata.get("labels") or {}), **(labels or {})},
            "annotations": dict(metadata.get("annotations") or {}), "ownerReferences": [owner_reference(owner)],
        },
    }  # fmt: skip


def is_active(pod: ObjectView) -> bool:
    """Return whether a pod counts: it neither ended nor is being deleted."""
    return not is_terminal(pod) and "deletionTimestamp" not in pod["metadata"]


def is_ready(pod: ObjectView) -> bool:
    """Return whether a pod's condition says so."""
    return any(
        item["type"] == "Ready" and item["status"] == "True" for item in pod.get("status", {}).get("conditions", [])
    )


class Availability:
    """Which pods of a workload have been ready for its ``minReadySeconds``.

    Args:
        workload: of the pods.
        now: the time; None for the current one.
        time_scale: the seconds are divided by this.

    Attributes:
        again: seconds until another of the pods that were asked about is available; None if none is waiting.
    """

    def __init__(self, workload: ObjectView, *, now: dt.datetime | None = None, time_scale: float = 1.0) -> None:
        self._seconds = workload["spec"].get("minReadySeconds", 0) / time_scale
        self._now = now or dt.datetime.now(dt.UTC)
        self.again: float | None = None

    def holds(self, pod: ObjectView) -> bool:
        """Return whether a pod is available."""
        if not is_ready(pod) or not self._seconds:
            return is_ready(pod)
        condition = next(item for item in pod["status"]["conditions"] if item["type"] == "Ready")
        if not (since := condition.get("lastTransitionTime")):
            return False
        remaining = self._seconds - (self._now - dt.datetime.fromisoformat(since)).total_seconds()
        if remaining > 0:
            self.again = min(remaining, self.again or remaining)
        return bool(remaining <= 0)

    def count(self, pods: Iterable[ObjectView]) -> int:
        """Return how many are available."""
        return sum(map(self.holds, pods))


def ready(pods: Iterable[ObjectView]) -> int:
    """Return how many are."""
    return sum(map(is_ready, pods))


def scaled_count(value: Any, total: int, *, up: bool) -> int:
    """Return a number, or a percentage of a total."""
    if isinstance(value, str) and value.endswith("%"):
        exact = int(value[:-1]) * total / 100
        return math.ceil(exact) if up else math.floor(exact)
    return int(value or 0)


def wanted_replicas(workload: ObjectView) -> int:
    """Return ``spec.replicas``, 1 where it is missing."""
    number: int = workload["spec"].get("replicas", 1)
    return number


def plan_replica_set(
    replica_set: ObjectView,
    pods: Sequence[ObjectView],
    availability: Availability | None = None,
    others: Collection[str] = (),
) -> WorkloadPlan:
    """Return what to do about a ReplicaSet; ``others`` are the names of pods that it does not own."""
    availability = availability or Availability(replica_set)
    active = [pod for pod in pods if is_active(pod)]
    missing = wanted_replicas(replica_set) - len(active)
    taken = {*others, *(pod["metadata"]["name"] for pod in pods)}
    metadata = replica_set["metadata"]
    names = (f"{metadata['name']}-{template_hash(metadata['uid'], number)}" for number in count())
    free = islice((name for name in names if name not in taken), max(missing, 0))
    # those that are not ready go first, then the youngest
    excess = sorted(active, key=lambda pod: (not is_ready(pod), pod["metadata"]["creationTimestamp"]), reverse=True)
    status = {
        "observedGeneration": metadata["generation"], "replicas": len(active), "fullyLabeledReplicas": len(active),
        "readyReplicas": ready(active), "availableReplicas": availability.count(active),
    }  # fmt: skip
    return WorkloadPlan(
        create=[new_pod(replica_set, name) for name in free], delete=excess[: max(-missing, 0)], status=status,
        again=availability.again,
    )  # fmt: skip


def plan_stateful_set(
    stateful_set: ObjectView, pods: Sequence[ObjectView], availability: Availability | None = None
) -> WorkloadPlan:
    """Return what to do about a StatefulSet."""
    availability = availability or Availability(stateful_set)
    name, spec = stateful_set["metadata"]["name"], stateful_set["spec"]
    update = f"{name}-{revision(stateful_set)}"
    by_name = {pod["metadata"]["name"]: pod for pod in pods}
    names = [f"{name}-{number}" for number in range(wanted_replicas(stateful_set))]
    parallel = spec.get("podManagementPolicy") == "Parallel"
    missing = [number for number, pod in enumerate(names) if pod not in by_name]
    broken = [
        pod for pod in names if pod in by_name and not (is_active(by_name[pod]) and availability.holds(by_name[pod]))
    ]
    create: list[dict[str, Any]] = []
    delete: list[ObjectView] = []
    if missing:
        # in order: not before all with lower numbers are ready
        held = not parallel and any(names.index(pod) < missing[0] for pod in broken)
        create = (
            []
            if held
            else [_stateful_pod(stateful_set, number, update) for number in missing[: None if parallel else 1]]
        )
    excess = sorted((by_name[pod] for pod in set(by_name) - set(names)), key=_number, reverse=True)
    if excess and (parallel or not missing):
        delete = [pod for pod in excess[: None if parallel else 1] if is_active(pod)]
    elif not missing and not broken:
        delete = _outdated_stateful_pods(stateful_set, [by_name[pod] for pod in names], update)
    status = _stateful_set_status(stateful_set, list(by_name.values()), update, availability)
    return WorkloadPlan(create=create, delete=delete, status=status, again=availability.again)


def _outdated_stateful_pods(stateful_set: ObjectView, pods: Sequence[ObjectView], update: str) -> list[ObjectView]:
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


def _stateful_pod(stateful_set: ObjectView, number: int, update: str) -> dict[str, Any]:
    name = f"{stateful_set['metadata']['name']}-{number}"
    labels = {
        REVISION_LABEL: update, "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(number),
    }  # fmt: skip
    pod = new_pod(stateful_set, name, labels)
    pod["spec"] |= {"hostname": name, "subdomain": stateful_set["spec"].get("serviceName", "")}
    return pod


def _stateful_set_status(
    stateful_set: ObjectView, pods: Sequence[ObjectView], update: str, availability: Availability
) -> dict[str, Any]:
    active = [pod for pod in pods if is_active(pod)]
    updated = [pod for pod in active if _revision_of(pod) == update]
    current = (stateful_set.get("status") or {}).get("currentRevision") or update
    if len(updated) == ready(updated) == wanted_replicas(stateful_set) == len(active):
        current = update
    return {
        "observedGeneration": stateful_set["metadata"]["generation"], "replicas": len(active),
        "readyReplicas": ready(active), "availableReplicas": availability.count(active),
        "updatedReplicas": len(updated),
        "currentReplicas": sum(_revision_of(pod) == current for pod in active),
        "currentRevision": current, "updateRevision": update, "collisionCount": 0,
    }  # fmt: skip
