"""What the API server tells about itself: health checks, version, discovery and OpenAPI.

Discovery lists which groups, versions and resources are served, and with which verbs: the kinds of the registry, the
tables of ``subresources.py`` and ``reviews.py``. The start-up hooks of a real API server are not among the health
checks.

Source: k8s.io/apiserver 0.37 ``pkg/server/healthz``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from dra_kit.apiserver import openapi
from dra_kit.apiserver.api import encode, encode_yaml
from dra_kit.apiserver.kinds.custom_resources import PLURAL as DEFINITIONS
from dra_kit.apiserver.kinds.kind import Kind, KindRegistry
from dra_kit.apiserver.requests import (
    ACCEPTED,
    JSON,
    YAML,
    Query,
    accept_clauses,
    check,
    check_plain,
    preferred_media_type,
)
from dra_kit.apiserver.reviews import REVIEWS
from dra_kit.apiserver.status_errors import StatusError, method_not_allowed, no_such_resource
from dra_kit.apiserver.subresources import STATUS_VERBS, SUBRESOURCES
from dra_kit.kubernetes.release import Change, KubernetesVersion, Release
from dra_kit.kubernetes.values.json import Object

VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_ORDER: Final = ("v1", "v1beta2", "v1beta1", "v1alpha3")


def version_info(version: KubernetesVersion) -> Object:
    """Return the document at ``/version``."""
    major, minor = map(str, version)
    return {
        "major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor,
        "minCompatibilityMajor": major, "minCompatibilityMinor": str(version.before.minor),
        "gitVersion": version.published, "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "gc", "platform": "linux/amd64",
    }  # fmt: skip


def groups(registry: KindRegistry) -> dict[str, list[str]]:
    """Return the served groups other than the core one, each with its versions, the preferred one first."""
    found: dict[str, dict[str, None]] = {review.group: {"v1": None} for review in REVIEWS}
    for kind in registry:
        if kind.group:
            found.setdefault(kind.group, {}).update(dict.fromkeys(kind.types))
    return {group: sorted(versions, key=_rank) for group, versions in sorted(found.items())}


def _rank(version: str) -> tuple[int, str]:
    return (_ORDER.index(version), "") if version in _ORDER else (len(_ORDER), version)


def group_document(registry: KindRegistry, name: str) -> Object:
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
        resources += [
            {"name": review.plural, "singularName": review.kind.lower(), "namespaced": review.namespaced,
             "kind": review.kind, "verbs": ["create"]}
            for review in REVIEWS if review.group == name
        ]  # fmt: skip
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
        yield {"name": f"{kind.plural}/status", "singularName": "", **scope, "verbs": list(STATUS_VERBS)}
    for name, subresource in SUBRESOURCES.get(kind.full_name, {}).items():
        other: Object = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
        if subresource.api_version:
            group_name, _, version = subresource.api_version.rpartition("/")
            other |= {"group": group_name, "version": version}
        yield other | {"kind": subresource.kind, "verbs": list(subresource.verbs)}


def _storage_hash(kind: Kind) -> str:
    group_name, _, version = kind.storage_api_version.rpartition("/")
    version = kind.discovered_storage or version
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


def serve_non_resource(registry: KindRegistry, raw: web.BaseRequest, release: Release) -> web.Response:
    """Return the response to a request for a path that is not a resource.

    Raises:
        StatusError: 404, 405 or 406.
    """
    if (answer := serve_health(raw, release)) is not None:
        return answer
    path = raw.rel_url.raw_path.rstrip("/") or "/"
    if path.startswith("/openapi/") and raw.method not in {"GET", "HEAD"}:
        raise method_not_allowed()
    if path == "/openapi/v3":
        # the API server sends the index of its documents as text
        return web.Response(text=json.dumps(openapi.openapi_index(registry, groups(registry), release)))
    if path == "/openapi/v2":
        if "protobuf" in raw.headers.get("Accept", ""):
            return web.Response(body=openapi.openapi_v2_protobuf(release), headers={"Content-Type": openapi.PROTOBUF})
        return web.Response(body=openapi.openapi_v2_json(release), headers={"Content-Type": JSON})
    if path.startswith("/openapi/v3/"):
        described = openapi.openapi_document(registry, groups(registry), path.removeprefix("/openapi/v3/"), release)
        if described is None:
            return web.Response(status=404, headers={"Content-Type": ""})
        return web.Response(body=encode(described), headers={"Content-Type": JSON})
    document = _discovery(registry, path, raw, release)
    if document is None:
        return page_not_found(release)
    kind = _AGGREGATED["as"] if document.get("kind") == _AGGREGATED["as"] else ""
    media_type = preferred_media_type(raw.headers.get("Accept", ""), kind)
    content_type = media_type
    if kind:
        content_type += "".join(f";{name}={value}" for name, value in _AGGREGATED.items())
    content = encode_yaml(document) if media_type == YAML else encode(document)
    return web.Response(body=content, headers={"Content-Type": content_type})


def page_not_found(release: Release) -> web.Response:
    """Return the response to a request for a path or a group that is not served.

    Raises:
        StatusError: it is this 404.
    """
    if release.has(Change.UNKNOWN_PATHS_GET_A_STATUS):
        raise StatusError(404, "NotFound", "404 page not found")
    return web.Response(text="404 page not found\n", status=404)


def _discovery(registry: KindRegistry, path: str, raw: web.BaseRequest, release: Release) -> Object | None:
    """Return a document; None if there is none at the path.

    The lists of groups and a group are answered whatever the method is.
    """
    accept = raw.headers.get("Accept", "")
    match path.split("/")[1:]:
        case [""]:
            return {"paths": _paths(registry)}
        case ["version"]:
            _check_method(raw)
            check(accept, (JSON,))
            return version_info(release.version)
        case [("api" | "apis") as root]:
            if root == "api":
                _check_method(raw)
                check(accept, ACCEPTED)
            if _wants_aggregated(accept):
                return aggregated_discovery(registry, core=root == "api")
            return group_list(registry) if root == "apis" else core_versions(raw.host)
        case ["apis", name]:
            if name not in groups(registry):
                return None
            check_plain(accept)
            return group_document(registry, name)
        case ["api", version]:
            name = ""
        case ["apis", name, version] if name in groups(registry):
            pass
        case _:
            return None
    found = resource_list(registry, name, version)
    _check_method(raw)
    check(accept, ACCEPTED)
    check_plain(accept)
    return found


def _check_method(raw: web.BaseRequest) -> None:
    if raw.method != "GET":
        raise method_not_allowed()


def _paths(registry: KindRegistry) -> list[str]:
    paths = ["/api", "/api/v1", "/apis", *(f"/{name}" for name in _CHECKS), "/openapi/v2", "/openapi/v3", "/version"]
    for name, versions in groups(registry).items():
        paths += [f"/apis/{name}", *(f"/apis/{name}/{version}" for version in versions)]
    return sorted(paths)


_AGGREGATED: Final = {"g": "apidiscovery.k8s.io", "v": "v2", "as": "APIGroupDiscoveryList"}


def _wants_aggregated(accept: str) -> bool:
    """Return whether a client accepts the aggregated format, which it gets then, in whatever order it names formats.

    Raises:
        StatusError: 406, the client takes nothing that we have.
    """
    clauses = (clause for clause in accept_clauses(accept) if clause.media_type in {JSON, YAML})
    if any(clause.parameters.items() >= _AGGREGATED.items() for clause in clauses):
        return True
    check_plain(accept)
    return False


_CHECKS: Final[Mapping[str, tuple[str, ...]]] = {
    "healthz": ("ping", "log", "etcd"),
    "livez": ("ping", "log", "etcd"),
    "readyz": ("ping", "log", "etcd", "informer-sync", "shutdown"),
}
"""What each path asks about; the server answers, so that all is well."""


def serve_health(raw: web.BaseRequest, release: Release) -> web.Response | None:
    """Return the response to a request with any method; None for another path.

    Raises:
        StatusError: 404.
    """
    _, name, *check = raw.rel_url.raw_path.split("/", 2)
    if name not in _CHECKS:
        return None
    if check and check[0] not in _CHECKS[name]:
        return page_not_found(release)
    query = Query.parse(raw.rel_url.raw_query_string)
    if check or "verbose" not in query.values:
        return web.Response(text="ok")
    return web.Response(text=_verbose(name, query.values.get("exclude", ())))


def _verbose(name: str, excluded: Sequence[str]) -> str:
    """Return one line for each check, and the result."""
    lines = [f"[+]{check}{' excluded:' if check in excluded else ''} ok\n" for check in _CHECKS[name]]
    unknown = [f'"{check}"' for check in sorted(set(excluded) - set(_CHECKS[name]))]
    if unknown:
        lines.append(f"warn: some health checks cannot be excluded: no matches for {', '.join(unknown)}\n")
    return "".join((*lines, f"{name} check passed\n"))
