"""Which pods a Deployment, ReplicaSet, StatefulSet or DaemonSet needs; pure.

Sources: Kubernetes 1.37 ``pkg/controller/deployment``, ``rolling.go`` and ``sync.go``; ``pkg/controller/replicaset``;
``pkg/controller/statefulset``; ``pkg/controller/daemon``, ``daemon_controller.go`` and ``update.go``.
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
from dra_kit.kubernetes.scheduler.nodes import is_affine, is_tainted
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


_TOLERATED: Final = (
    ("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"), ("pid-pressure", "NoSchedule"), ("unschedulable", "NoSchedule"),
)  # fmt: skip


def plan_daemon_set(
    daemon_set: ObjectView,
    pods: Sequence[ObjectView],
    nodes: Sequence[ObjectView],
    availability: Availability | None = None,
    others: Collection[str] = (),
) -> WorkloadPlan:
    """Return what to do about a DaemonSet: pods on every node first, then the steps of an update.

    ``others`` are the names of pods that it does not own.
    """
    places = _places(daemon_set, pods, nodes)
    availability = availability or Availability(daemon_set)
    steps, surge = _Steps(), _surge(daemon_set, places)
    for place in places:
        _manage(place, steps, availability, surges=surge > 0)
    if not (steps.create or steps.delete) and _rolls(daemon_set):
        if surge:
            _surge_update(surge, places, steps, availability)
        else:
            _replacing_update(daemon_set, places, steps, availability)
    return WorkloadPlan(
        create=[_daemon_pod(daemon_set, node, others) for node in steps.create],
        delete=steps.delete, events=steps.events,
        status=_status(daemon_set, places, availability), again=availability.again,
    )  # fmt: skip


class _Place(Struct):
    """A node, and the pods of the DaemonSet on it, oldest first; pods of nodes that are gone are on one, too.

    Attributes:
        exists: the node does.
        runs: a pod has to be on it.
        stays: a pod that is on it may stay.
        new: the pods of the current template that are not being deleted; ``old`` those of others.
    """

    node: str
    exists: bool
    runs: bool
    stays: bool
    pods: Sequence[ObjectView]
    new: Sequence[ObjectView]
    old: Sequence[ObjectView]

    @property
    def pair(self) -> tuple[ObjectView | None, ObjectView | None] | None:
        """The pod of the current template and that of another; None where there are more."""
        if len(self.new) > 1 or len(self.old) > 1:
            return None
        return next(iter(self.new), None), next(iter(self.old), None)


class _Steps(Struct):
    """What to do: nodes that get a pod, pods to delete, and what to report."""

    create: list[str] = field(default_factory=list)
    delete: list[ObjectView] = field(default_factory=list)
    events: list[tuple[Literal["Normal", "Warning"], str, str]] = field(default_factory=list)


def _places(daemon_set: ObjectView, pods: Sequence[ObjectView], nodes: Sequence[ObjectView]) -> list[_Place]:
    current = revision(daemon_set)
    by_node: dict[str, list[ObjectView]] = {}
    for pod in sorted(pods, key=lambda item: str(item["metadata"].get("creationTimestamp", ""))):
        if not (is_terminal(pod) and _is_deleted(pod)):
            by_node.setdefault(node_of(pod), []).append(pod)
    by_node.pop("", None)
    fits = {node["metadata"]["name"]: _fits(daemon_set, node) for node in nodes}
    found = []
    for name in sorted({*fits, *by_node}):
        runs, stays = fits.get(name, (False, False))
        here = by_node.get(name, [])
        active = [pod for pod in here if not _is_deleted(pod)]
        new = [pod for pod in active if (pod["metadata"].get("labels") or {}).get(REVISION_LABEL) == current]
        found.append(_Place(name, name in fits, runs, stays, here, new, [pod for pod in active if pod not in new]))
    return found


def _fits(daemon_set: ObjectView, node: ObjectView) -> tuple[bool, bool]:
    """Return whether a pod has to be on a node, and whether one that is there may stay."""
    pod = _daemon_pod(daemon_set, node["metadata"]["name"])
    if not is_affine(pod, node):
        return False, False
    taints = [item for item in node.get("spec", {}).get("taints", ()) if item.get("effect") == "NoExecute"]
    return not is_tainted(pod, node), not is_tainted(pod, {**node, "spec": {"taints": taints}})


def _manage(place: _Place, steps: _Steps, availability: Availability, *, surges: bool) -> None:
    """See to it that a node has the pods that it should have, whatever their template."""
    active = [pod for pod in place.pods if not _is_deleted(pod)]
    if place.runs and not place.pods:
        steps.create.append(place.node)
        return
    if not place.stays:
        # the pods that ran on a node that is gone are the garbage collector's
        steps.delete += [pod for pod in active if place.exists or not pod["spec"].get("nodeName")]
        return
    running = []
    for pod in active:
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        what = f"daemon pod {metadata['namespace']}/{metadata['name']} on node {place.node}"
        if phase == "Failed":
            note = f"Found failed {what}, will try to kill it"
            steps.events.append(("Warning", "FailedDaemonPod", note))
        elif phase == "Succeeded":
            note = f"Found succeeded {what}, will try to delete it"
            steps.events.append(("Normal", "SucceededDaemonPod", note))
        else:
            running.append(pod)
            continue
        steps.delete.append(pod)
    if not surges:
        steps.delete += running[1:]
        return
    if not running and place.runs:
        steps.create.append(place.node)
    if len(running) > 1:
        new, old = ([pod for pod in running if (pod in place.new) == is_new] for is_new in (True, False))
        steps.delete += [*new[1:], *old[1:]]
        # two pods are allowed only while the new one gets available and the old one is ready
        if new and old and (not is_ready(old[0]) or availability.holds(new[0])):
            steps.delete.append(old[0])


def _rolls(daemon_set: ObjectView) -> bool:
    return bool((daemon_set["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate") == "RollingUpdate")


def _limit(daemon_set: ObjectView, places: Sequence[_Place], name: str, default: int) -> int:
    rolling = (daemon_set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    return scaled_count(rolling.get(name, default), sum(place.runs for place in places), up=True)


def _surge(daemon_set: ObjectView, places: Sequence[_Place]) -> int:
    return _limit(daemon_set, places, "maxSurge", 0) if _rolls(daemon_set) else 0


def _replacing_update(
    daemon_set: ObjectView, places: Sequence[_Place], steps: _Steps, availability: Availability
) -> None:
    """Delete pods of former templates: those that are not available, and as many others as may be missing."""
    unavailable, candidates = 0, []
    for place in places:
        if not place.pods:
            continue
        new, old = place.pair or (None, None)
        if old is not None and new is None:
            if availability.holds(old):
                candidates.append(old)
                continue
            steps.delete.append(old)
        if new is None or old is not None or not availability.holds(new):
            unavailable += 1
    allowed = max(_limit(daemon_set, places, "maxUnavailable", 1), 1)
    steps.delete += candidates[: max(allowed - unavailable, 0)]


def _surge_update(surge: int, places: Sequence[_Place], steps: _Steps, availability: Availability) -> None:
    """Start new pods next to old ones, as many as allowed; delete an old pod once the new one is available."""
    surging, available, candidates, leaving = 0, 0, [], []
    for place in places:
        if place.pair is None:
            surging += 1
            continue
        new, old = place.pair
        measure = old if old is not None else new
        available += measure is not None and availability.holds(measure)
        if old is None:
            continue
        if new is not None:
            if availability.holds(new):
                steps.delete.append(old)
            else:
                surging += 1
        elif not availability.holds(old):
            if place.runs:
                steps.create.append(place.node)
            else:
                steps.delete.append(old)
        elif place.runs:
            candidates.append(place.node)
        else:
            leaving.append(old)
    spare = available - sum(place.runs for place in places)
    steps.delete += leaving[: max(spare, 0)]
    steps.create += candidates[: max(surge - surging, 0)]


def _status(daemon_set: ObjectView, places: Sequence[_Place], availability: Availability) -> Mapping[str, Any]:
    desired = [place for place in places if place.runs]
    oldest = [place.pods[0] for place in desired if place.pods]
    updated = [pod for place in desired for pod in place.pods[:1] if pod in place.new]
    available = availability.count(oldest)
    return {
        "observedGeneration": daemon_set["metadata"]["generation"], "currentNumberScheduled": len(oldest),
        "desiredNumberScheduled": len(desired),
        "numberMisscheduled": sum(bool(place.pods) for place in places if not place.runs),
        "numberReady": sum(map(is_ready, oldest)), "numberAvailable": available,
        "updatedNumberScheduled": len(updated), "numberUnavailable": len(desired) - available,
    }  # fmt: skip


def _is_deleted(pod: ObjectView) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def node_of(pod: ObjectView) -> str:
    """Return the node that a pod is on, or was made for; empty if it was made for none."""
    if name := pod["spec"].get("nodeName"):
        return str(name)
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for item in term.get("matchFields") or ():
            if (item["key"], item["operator"]) == ("metadata.name", "In"):
                return str(item["values"][0])
    return ""


def _daemon_pod(daemon_set: ObjectView, node: str, others: Collection[str] = ()) -> dict[str, Any]:
    metadata, current = daemon_set["metadata"], revision(daemon_set)
    names = (f"{metadata['name']}-{template_hash(metadata['uid'], node, current, number)}" for number in count())
    pod = new_pod(daemon_set, next(name for name in names if name not in others), {REVISION_LABEL: current})
    item = {"key": "metadata.name", "operator": "In", "values": [node]}
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (node_affinity.get(required) or {}).get("nodeSelectorTerms") or [{}]
    terms = [{**term, "matchFields": [item]} for term in terms]
    spec["affinity"] = {**affinity, "nodeAffinity": {**node_affinity, required: {"nodeSelectorTerms": terms}}}
    spec["tolerations"] = [
        *(spec.get("tolerations") or []),
        *({"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect} for key, effect in _TOLERATED),
    ]
    return pod
