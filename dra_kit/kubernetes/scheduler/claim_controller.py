"""Reservations: who may still use a claim, and what becomes of a claim nobody uses. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from dra_kit.resource.pods import pod_claims
from dra_kit.scheduler.pods import is_done, is_reserved_for
from dra_kit.values.json import ObjectView

DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"


class ClaimStep(Struct, frozen=True):
    """What is to be written to a claim, in this order.

    Attributes:
        status: the new status.
        finalizers: the finalizers without the scheduler's.
        delete: delete the claim.
    """

    status: dict[str, Any] | None = None
    finalizers: list[str] | None = None
    delete: bool = False


def finalizers_patch(claim: ObjectView, finalizers: list[str]) -> dict[str, Any]:
    """Return the merge patch that gives a claim, as it was read, other finalizers.

    Kubernetes' own controllers send the whole claim, in protobuf, where opaque parameters are the bytes that were sent.
    A claim that was read from JSON has lost how its user wrote them (an escaped ``&``, ``1e0``), and the API server,
    which compares bytes, would take the spec for a changed one.
    """
    metadata = claim["metadata"]
    kept = {name: metadata[name] for name in ("uid", "resourceVersion") if name in metadata}
    return {"metadata": {**kept, "finalizers": finalizers}}


def next_step(claim: ObjectView, pods: Mapping[tuple[str, str], ObjectView]) -> ClaimStep:
    """Return what kube-controller-manager's ResourceClaim controller (1.37) does with a claim.

    Entries of pods that ended go; with the last one goes the allocation, then the finalizer that kept the claim from
    being deleted, and then a claim that was generated for a pod that has ended.

    Args:
        claim: as it is.
        pods: all pods.
    """
    status = claim.get("status", {})
    consumers = status.get("reservedFor", [])
    namespace = claim["metadata"].get("namespace", "")
    valid = [item for item in consumers if _still_consumes(item, namespace, pods)]
    finalizers = claim["metadata"].get("finalizers", [])
    deleted = "deletionTimestamp" in claim["metadata"]
    # the scheduler sets the finalizer before the allocation: seeing both missing is no reason to take it away
    unprotect = DELETE_PROTECTION in finalizers and not valid and (bool(consumers) or deleted)
    allocated = "allocation" in status
    return ClaimStep(
        status=_released(status, valid, deallocate=unprotect)
        if len(valid) < len(consumers) or (unprotect and allocated)
        else None,
        finalizers=[item for item in finalizers if item != DELETE_PROTECTION] if unprotect else None,
        delete=not valid and not deleted and _owner_is_done(claim, pods),
    )


def to_reserve(pod: ObjectView, claims: Mapping[tuple[str, str], ObjectView]) -> list[ObjectView]:
    """Allocated claims that a pod with a node uses without being among their consumers.

    The scheduler reserves what it schedules; this is for pods whose node somebody else chose.
    """
    if not pod["spec"].get("nodeName") or is_done(pod) or "deletionTimestamp" in pod["metadata"]:
        return []
    namespace = pod["metadata"]["namespace"]
    found = (claims.get((namespace, entry.claim)) for entry in pod_claims(pod) if entry.claim)
    allocated = (item for item in found if item and item.get("status", {}).get("allocation"))
    return [item for item in allocated if not is_reserved_for(item, pod)]


def consumer(pod: ObjectView) -> dict[str, str]:
    """Return the entry of a pod in ``status.reservedFor``."""
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


def _still_consumes(item: ObjectView, namespace: str, pods: Mapping[tuple[str, str], ObjectView]) -> bool:
    if item.get("apiGroup") or item.get("resource") != "pods":
        return True  # of a kind that somebody else looks after
    pod = pods.get((namespace, item["name"]))
    return pod is not None and pod["metadata"]["uid"] == item["uid"] and not is_done(pod)


def _released(status: ObjectView, valid: list[Any], *, deallocate: bool) -> dict[str, Any]:
    new = {**status, "reservedFor": valid}
    if not valid:
        del new["reservedFor"]
    if deallocate:
        new.pop("allocation", None)
        new.pop("devices", None)
    return new


def _owner_is_done(claim: ObjectView, pods: Mapping[tuple[str, str], ObjectView]) -> bool:
    for owner in claim["metadata"].get("ownerReferences", []):
        if owner.get("controller") and (owner.get("kind"), owner.get("apiVersion")) == ("Pod", "v1"):
            pod = pods.get((claim["metadata"].get("namespace", ""), owner["name"]))
            # a pod that is gone leaves its claims to the garbage collector
            return pod is not None and (pod["metadata"]["uid"] != owner["uid"] or is_done(pod))
    return False
