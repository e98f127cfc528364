"""Discovery documents: which groups, versions and resources are served, and with which verbs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_kit.apiserver.kinds.custom_resources import PLURAL as DEFINITIONS
from dra_kit.apiserver.kinds.kind import Kind, KindRegistry
from dra_kit.apiserver.kinds.workloads import SCALABLE
from dra_kit.apiserver.status_errors import no_such_resource
from dra_kit.kubernetes.values.json import Object

VERSION: Final = "v1.37.1"
VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_STATUS_VERBS: Final = ("get", "patch", "update")
_PROXY_VERBS: Final = ("create", "delete", "get", "patch", "update")
_ORDER: Final = ("v1", "v1beta2", "v1beta1", "v1alpha3")
SUBRESOURCES: Final[Mapping[str, tuple[tuple[str, str, str, tuple[str, ...]], ...]]] = {
    "nodes": (("proxy", "", "NodeProxyOptions", _PROXY_VERBS),),
    "pods": (
        ("attach", "", "PodAttachOptions", ("create", "get")),
        ("binding", "", "Binding", ("create",)),
        ("ephemeralcontainers", "", "Pod", _STATUS_VERBS),
        ("eviction", "policy/v1", "Eviction", ("create",)),
        ("exec", "", "PodExecOptions", ("create", "get")),
        ("log", "", "Pod", ("get",)),
        ("portforward", "", "PodPortForwardOptions", ("create", "get")),
        ("proxy", "", "PodProxyOptions", _PROXY_VERBS),
        ("resize", "", "Pod", _STATUS_VERBS),
    ),
    "services": (("proxy", "", "ServiceProxyOptions", _PROXY_VERBS),),
    "namespaces": (("finalize", "", "Namespace", ("update",)),),
    "serviceaccounts": (("token", "authentication.k8s.io/v1", "TokenRequest", ("create",)),),
    **dict.fromkeys(SCALABLE, (("scale", "autoscaling/v1", "Scale", ("get", "patch", "update")),)),
}
"""For each resource: (name, apiVersion of its objects where it is another, kind, verbs).

Some are refused with a reason, because they need a container runtime.
"""
REVIEWS: Final[Mapping[str, tuple[tuple[str, str, bool], ...]]] = {
    "authentication.k8s.io": (
        ("selfsubjectreviews", "SelfSubjectReview", False),
        ("tokenreviews", "TokenReview", False),
    ),
    "authorization.k8s.io": (
        ("localsubjectaccessreviews", "LocalSubjectAccessReview", True),
        ("selfsubjectaccessreviews", "SelfSubjectAccessReview", False),
        ("selfsubjectrulesreviews", "SelfSubjectRulesReview", False),
        ("subjectaccessreviews", "SubjectAccessReview", False),
    ),
}
"""Kinds that are answered and not stored: (plural, kind, namespaced), all in v1."""


def version_info() -> Object:
    """Return the document at ``/version``."""
    major, minor, _ = VERSION.removeprefix("v").split(".")
    return {
        "major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor,
        "minCompatibilityMajor": major, "minCompatibilityMinor": str(int(minor) - 1), "gitVersion": VERSION,
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "",
        "compiler": "gc", "platform": "linux/amd64",
    }  # fmt: skip


def groups(registry: KindRegistry) -> dict[str, list[str]]:
    """Return the served groups other than the core one, each with its versions, the preferred one first."""
    found: dict[str, dict[str, None]] = {group: {"v1": None} for group in REVIEWS}
    for kind in registry:
        if kind.group:
            found.setdefault(kind.group, {}).update(dict.fromkeys(kind.types))
    return {group: sorted(versions, key=_rank) for group, versions in sorted(found.items())}


def _rank(version: str) -> tuple[int, str]:
    return (_ORDER.index(version), "") if version in _ORDER else (len(_ORDER), version)


def group(registry: KindRegistry, name: str) -> Object:
    """Return ``APIGroup``.

    Raises:
        StatusError: 404.
    """
    versions = groups(registry).get(name)
    if versions is None:
        raise no_such_resource()
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def _group(name: str, versions: list[str]) -> Object:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def group_list(registry: KindRegistry) -> Object:
    """Return ``APIGroupList``."""
    found = [_group(name, versions) for name, versions in groups(registry).items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def core_versions(address: str) -> Object:
    """Return ``APIVersions`` of the core group."""
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def resource_list(registry: KindRegistry, name: str, version: str) -> Object:
    """Return ``APIResourceList`` of a group's version.

    Raises:
        StatusError: 404.
    """
    served = (kind for kind in registry if kind.group == name and version in kind.types)
    resources = [resource for kind in served for resource in _resources(kind)]
    if version == "v1":
        for plural, kind_name, namespaced in REVIEWS.get(name, ()):
            resources.append(
                {"name": plural, "singularName": kind_name.lower(), "namespaced": namespaced, "kind": kind_name,
                 "verbs": ["create"]}
            )  # fmt: skip
    if not resources:
        raise no_such_resource()
    resources.sort(key=lambda resource: resource["name"])
    api_version = f"{name}/{version}" if name else version
    typed = {"kind": "APIResourceList", "apiVersion": "v1"} if name else {"kind": "APIResourceList"}
    return {**typed, "groupVersion": api_version, "resources": resources}


def _resources(kind: Kind) -> Iterator[Object]:
    scope = {"namespaced": kind.namespaced, "kind": kind.kind}
    verbs = [verb for verb in VERBS if kind.collection_deletion or verb != "deletecollection"]
    singular = kind.singular_name or kind.kind.lower()
    found: Object = {"name": kind.plural, "singularName": singular, **scope, "verbs": verbs}
    if kind.short_names:
        found["shortNames"] = list(kind.short_names)
    if kind.categories:
        found["categories"] = list(kind.categories)
    yield found | {"storageVersionHash": _storage_hash(kind)}
    if kind.status:
        yield {"name": f"{kind.plural}/status", "singularName": "", **scope, "verbs": list(_STATUS_VERBS)}
    for name, api_version, kind_name, allowed in SUBRESOURCES.get(kind.full_name, ()):
        other: Object = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
        if api_version:
            group_name, _, version = api_version.rpartition("/")
            other |= {"group": group_name, "version": version}
        yield other | {"kind": kind_name, "verbs": list(allowed)}


def _storage_hash(kind: Kind) -> str:
    group_name, _, version = kind.storage_api_version.rpartition("/")
    if kind.resource == DEFINITIONS:
        version = "v1beta1"  # the version in which Kubernetes still stores them
    digest = hashlib.sha256(f"{group_name}/{version}/{kind.kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def aggregated_discovery(registry: KindRegistry, *, core: bool) -> Object:
    """Return ``APIGroupDiscoveryList``: everything of ``/api`` or of ``/apis`` in one document."""
    served = {"": ["v1"]} if core else groups(registry)
    items = []
    for name, versions in served.items():
        entries = [
            {"version": version, "resources": list(_aggregated_resources(registry, name, version)),
             "freshness": "Current"}
            for version in versions
        ]  # fmt: skip
        items.append({"metadata": {"name": name} if name else {}, "versions": entries})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_resources(registry: KindRegistry, name: str, version: str) -> Iterator[Object]:
    by_name: dict[str, dict[str, Any]] = {}
    for resource in resource_list(registry, name, version)["resources"]:
        plural, _, sub = resource["name"].partition("/")
        kind = {"group": resource.get("group", ""), "version": resource.get("version", ""), "kind": resource["kind"]}
        if sub:
            entry = {"subresource": sub, "responseKind": kind, "verbs": resource["verbs"]}
            by_name[plural].setdefault("subresources", []).append(entry)
            continue
        by_name[plural] = found = {
            "resource": plural,
            "responseKind": kind,
            "scope": "Namespaced" if resource["namespaced"] else "Cluster",
            "singularResource": resource["singularName"],
            "verbs": resource["verbs"],
        }
        found |= {key: resource[key] for key in ("shortNames", "categories") if key in resource}
    yield from by_name.values()
