"""ReplicaSets: so many pods of one template. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster.controllers.workloads.plan import (
    Plan,
    is_active,
    is_ready,
    new_pod,
    ready,
    short_hash,
    wanted,
)


def plan(replica_set: ObjectView, pods: Sequence[ObjectView]) -> Plan:
    """Return what to do about a ReplicaSet.

    Args:
        replica_set: the set.
        pods: its own.
    """
    active = [pod for pod in pods if is_active(pod)]
    missing = wanted(replica_set) - len(active)
    taken = {pod["metadata"]["name"] for pod in pods}
    metadata = replica_set["metadata"]
    names = (f"{metadata['name']}-{short_hash(metadata['uid'], number)}" for number in count())
    free = islice((name for name in names if name not in taken), max(missing, 0))
    # those that are not ready go first, then the youngest
    excess = sorted(active, key=lambda pod: (not is_ready(pod), pod["metadata"]["creationTimestamp"]), reverse=True)
    status = {
        "observedGeneration": metadata["generation"], "replicas": len(active), "fullyLabeledReplicas": len(active),
        "readyReplicas": ready(active), "availableReplicas": ready(active),
    }  # fmt: skip
    return Plan(create=[new_pod(replica_set, name) for name in free], delete=excess[: max(-missing, 0)], status=status)
