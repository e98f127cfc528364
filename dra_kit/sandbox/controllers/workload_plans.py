"""Deployments: a ReplicaSet for each template, the newest of which takes over. Pure.

Source: Kubernetes 1.37 ``pkg/controller/deployment``, ``rolling.go`` and ``sync.go``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dra_kit.kubernetes.resource.objects import format_time
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster.controllers.workloads.plan import Plan, owner_reference, revision, share, wanted

_HASH_LABEL: Final = "pod-template-hash"
_REVISION: Final = "deployment.kubernetes.io/revision"
_HISTORY: Final = 10


def plan(deployment: ObjectView, sets: Sequence[ObjectView], *, late: bool = False) -> Plan:
    """Return what to do about a Deployment.

    Args:
        deployment: the Deployment.
        sets: its ReplicaSets.
        late: whether nothing has moved for longer than its deadline.
    """
    name = f"{deployment['metadata']['name']}-{revision(deployment)}"
    new = next((item for item in sets if item["metadata"]["name"] == name), None)
    old = sorted((item for item in sets if item is not new), key=_revision)
    number = max((_revision(item) for item in old), default=0) + 1
    if new is not None:
        number = max(number, _revision(new))
    if deployment["spec"].get("paused"):
        return Plan(status=_status(deployment, new, old, late=late))
    target, scaled = _rolled(deployment, new, old)
    create, replicas = [], [(item, size) for item, size in scaled if size != wanted(item)]
    if new is None:
        create.append(_new_set(deployment, name, target, number))
    elif target != wanted(new):
        replicas.append((new, target))
    limit = deployment["spec"].get("revisionHistoryLimit", _HISTORY)
    done = [item for item in old if not wanted(item) and not _count(item, "replicas")]
    return Plan(
        create=create, replicas=replicas, delete=done[: max(len(done) - limit, 0)],
        status=_status(deployment, new, old, late=late), annotations={_REVISION: str(number)},
    )  # fmt: skip


def _revision(replica_set: ObjectView) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(_REVISION, 0))


def _count(replica_set: ObjectView | None, name: str) -> int:
    number: int = ((replica_set or {}).get("status") or {}).get(name, 0)
    return number


def _limits(deployment: ObjectView) -> tuple[int, int]:
    """Return how many pods there may be beyond the number asked for, and how many of it may be missing."""
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    total = wanted(deployment)
    surge = share(rolling.get("maxSurge", "25%"), total, up=True)
    lacking = share(rolling.get("maxUnavailable", "25%"), total, up=False)
    return surge, lacking if surge or lacking else 1


def _rolled(
    deployment: ObjectView, new: ObjectView | None, old: Sequence[ObjectView]
) -> tuple[int, list[tuple[ObjectView, int]]]:
    """Return the size that the new set should have, and those of the old ones."""
    total, size = wanted(deployment), 0 if new is None else wanted(new)
    if (deployment["spec"].get("strategy") or {}).get("type") == "Recreate":
        gone = not any(_count(item, "replicas") for item in old)
        return total if gone else size, [(item, 0) for item in old]
    surge, lacking = _limits(deployment)
    sizes = {item["metadata"]["name"]: wanted(item) for item in old}
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
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }  # fmt: skip


def _status(deployment: ObjectView, new: ObjectView | None, old: Sequence[ObjectView], *, late: bool) -> dict[str, Any]:
    every = [*old, *([new] if new is not None else [])]
    replicas, available = (sum(_count(item, name) for item in every) for name in ("replicas", "availableReplicas"))
    total, updated = wanted(deployment), _count(new, "replicas")
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
