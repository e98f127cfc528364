"""What a kubelet may write: its own node, mirror pods, the status of its pods, its slices, its lease, its pods' tokens.

The authorizer decides by names; this plugin looks at the objects.

Source: Kubernetes 1.37 ``plugin/pkg/admission/noderestriction``, k8s.io/kubelet 0.37 ``pkg/apis/well_known_labels.go``
and Kubernetes 1.37 ``pkg/api/pod``, ``HasAPIObjectReference``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from dra_kit.apiserver.api import AdmissionAttributes
from dra_kit.apiserver.authorization import AuthorizationAttributes
from dra_kit.apiserver.node_authorization import MIRROR, NODE_LEASES, node_of, spec_references
from dra_kit.apiserver.status_errors import forbidden_object, not_found
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.values.json import Object


def restrict_node(write: AdmissionAttributes) -> None:
    """Reject a write of a kubelet about what is not its node's.

    Raises:
        StatusError: 403, or 404 for a pod or node that does not exist.
    """
    user = write.request.user
    node = node_of(user)
    if node is None:
        return
    refusal: str | None = f"could not determine node from user {go_quote(user.name)}"
    if node:
        check = _CHECKS.get(write.kind.resource)
        refusal = check(write, node) if check is not None else None
    if refusal is not None:
        name = write.name or (write.obj or {"metadata": {}})["metadata"].get("generateName") or "Unknown"
        raise forbidden_object(write.kind.group, write.kind.plural, name, refusal)


def _pod(write: AdmissionAttributes, node: str) -> str | None:
    subresource = write.request.target.subresource
    if subresource == "status" and write.obj is not None and write.old is not None:
        return _pod_status(write.obj, write.old, node)
    if subresource == "eviction":
        if _existing_pod(write)["spec"].get("nodeName") != node:
            return f"node {node} can only evict pods with spec.nodeName set to itself"
        return None
    if subresource:
        return f"unexpected pod subresource {go_quote(subresource)}, only 'status' and 'eviction' are allowed"
    if write.operation == "DELETE":
        if _existing_pod(write)["spec"].get("nodeName") != node:
            return f"node {go_quote(node)} can only delete pods with spec.nodeName set to itself"
        return None
    if write.operation == "CREATE" and write.obj is not None:
        return _mirror_pod(write, write.obj, node)
    operation = go_quote(write.operation)
    return f"unexpected operation {operation}, node {go_quote(node)} can only create and delete mirror pods"


def _existing_pod(write: AdmissionAttributes) -> Object:
    """Return the pod that a path names; a deletion of a collection names none."""
    target = write.request.target
    found = write.api.lookup("pods", f"{target.namespace}/{target.name}")
    if found is None:
        raise not_found("", "pod", target.name)
    return found


def _pod_status(obj: Object, old: Object, node: str) -> str | None:
    who = f"node {go_quote(node)}"
    if old["spec"].get("nodeName") != node:
        return f"{who} can only {_UPDATE_STATUS}"
    if (obj["metadata"].get("labels") or {}) != (old["metadata"].get("labels") or {}):
        return f"{who} cannot update labels through pod status"
    new_status, old_status = obj.get("status") or {}, old.get("status") or {}
    for field, what in _FIXED_STATUS.items():
        if (new_status.get(field) or None) != (old_status.get(field) or None):
            return f"{who} cannot update {what}"
    return None


_UPDATE_STATUS: Final = "update pod status for pods with spec.nodeName set to itself"
_FIXED_STATUS: Final = {
    "resourceClaimStatuses": "resource claim statues",  # so spelled by Kubernetes
    "extendedResourceClaimStatus": "extended resource claim status",
    "nodeAllocatableResourceClaimStatuses": "node allocatable resource claim statuses",
}


def _mirror_pod(write: AdmissionAttributes, pod: Object, node: str) -> str | None:
    who = f"node {go_quote(node)}"
    if MIRROR not in (pod["metadata"].get("annotations") or {}):
        return f"pod does not have {go_quote(MIRROR)} annotation, {who} can only create mirror pods"
    spec = pod["spec"]
    if spec.get("nodeName") != node:
        return f"{who} can only create pods with spec.nodeName set to itself"
    owners = pod["metadata"].get("ownerReferences") or []
    if len(owners) > 1:
        return f"{who} can only create pods with a single owner reference set to itself"
    owner = owners[0] if owners else {}
    if (owner.get("apiVersion"), owner.get("kind"), owner.get("name")) != ("v1", "Node", node):
        return f"{who} can only create pods with an owner reference set to itself"
    if not owner.get("controller"):
        return f"{who} can only create pods with a controller owner reference set to itself"
    if owner.get("blockOwnerDeletion"):
        return f"{who} must not set blockOwnerDeletion on an owner reference"
    found = write.api.lookup("nodes", node)
    if found is None:
        raise not_found("", "node", node)
    uid = found["metadata"]["uid"]
    if owner.get("uid", "") != uid:
        return f"node {node} UID mismatch: expected {owner.get('uid', '')} got {uid}"
    kind = next(_referenced(spec), None)
    return f"{who} can not create pods that reference {kind}" if kind else None


def _referenced(spec: Object) -> Iterator[str]:
    """Yield the kinds of objects that a pod refers to, as Kubernetes names them."""
    if spec.get("serviceAccountName"):
        yield "serviceaccounts"
    plurals = {plural for plural, _ in spec_references(spec, "")}
    yield from (plural for plural in ("secrets", "configmaps") if plural in plurals)
    if spec.get("resourceClaims"):
        yield "resourceclaims"
    for volume in spec.get("volumes") or ():
        yield from (what for source, what in _VOLUMES.items() if volume.get(source) is not None)
        for item in (volume.get("projected") or {}).get("sources") or ():
            yield from (what for source, what in _PROJECTED.items() if item.get(source) is not None)


_VOLUMES: Final = {
    "csi": "csidrivers (via CSI volumes)",
    "glusterfs": "endpoints (via glusterFS volumes)",
    "persistentVolumeClaim": "persistentvolumeclaims",
    "ephemeral": "persistentvolumeclaims (via ephemeral volumes)",
    "azureFile": "secrets (via azureFile volumes)",
}
_PROJECTED: Final = {
    "serviceAccountToken": "serviceaccounts (via projected volumes)",
    "clusterTrustBundle": "clustertrustbundles",
    "podCertificate": "podcertificates",
}


def _node(write: AdmissionAttributes, node: str) -> str | None:
    who = f"node {go_quote(node)}"
    if write.name != node:
        return f"{who} is not allowed to modify node {go_quote(write.name)}"
    if write.obj is None:
        return None
    obj, old = write.obj, write.old
    changed = _changed_labels(obj, old or {"metadata": {}})
    forbidden = ", ".join(sorted(label for label in changed if _is_reserved(label)))
    if old is None and (obj.get("spec") or {}).get("configSource") is not None:
        return f"{who} is not allowed to create pods with a non-nil configSource"
    if old is None:
        return f"{who} is not allowed to set the following labels: {forbidden}" if forbidden else None
    spec, old_spec = obj.get("spec") or {}, old.get("spec") or {}
    if spec.get("configSource") not in (None, old_spec.get("configSource")):
        return f"{who} is not allowed to update configSource to a new non-nil configSource"
    if (spec.get("taints") or []) != (old_spec.get("taints") or []):
        return f"{who} is not allowed to modify taints"
    if (obj["metadata"].get("ownerReferences") or []) != (old["metadata"].get("ownerReferences") or []):
        return f"{who} is not allowed to modify ownerReferences"
    return f"is not allowed to modify labels: {forbidden}" if forbidden else None


def _changed_labels(obj: Object, old: Object) -> set[str]:
    labels, before = obj["metadata"].get("labels") or {}, old["metadata"].get("labels") or {}
    return {key for key, _ in labels.items() ^ before.items()}


_KUBELET_LABELS: Final = frozenset({
    "beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type", "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone", "kubernetes.io/arch",
    "kubernetes.io/hostname", "kubernetes.io/os", "node.kubernetes.io/instance-type", "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
})  # fmt: skip


def _is_reserved(label: str) -> bool:
    """Return whether a label could steer pods to a node, so that its kubelet may not set it."""
    domain = label.partition("/")[0] if "/" in label else ""

    def below(*parents: str) -> bool:
        return any(domain == parent or domain.endswith(f".{parent}") for parent in parents)

    if below("node-restriction.kubernetes.io"):
        return True
    allowed = label in _KUBELET_LABELS or below("kubelet.kubernetes.io", "node.kubernetes.io")
    return below("kubernetes.io", "k8s.io") and not allowed


def _slice(write: AdmissionAttributes, node: str) -> str | None:
    about = {"CREATE": write.obj, "DELETE": write.old}.get(write.operation)
    if about is None or about["spec"].get("nodeName") == node:
        return None
    return f"can only {write.operation.lower()} ResourceSlice with the same NodeName as the requesting node"


def _lease(write: AdmissionAttributes, node: str) -> str | None:
    if write.request.target.namespace != NODE_LEASES:
        return f"can only access leases in the {go_quote(NODE_LEASES)} system namespace"
    return None if write.name == node else "can only access node lease with the same name as the requesting node"


def _token(write: AdmissionAttributes, node: str) -> str | None:
    if write.request.target.subresource != "token" or write.obj is None:
        return None
    reference = write.obj["spec"].get("boundObjectRef") or {}
    name, uid = reference.get("name", ""), reference.get("uid", "")
    if not name or (reference.get("apiVersion"), reference.get("kind")) != ("v1", "Pod"):
        return "node requested token not bound to a pod"
    if not uid:
        return "node requested token with a pod binding without a uid"
    pod = write.api.lookup("pods", f"{write.request.target.namespace}/{name}")
    if pod is None:
        raise not_found("", "pod", name)
    if uid != pod["metadata"]["uid"]:
        return (
            f"the UID in the bound object reference ({uid}) does not match the UID in record. The object might have "
            "been deleted and then recreated"
        )
    if pod["spec"].get("nodeName") != node:
        return "node requested token bound to a pod scheduled on a different node"
    return _audience(write, pod, write.obj["spec"].get("audiences") or [])


def _audience(write: AdmissionAttributes, pod: Object, audiences: list[str]) -> str | None:
    """Return why a kubelet may not ask for the audiences: no volume of the pod needs them, no role allows them."""
    if len(audiences) > 1:
        return "node may only request 0 or 1 audiences"
    audience = audiences[0] if audiences else ""
    if any((source.get("audience") or "") == audience for source in _projected_tokens(pod)):
        return None
    target, user = write.request.target, write.request.user
    asked = AuthorizationAttributes(
        "request-serviceaccounts-token-audience", "", audience, "", target.namespace, target.name
    )
    if write.api.rbac.authorize(user, asked).allowed:
        return None
    return f"{user.name} is not authorized to request tokens for audience {go_quote(audience)}"


def _projected_tokens(pod: Object) -> Iterator[Mapping[str, Any]]:
    for volume in pod["spec"].get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            if source.get("serviceAccountToken") is not None:
                yield source["serviceAccountToken"]


_CHECKS: Final[Mapping[str, Callable[[AdmissionAttributes, str], str | None]]] = {
    "pods": _pod,
    "nodes": _node,
    "serviceaccounts": _token,
    "leases.coordination.k8s.io": _lease,
    "resourceslices.resource.k8s.io": _slice,
}
