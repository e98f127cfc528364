"""What a kubelet may do: read what its pods refer to, write its node, its pods' status, its slices, lease and tokens.

A kubelet is a user ``system:node:<name>`` of the group ``system:nodes``. What it may not do by these rules, roles may
still allow. The limits that need the object of a write are in :mod:`dra_kit.apiserver.admission.node_restriction`.

Source: Kubernetes 1.37 ``plugin/pkg/auth/authorizer/node`` and ``pkg/auth/nodeidentifier``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from dra_kit.apiserver.authentication import NODES, User
from dra_kit.apiserver.authorization import (
    AuthorizationAttributes,
    AuthorizationDecision,
    Rule,
    builtin_objects,
    rule_allows,
)
from dra_kit.kubernetes.resource.field_errors import go_quote
from dra_kit.kubernetes.values.json import Object

NODE_LEASES: Final = "kube-node-lease"
"""The namespace of the leases of nodes."""
MIRROR: Final = "kubernetes.io/config.mirror"
"""The annotation of a pod that stands for a static pod of a kubelet."""
_PREFIX: Final = "system:node:"
_RESOURCE_GROUP: Final = "resource.k8s.io"
_OWN_VERBS: Final = frozenset({"get", "create", "update", "patch", "delete"})


def node_of(user: User) -> str | None:
    """Return the node whose kubelet a user is: empty if the user does not name it, None for other users."""
    if NODES not in user.groups or not user.name.startswith(_PREFIX):
        return None
    return user.name.removeprefix(_PREFIX)


class NodeAuthorizer:
    """Allows kubelets what they need.

    Args:
        lookup: returns an object by resource (``<plural>.<group>``) and key (``<namespace>/<name>`` or ``<name>``).
        listed: returns all objects of a resource whose keys have a prefix, in order.
    """

    def __init__(
        self, lookup: Callable[[str, str], Object | None], listed: Callable[[str, str], Iterable[Object]]
    ) -> None:
        self._lookup, self._listed = lookup, listed

    def authorize(self, user: User, attributes: AuthorizationAttributes) -> AuthorizationDecision:
        """Return whether a user is a kubelet that may do it; no reason for other users."""
        node = node_of(user)
        if node is None:
            return AuthorizationDecision(allowed=False)
        refusal = self._refusal(node, attributes) if node else f"unknown node for user {go_quote(user.name)}"
        if refusal is None:
            return AuthorizationDecision(allowed=True)
        return AuthorizationDecision(allowed=False, reason=f"node: {refusal}" if refusal else "")

    def _refusal(self, node: str, asked: AuthorizationAttributes) -> str | None:
        """Return why a kubelet may not do it, which may be empty; None if it may."""
        match "" if asked.is_path else f"{asked.resource}.{asked.group}".rstrip("."):
            case "secrets" | "configmaps":
                return self._read(node, asked)
            case "persistentvolumeclaims" if asked.subresource == "status":
                if asked.verb not in {"update", "patch"}:
                    return "can only get/update/patch this type"
                return self._related(node, asked)
            case (
                "persistentvolumeclaims"
                | "persistentvolumes"
                | "resourceclaims.resource.k8s.io"
                | "volumeattachments.storage.k8s.io"
            ):
                return self._get(node, asked)
            case "serviceaccounts":
                return self._service_account(node, asked)
            case "leases.coordination.k8s.io" if asked.namespace != NODE_LEASES and asked.verb in _OWN_VERBS:
                return f"can only access leases in the {go_quote(NODE_LEASES)} system namespace"
            case "leases.coordination.k8s.io":
                return _own(node, asked, "node lease", "a node lease")
            case "csinodes.storage.k8s.io":
                return (
                    "cannot authorize CSINode subresources"
                    if asked.subresource
                    else _own(node, asked, "CSINode", "a CSINode")
                )
            case "resourceslices.resource.k8s.io":
                return self._slice(node, asked)
            case "nodes":
                return _node(node, asked)
            case "pods":
                return self._pod(node, asked)
        return None if any(rule_allows(rule, asked) for rule in _node_rules()) else ""

    def _read(self, node: str, asked: AuthorizationAttributes) -> str | None:
        if asked.verb not in {"get", "list", "watch"}:
            return "can only read resources of this type"
        if asked.subresource:
            return "cannot read subresource"
        return self._related(node, asked) if asked.namespace else "can only read namespaced object of this type"

    def _get(self, node: str, asked: AuthorizationAttributes) -> str | None:
        if asked.verb != "get":
            return "can only get individual resources of this type"
        return "cannot get subresource" if asked.subresource else self._related(node, asked)

    def _service_account(self, node: str, asked: AuthorizationAttributes) -> str | None:
        if asked.verb == "get" and not asked.subresource:
            return self._read(node, asked)
        if asked.verb != "create" or not asked.name:
            return "can only create tokens for individual service accounts"
        if asked.subresource != "token":
            return "can only create token subresource of serviceaccount"
        return self._related(node, asked)

    def _slice(self, node: str, asked: AuthorizationAttributes) -> str | None:
        if asked.subresource:
            return "cannot authorize ResourceSlice subresources"
        match asked.verb:
            case "create":
                return None
            case "get" | "update" | "patch" | "delete":
                return self._related(node, asked)
            case "watch" | "list" | "deletecollection":
                if ("spec.nodeName", node) in asked.selected_fields:
                    return None
                return "can only list/watch/deletecollection resourceslices with nodeName field selector"
        return (
            "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, "
            "delete, deletecollection"
        )

    def _pod(self, node: str, asked: AuthorizationAttributes) -> str | None:
        match asked.subresource, asked.verb:
            case "", "get":
                return self._related(node, asked)
            case "", "list" | "watch":
                if ("spec.nodeName", node) in asked.selected_fields:
                    return None
                if asked.name:
                    return self._related(node, asked)
                return "can only list/watch pods with spec.nodeName field selector"
            case ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create"):
                return None
        return ""

    def _related(self, node: str, asked: AuthorizationAttributes) -> str | None:
        """Return why an object does not belong to a node: no pod of the node refers to it."""
        if not asked.name:
            return "No Object name found"
        if self._is_related(node, asked):
            return None
        return f"no relationship found between node '{node}' and this object"

    def _is_related(self, node: str, asked: AuthorizationAttributes) -> bool:
        name, namespace = asked.name, asked.namespace
        match asked.resource:
            case "resourceslices":
                found = self._lookup(f"resourceslices.{_RESOURCE_GROUP}", name)
                return found is not None and found["spec"].get("nodeName") == node
            case "pods":
                pod = self._lookup("pods", f"{namespace}/{name}")
                return pod is not None and pod["spec"].get("nodeName") == node
        pods = (pod for pod in self._listed("pods", f"{namespace}/") if pod["spec"].get("nodeName") == node)
        return any((asked.resource, name) in references(pod) for pod in pods) if namespace else False


@cache
def _node_rules() -> tuple[Rule, ...]:
    """Return the rules of ``system:node`` in a new cluster; kubelets have them whatever becomes of that role."""
    objects = builtin_objects()
    role = next(obj for obj in objects if (obj["kind"], obj["name"]) == ("ClusterRole", "system:node"))
    return tuple(role["rules"])


def _own(node: str, asked: AuthorizationAttributes, what: str, one: str) -> str | None:
    """Return why a kubelet may not do it with an object that must have its node's name."""
    if asked.verb not in _OWN_VERBS:
        return f"can only get, create, update, patch, or delete {one}"
    if asked.verb != "create" and asked.name != node:  # the name of a new one is in its body
        return f"can only access {what} with the same name as the requesting node"
    return None


def _node(node: str, asked: AuthorizationAttributes) -> str | None:
    match asked.subresource, asked.verb:
        case ("", "create" | "update" | "patch") | ("status", "update" | "patch"):
            return None
        case "", "get" | "list" | "watch":
            if asked.name == node:
                return None
            what = f"'{asked.name}'" if asked.name else "all nodes"
            return f"node '{node}' cannot read {what}, only its own Node object"
    return ""


def references(pod: Object) -> set[tuple[str, str]]:
    """Return the objects in a pod's namespace that the pod refers to: plural and name; nothing for a mirror pod."""
    if MIRROR in (pod["metadata"].get("annotations") or {}):
        return set()
    spec, status = pod["spec"], pod.get("status") or {}
    found = set(spec_references(spec, pod["metadata"]["name"]))
    found.add(("serviceaccounts", spec.get("serviceAccountName") or ""))
    generated = {entry["name"]: entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or ()}
    for claim in spec.get("resourceClaims") or ():
        found.add(("resourceclaims", claim.get("resourceClaimName") or generated.get(claim["name"]) or ""))
    extended = status.get("extendedResourceClaimStatus") or {}
    found.add(("resourceclaims", extended.get("resourceClaimName") or ""))
    return {reference for reference in found if reference[1]}


def spec_references(spec: Object, pod: str) -> Iterator[tuple[str, str]]:
    """Yield plural and name of the Secrets, ConfigMaps and volume claims in the specification of a pod of this name."""
    yield from ((plural, name) for plural, name in _spec_references(spec, pod) if name)


def _spec_references(spec: Object, pod: str) -> Iterator[tuple[str, str]]:
    yield from (("secrets", item.get("name") or "") for item in spec.get("imagePullSecrets") or ())
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind) or ():
            for source in container.get("envFrom") or ():
                yield "secrets", (source.get("secretRef") or {}).get("name") or ""
                yield "configmaps", (source.get("configMapRef") or {}).get("name") or ""
            for variable in container.get("env") or ():
                source = variable.get("valueFrom") or {}
                yield "secrets", (source.get("secretKeyRef") or {}).get("name") or ""
                yield "configmaps", (source.get("configMapKeyRef") or {}).get("name") or ""
    for volume in spec.get("volumes") or ():
        yield "secrets", _volume_secret(volume)
        yield "configmaps", (volume.get("configMap") or {}).get("name") or ""
        for source in (volume.get("projected") or {}).get("sources") or ():
            yield "secrets", (source.get("secret") or {}).get("name") or ""
            yield "configmaps", (source.get("configMap") or {}).get("name") or ""
        yield "persistentvolumeclaims", (volume.get("persistentVolumeClaim") or {}).get("claimName") or ""
        if volume.get("ephemeral") is not None:
            yield "persistentvolumeclaims", f"{pod}-{volume['name']}"


def _volume_secret(volume: Mapping[str, Any]) -> str:
    """Return the Secret of a volume that is one, or of a driver that needs one."""
    if name := (volume.get("secret") or {}).get("secretName"):
        return str(name)
    reference = (volume.get("csi") or {}).get("nodePublishSecretRef") or {}
    return str(reference.get("name") or "")
