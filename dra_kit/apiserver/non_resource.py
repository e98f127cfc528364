"""Paths that are not resources: health checks, version, discovery and OpenAPI.

The start-up hooks of a real API server are not among the health checks.

Source: k8s.io/apiserver 0.37 ``pkg/server/healthz``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from dra_kit.apiserver import discovery, openapi
from dra_kit.apiserver.api import encode
from dra_kit.apiserver.kinds.kind import KindRegistry
from dra_kit.apiserver.openapi import PROTOBUF, openapi_v2_json, openapi_v2_protobuf
from dra_kit.apiserver.requests import ACCEPTED, JSON, YAML, Query, accept_clauses, check, check_plain
from dra_kit.apiserver.status_errors import method_not_allowed, no_such_resource, not_acceptable


def serve_non_resource(registry: KindRegistry, raw: web.BaseRequest) -> web.Response:
    """Return the response to a request for a path that is not a resource.

    Raises:
        StatusError: 404, 405 or 406.
    """
    if (answer := serve_health(raw)) is not None:
        return answer
    path = raw.rel_url.raw_path.rstrip("/") or "/"
    if raw.method not in {"GET", "HEAD"}:
        raise method_not_allowed()
    if path == "/openapi/v3":
        # the API server sends the index of its documents as text
        return web.Response(text=json.dumps(openapi.openapi_index(registry)))
    if path == "/openapi/v2":
        if "protobuf" in raw.headers.get("Accept", ""):
            return web.Response(body=openapi_v2_protobuf(), headers={"Content-Type": PROTOBUF})
        return web.Response(body=openapi_v2_json(), headers={"Content-Type": JSON})
    if path.startswith("/openapi/v3/"):
        return _openapi(registry, path.removeprefix("/openapi/v3/"))
    document = _discovery(registry, path, raw)
    if document is None:
        return web.Response(text="404 page not found\n", status=404)
    content_type = JSON
    if document.get("kind") == "APIGroupDiscoveryList":
        content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    return web.Response(body=encode(document), headers={"Content-Type": content_type})


def _openapi(registry: KindRegistry, path: str) -> web.Response:
    document = openapi.openapi_document(registry, path)
    if document is None:
        return web.Response(status=404, headers={"Content-Type": ""})
    return web.Response(body=encode(document), headers={"Content-Type": JSON})


def _discovery(registry: KindRegistry, path: str, raw: web.BaseRequest) -> dict[str, Any] | None:
    match path.split("/")[1:]:
        case [""]:
            return {"paths": _paths(registry)}
        case ["version"]:
            check(raw.headers.get("Accept", ""), (JSON,))
            return discovery.version_info()
        case [("api" | "apis") as root]:
            if root == "api":
                check(raw.headers.get("Accept", ""), ACCEPTED)
            if _wants_aggregated(raw.headers.get("Accept", "")):
                return discovery.aggregated_discovery(registry, core=root == "api")
            return discovery.group_list(registry) if root == "apis" else discovery.core_versions(raw.host)
        case ["api", version]:
            check(raw.headers.get("Accept", ""), ACCEPTED)
            check_plain(raw.headers.get("Accept", ""))
            return _found(discovery.resource_list(registry, "", version))
        case ["apis", name]:
            check_plain(raw.headers.get("Accept", ""))
            return _found(discovery.group(registry, name))
        case ["apis", name, version]:
            check(raw.headers.get("Accept", ""), ACCEPTED)
            check_plain(raw.headers.get("Accept", ""))
            return _found(discovery.resource_list(registry, name, version))
    return None


def _paths(registry: KindRegistry) -> list[str]:
    paths = ["/api", "/api/v1", "/apis", *PATHS, "/openapi/v2", "/openapi/v3", "/version"]
    for name, versions in discovery.groups(registry).items():
        paths += [f"/apis/{name}", *(f"/apis/{name}/{version}" for version in versions)]
    return sorted(paths)


def _found(document: dict[str, Any] | None) -> dict[str, Any]:
    if document is None:
        raise no_such_resource()
    return document


def _wants_aggregated(accept: str) -> bool:
    """Return whether the aggregated format is the first acceptable one.

    Raises:
        StatusError: 406, the client takes nothing that we have.
    """
    for clause in accept_clauses(accept):
        if "as" in clause.parameters:
            wanted = (clause.media_type, clause.parameters["as"], clause.parameters.get("v"))
            if wanted == (JSON, "APIGroupDiscoveryList", "v2"):
                return True
        elif clause.media_type in {JSON, "*/*", "application/*", YAML}:
            return False
    if not accept:
        return False
    raise not_acceptable(ACCEPTED)


_CHECKS: Final[Mapping[str, tuple[str, ...]]] = {
    "healthz": ("ping", "log", "etcd"),
    "livez": ("ping", "log", "etcd"),
    "readyz": ("ping", "log", "etcd", "informer-sync", "shutdown"),
}
"""What each path asks about; the server answers, so that all is well."""
PATHS: Final = tuple(f"/{name}" for name in _CHECKS)


def serve_health(raw: web.BaseRequest) -> web.Response | None:
    """Return the response to a request with any method; None for another path."""
    _, name, *check = raw.rel_url.raw_path.split("/", 2)
    if name not in _CHECKS:
        return None
    if check and check[0] not in _CHECKS[name]:
        return web.Response(text="404 page not found\n", status=404)
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
