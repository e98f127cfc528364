"""Paths that are not resources: health checks, version, discovery and OpenAPI.

The start-up hooks of a real API server are not among the health checks.

Source: k8s.io/apiserver 0.37 ``pkg/server/healthz``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from dra_kit.apiserver import discovery, openapi
from dra_kit.apiserver.api import encode, encode_yaml
from dra_kit.apiserver.kinds.kind import KindRegistry
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
from dra_kit.apiserver.status_errors import method_not_allowed
from dra_kit.kubernetes.values.json import Object


def serve_non_resource(registry: KindRegistry, raw: web.BaseRequest) -> web.Response:
    """Return the response to a request for a path that is not a resource.

    Raises:
        StatusError: 404, 405 or 406.
    """
    if (answer := serve_health(raw)) is not None:
        return answer
    path = raw.rel_url.raw_path.rstrip("/") or "/"
    if path.startswith("/openapi/") and raw.method not in {"GET", "HEAD"}:
        raise method_not_allowed()
    if path == "/openapi/v3":
        # the API server sends the index of its documents as text
        return web.Response(text=json.dumps(openapi.openapi_index(registry)))
    if path == "/openapi/v2":
        if "protobuf" in raw.headers.get("Accept", ""):
            return web.Response(body=openapi.openapi_v2_protobuf(), headers={"Content-Type": openapi.PROTOBUF})
        return web.Response(body=openapi.openapi_v2_json(), headers={"Content-Type": JSON})
    if path.startswith("/openapi/v3/"):
        described = openapi.openapi_document(registry, path.removeprefix("/openapi/v3/"))
        if described is None:
            return web.Response(status=404, headers={"Content-Type": ""})
        return web.Response(body=encode(described), headers={"Content-Type": JSON})
    document = _discovery(registry, path, raw)
    if document is None:
        return page_not_found()
    kind = _AGGREGATED["as"] if document.get("kind") == _AGGREGATED["as"] else ""
    media_type = preferred_media_type(raw.headers.get("Accept", ""), kind)
    content_type = media_type
    if kind:
        content_type += "".join(f";{name}={value}" for name, value in _AGGREGATED.items())
    content = encode_yaml(document) if media_type == YAML else encode(document)
    return web.Response(body=content, headers={"Content-Type": content_type})


def page_not_found() -> web.Response:
    """Return the response to a request for a path or a group that is not served."""
    return web.Response(text="404 page not found\n", status=404)


def _discovery(registry: KindRegistry, path: str, raw: web.BaseRequest) -> Object | None:
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
            return discovery.version_info()
        case [("api" | "apis") as root]:
            if root == "api":
                _check_method(raw)
                check(accept, ACCEPTED)
            if _wants_aggregated(accept):
                return discovery.aggregated_discovery(registry, core=root == "api")
            return discovery.group_list(registry) if root == "apis" else discovery.core_versions(raw.host)
        case ["apis", name]:
            if name not in discovery.groups(registry):
                return None
            check_plain(accept)
            return discovery.group(registry, name)
        case ["api", version]:
            name = ""
        case ["apis", name, version] if name in discovery.groups(registry):
            pass
        case _:
            return None
    found = discovery.resource_list(registry, name, version)
    _check_method(raw)
    check(accept, ACCEPTED)
    check_plain(accept)
    return found


def _check_method(raw: web.BaseRequest) -> None:
    if raw.method != "GET":
        raise method_not_allowed()


def _paths(registry: KindRegistry) -> list[str]:
    paths = ["/api", "/api/v1", "/apis", *(f"/{name}" for name in _CHECKS), "/openapi/v2", "/openapi/v3", "/version"]
    for name, versions in discovery.groups(registry).items():
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
