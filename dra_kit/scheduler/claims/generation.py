"""Claims from templates: what kube-controller-manager's ResourceClaim controller (1.37) makes for a pod. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Final

from dra_kit.resource.pods import PodClaim, pod_claims
from dra_kit.scheduler.pods import owns
from dra_kit.values.json import ObjectView

POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"

# a generated name has 63 characters at most, five of them random
_GENERATE_NAME_LENGTH: Final = 57


def missing_claims(pod: ObjectView) -> list[PodClaim]:
    """Return the entries of the pod for which its status names no claim yet.

    A claim that was named and is gone is not made again, and none is made once the pod is being deleted.
    """
    if "deletionTimestamp" in pod["metadata"]:
        return []
    return [entry for entry in pod_claims(pod) if entry.claim is None]


def generated_claim(pod: ObjectView, entry: str, claims: Iterable[ObjectView]) -> ObjectView | None:
    """Return the claim that was generated for an entry of the pod earlier, whatever is in the pod's status."""
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
    """Return the ownerReference by which a pod controls a claim made for it."""
    metadata = pod["metadata"]
    return {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"], "controller": True}


def generate_name(pod: str, entry: str) -> str:
    """``<pod>-<entry>-``; where that is too long, both are cut in proportion and the last dash is left out."""
    name = f"{pod}-{entry}-"
    if len(name) <= _GENERATE_NAME_LENGTH:
        return name
    pod_part, entry_part = (part[: len(part) * _GENERATE_NAME_LENGTH // len(name)] for part in (pod, entry))
    return f"{pod_part}-{entry_part}"
