"""Rules of kube-controller-manager's ResourceClaim controller (1.37): claims from templates, and their release."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from dra_kit.kubernetes.resource.objects import PodClaim, is_done, is_reserved_for, owns, pod_claims
from dra_kit.kubernetes.values.json import ObjectView

DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"


class ClaimUpdate(Struct, frozen=True):
    """The writes to a claim, in this order."""

    status: dict[str, Any] | None = None
    finalizers: list[str] | None = None
    delete: bool = False


def claim_update(claim: ObjectView, pods: Mapping[tuple[str, str], ObjectView]) -> ClaimUpdate:
    """Return the action of kube-controller-manager's ResourceClaim controller (1.37) for a claim.

    It removes finished pods from the consumers. After the last one, it removes the allocation, then the finalizer that
    blocks deletion, and then a claim that was generated for a finished pod.
    """
    status = claim.get("status", {})
    consumers = status.get("reservedFor", [])
    namespace = claim["metadata"].get("namespace", "")
    valid = [item for item in consumers if _still_consumes(item, namespace, pods)]
    finalizers = claim["metadata"].get("finalizers", [])
    deleted = "deletionTimestamp" in claim["metadata"]
    # the scheduler sets the finalizer before the allocation: if both are missing, do not remove the finalizer
    unprotect = DELETE_PROTECTION in finalizers and not valid and (bool(consumers) or deleted)
    allocated = "allocation" in status
    return ClaimUpdate(
        status=_released(status, valid, deallocate=unprotect)
        if len(valid) < len(consumers) or (unprotect and allocated)
        else None,
        finalizers=[item for item in finalizers if item != DELETE_PROTECTION] if unprotect else None,
        delete=not valid and not deleted and _owner_is_done(claim, pods),
    )


def claims_to_reserve(pod: ObjectView, claims: Mapping[tuple[str, str], ObjectView]) -> list[ObjectView]:
    """Return allocated claims that a pod with a node uses without being one of their consumers.

    The scheduler reserves what it schedules; this is for pods that were assigned to a node without it.
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
        return True  # another controller handles this kind
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
            # the garbage collector deletes the claims of a deleted pod
            return pod is not None and (pod["metadata"]["uid"] != owner["uid"] or is_done(pod))
    return False


POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"
# a generated name has 63 characters at most, five of them random
_GENERATE_NAME_LENGTH: Final = 57


def missing_claims(pod: ObjectView) -> list[PodClaim]:
    """Return the entries of the pod for which its status does not name a claim yet.

    A deleted claim that the status names is not created again, and none is created for a terminating pod.
    """
    if "deletionTimestamp" in pod["metadata"]:
        return []
    return [entry for entry in pod_claims(pod) if entry.claim is None]


def generated_claim(pod: ObjectView, entry: str, claims: Iterable[ObjectView]) -> ObjectView | None:
    """Return the claim generated earlier for an entry of the pod, regardless of the pod's status."""
    for claim in claims:
        annotations = claim["metadata"].get("annotations", {})
        if annotations.get(POD_CLAIM_ANNOTATION) == entry and owns(pod, claim):
            return claim
    return None


def claim_from_template(pod: ObjectView, entry: str, template: ObjectView) -> dict[str, Any]:
    """Return the ResourceClaim to create for an entry of the pod."""
    spec = copy.deepcopy(template["spec"])
    metadata = spec.get("metadata", {})
    body = {
        "generateName": generate_name(pod["metadata"]["name"], entry),
        "namespace": pod["metadata"]["namespace"],
        "annotations": {**metadata.get("annotations", {}), POD_CLAIM_ANNOTATION: entry},
        "ownerReferences": [pod_owner(pod)],
    }
    if metadata.get("labels"):
        body["labels"] = metadata["labels"]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": body, "spec": spec["spec"]}


def pod_owner(pod: ObjectView) -> dict[str, Any]:
    """Return the ownerReference by which a pod controls a claim created for it."""
    metadata = pod["metadata"]
    return {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"], "controller": True}


def generate_name(pod: str, entry: str) -> str:
    """Return ``<pod>-<entry>-``; if too long, both are shortened in proportion and the last dash is omitted."""
    name = f"{pod}-{entry}-"
    if len(name) <= _GENERATE_NAME_LENGTH:
        return name
    pod_part, entry_part = (part[: len(part) * _GENERATE_NAME_LENGTH // len(name)] for part in (pod, entry))
    return f"{pod_part}-{entry_part}"
