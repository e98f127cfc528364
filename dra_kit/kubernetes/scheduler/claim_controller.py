"""Rules of kube-controller-manager's ResourceClaim controller (1.37): claims from templates, and their release."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from dra_kit.kubernetes.resource.objects import (
    POD_GROUP_API,
    PodClaim,
    is_done,
    is_pod_group,
    is_reserved_for,
    owns,
    pod_claims,
)
from dra_kit.kubernetes.values.json import ObjectView

DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"


class ClaimUpdate(Struct, frozen=True):
    """The writes to a claim, in this order."""

    status: dict[str, Any] | None = None
    finalizers: list[str] | None = None
    delete: bool = False


def claim_update(
    claim: ObjectView,
    pods: Mapping[tuple[str, str], ObjectView],
    groups: Mapping[tuple[str, str], ObjectView] | None = None,
) -> ClaimUpdate:
    """Return the action of kube-controller-manager's ResourceClaim controller (1.37) for a claim.

    It removes finished pods from the consumers, and PodGroups that are gone. After the last one, it removes the
    allocation, then the finalizer that blocks deletion, and then a claim that was generated for a finished pod.

    Args:
        claim: a ResourceClaim.
        pods: all pods.
        groups: all PodGroups; None if they have no claims (feature gate DRAWorkloadResourceClaims).
    """
    status = claim.get("status", {})
    consumers = status.get("reservedFor", [])
    namespace = claim["metadata"].get("namespace", "")
    valid = [item for item in consumers if _still_consumes(item, namespace, pods, groups)]
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


def consumer(pod: ObjectView, claim: ObjectView, group: ObjectView | None) -> dict[str, str]:
    """Return the entry of a pod in ``status.reservedFor`` of its claim; that of its PodGroup if it has the claim."""
    entries = (entry for entry in pod_claims(pod) if entry.claim == claim["metadata"].get("name"))
    if group is not None and any(is_group_claim(pod, entry.name, group) for entry in entries):
        return {"apiGroup": POD_GROUP_API, "resource": "podgroups", **_identity(group)}
    return {"resource": "pods", **_identity(pod)}


def _identity(obj: ObjectView) -> dict[str, str]:
    return {"name": obj["metadata"]["name"], "uid": obj["metadata"]["uid"]}


def is_group_claim(pod: ObjectView, entry: str, group: ObjectView) -> bool:
    """Return whether an entry of the pod is also one of its PodGroup, with the same name and the same source."""
    own = next((item for item in pod["spec"].get("resourceClaims") or () if item["name"] == entry), None)
    return own is not None and any(
        all(item.get(field) == own.get(field) for field in ("name", "resourceClaimName", "resourceClaimTemplateName"))
        for item in group["spec"].get("resourceClaims") or ()
    )


def _still_consumes(
    item: ObjectView,
    namespace: str,
    pods: Mapping[tuple[str, str], ObjectView],
    groups: Mapping[tuple[str, str], ObjectView] | None,
) -> bool:
    if groups is not None and is_pod_group(item):
        group = groups.get((namespace, item["name"]))
        return group is not None and group["metadata"]["uid"] == item["uid"]
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


def generated_claim(owner: ObjectView, entry: str, claims: Iterable[ObjectView]) -> ObjectView | None:
    """Return the claim generated earlier for an entry of a pod or PodGroup, regardless of its status."""
    for claim in claims:
        annotations = claim["metadata"].get("annotations", {})
        if annotations.get(POD_CLAIM_ANNOTATION) == entry and owns(owner, claim):
            return claim
    return None


def missing_group_claims(group: ObjectView) -> list[tuple[str, str]]:
    """Return the entries of a PodGroup whose claims are not made yet, each with the name of its template."""
    made = {item["name"] for item in (group.get("status") or {}).get("resourceClaimStatuses") or ()}
    return [
        (item["name"], item["resourceClaimTemplateName"])
        for item in group["spec"].get("resourceClaims") or ()
        if item.get("resourceClaimTemplateName") and item["name"] not in made
    ]


def claim_from_template(pod: ObjectView, entry: str, template: ObjectView) -> dict[str, Any]:
    """Return the ResourceClaim to create for an entry of the pod."""
    return _claim_from_template(pod, entry, template, pod_owner(pod))


def group_claim_from_template(group: ObjectView, entry: str, template: ObjectView) -> dict[str, Any]:
    """Return the ResourceClaim to create for an entry of a PodGroup."""
    owner = {"apiVersion": f"{POD_GROUP_API}/v1beta1", "kind": "PodGroup", **_identity(group), "controller": True}
    return _claim_from_template(group, entry, template, owner)


def _claim_from_template(obj: ObjectView, entry: str, template: ObjectView, owner: dict[str, Any]) -> dict[str, Any]:
    spec = copy.deepcopy(template["spec"])
    metadata = spec.get("metadata", {})
    body = {
        "generateName": generate_name(obj["metadata"]["name"], entry),
        "namespace": obj["metadata"]["namespace"],
        "annotations": {**metadata.get("annotations", {}), POD_CLAIM_ANNOTATION: entry},
        "ownerReferences": [owner],
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
