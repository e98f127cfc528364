"""What the controllers of workloads have in common: pods from templates, and what is to be done about them. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from dra_kit.kubernetes.resource.objects import is_terminal
from dra_kit.kubernetes.values.json import ObjectView

REVISION_LABEL: Final = "controller-revision-hash"
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' own, without vowels


class Plan(Struct, frozen=True, kw_only=True):
    """What brings a workload closer to what it should be.

    Attributes:
        create: objects to create; a name follows from what the object is for, so that one that is there is right.
        delete: objects to delete.
        replicas: new numbers of replicas of ReplicaSets, each with the set.
        status: of the workload.
        annotations: of the workload.
    """

    status: Mapping[str, Any]
    create: Sequence[dict[str, Any]] = ()
    delete: Sequence[ObjectView] = ()
    replicas: Sequence[tuple[ObjectView, int]] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


def short_hash(*parts: object, length: int = 5) -> str:
    """Return a short hash of JSON values, in letters."""
    number = int.from_bytes(hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest(), "big")
    letters = []
    for _ in range(length):
        number, rest = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[rest])
    return "".join(letters)


def revision(workload: ObjectView) -> str:
    """Return the hash of a workload's template."""
    return short_hash(workload["spec"]["template"], length=10)


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


def ready(pods: Iterable[ObjectView]) -> int:
    """Return how many are."""
    return sum(map(is_ready, pods))


def share(value: Any, total: int, *, up: bool) -> int:
    """Return a number, or a percentage of a total."""
    if isinstance(value, str) and value.endswith("%"):
        exact = int(value[:-1]) * total / 100
        return math.ceil(exact) if up else math.floor(exact)
    return int(value or 0)


def wanted(workload: ObjectView) -> int:
    """Return ``spec.replicas``, 1 where it is missing."""
    number: int = workload["spec"].get("replicas", 1)
    return number
