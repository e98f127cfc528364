"""What is no resource: health, versions, discovery and the schemas."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from dra_kit.apiserver.answers import method_not_allowed, no_such_resource, not_acceptable
from dra_kit.apiserver.api import encode
from dra_kit.apiserver.documents import discovery, health, openapi, openapi_v2
from dra_kit.apiserver.kinds.registry import Registry
from dra_kit.apiserver.requests import media


def document(registry: Registry, raw: web.BaseRequest) -> web.Response:
    """Return the answer to a request for a path that names no resource.

    Raises:
        Refusal: 404, 405 or 406.
    """
    if (answer := health.serve(raw)) is not None:
        return answer
    path = raw.rel_url.raw_path.rstrip("/") or "/"
    if raw.method not in {"GET", "HEAD"}:
        raise method_not_allowed()
    if path == "/openapi/v3":
        # the API server sends the index of its documents as text
        return web.Response(text=json.dumps(openapi.index(registry)))
    if path == "/openapi/v2":
        if "protobuf" in raw.headers.get("Accept", ""):
            return web.Response(body=openapi_v2.as_protobuf(), headers={"Content-Type": openapi_v2.PROTOBUF})
        return web.Response(body=openapi_v2.as_json(), headers={"Content-Type": media.JSON})
    if path.startswith("/openapi/v3/"):
        return _openapi(registry, path.removeprefix("/openapi/v3/"))
    document = _discovery(registry, path, raw)
    if document is None:
        return web.Response(text="404 page not found\n", status=404)
    content_type = media.JSON
    if document.get("kind") == "APIGroupDiscoveryList":
        content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    return web.Response(body=encode(document), headers={"Content-Type": content_type})


def _openapi(registry: Registry, path: str) -> web.Response:
    document = openapi.document(registry, path)
    if document is None:
        return web.Response(status=404, headers={"Content-Type": ""})
    return web.Response(body=encode(document), headers={"Content-Type": media.JSON})


def _discovery(registry: Registry, path: str, raw: web.BaseRequest) -> dict[str, Any] | None:
    match path.split("/")[1:]:
        case [""]:
            return {"paths": _paths(registry)}
        case ["version"]:
            media.check(raw.headers.get("Accept", ""), (media.JSON,))
            return discovery.version_info()
        case [("api" | "apis") as root]:
            if root == "api":
                media.check(raw.headers.get("Accept", ""), media.ACCEPTED)
            if _wants_aggregated(raw.headers.get("Accept", "")):
                return discovery.aggregated(registry, core=root == "api")
            return discovery.group_list(registry) if root == "apis" else discovery.core_versions(raw.host)
        case ["api", version]:
            media.check(raw.headers.get("Accept", ""), media.ACCEPTED)
            media.check_plain(raw.headers.get("Accept", ""))
            return _found(discovery.resource_list(registry, "", version))
        case ["apis", name]:
            media.check_plain(raw.headers.get("Accept", ""))
            return _found(discovery.group(registry, name))
        case ["apis", name, version]:
            media.check(raw.headers.get("Accept", ""), media.ACCEPTED)
            media.check_plain(raw.headers.get("Accept", ""))
            return _found(discovery.resource_list(registry, name, version))
    return None


def _paths(registry: Registry) -> list[str]:
    paths = ["/api", "/api/v1", "/apis", *health.PATHS, "/openapi/v2", "/openapi/v3", "/version"]
    for name, versions in discovery.groups(registry).items():
        paths += [f"/apis/{name}", *(f"/apis/{name}/{version}" for version in versions)]
    return sorted(paths)


def _found(document: dict[str, Any] | None) -> dict[str, Any]:
    if document is None:
        raise no_such_resource()
    return document


def _wants_aggregated(accept: str) -> bool:
    """Return whether the aggregated form is the first that the client asks for and we have.

    Raises:
        Refusal: 406, the client takes nothing that we have.
    """
    for clause in media.clauses(accept):
        if "as" in clause.parameters:
            wanted = (clause.media_type, clause.parameters["as"], clause.parameters.get("v"))
            if wanted == (media.JSON, "APIGroupDiscoveryList", "v2"):
                return True
        elif clause.media_type in {media.JSON, "*/*", "application/*", media.YAML}:
            return False
    if not accept:
        return False
    raise not_acceptable(media.ACCEPTED)
