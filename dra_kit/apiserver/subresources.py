"""Subresources other than the status: those of pods, finalize of namespaces, tokens of accounts, scale of workloads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final

from msgspec.structs import replace

from dra_kit.apiserver.answers import Refusal, bad_request, method_not_allowed, not_found
from dra_kit.apiserver.api import Answer, Api, Request
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.kinds.workloads import SCALABLE
from dra_kit.apiserver.storage import Stored
from dra_kit.apiserver.subresources.binding import bind
from dra_kit.apiserver.subresources.eviction import evict
from dra_kit.apiserver.subresources.scale import serve_scale
from dra_kit.apiserver.subresources.token_requests import request_token
from dra_kit.apiserver.verbs.bodies import NoJson, parse
from dra_kit.kubernetes.values.json import Object

_STREAMS: Final = ("attach", "exec", "portforward")
"""What the kubelet connects kubectl with a container for."""

SUBRESOURCES: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("pods", "binding"): frozenset({"create"}),
    ("pods", "eviction"): frozenset({"create"}),
    ("pods", "log"): frozenset({"get"}),
    **{("pods", name): frozenset({"create", "get"}) for name in _STREAMS},
    ("namespaces", "finalize"): frozenset({"update"}),
    ("serviceaccounts", "token"): frozenset({"create"}),
    **{(name, "scale"): frozenset({"get", "patch", "update"}) for name in SCALABLE},
}
"""(resource, subresource) -> verbs."""


_TYPES: Final = {
    "Eviction": "policy/v1.Eviction",
    "Namespace": "core/v1.Namespace",
    "TokenRequest": "authentication/v1.TokenRequest",
}


async def serve_subresource(api: Api, kind: Kind, request: Request) -> Answer | AsyncGenerator[bytes, None] | None:
    """Serve one of :data:`SUBRESOURCES`; a log as it comes, or None for one that there is not yet.

    Raises:
        Refusal: the object does not exist, or the request makes no sense.
    """
    target = request.target
    if target.subresource == "log":
        return _log(api, kind, request)
    if target.subresource == "scale":
        return await serve_scale(api, kind, request)
    stored = _stored(api, kind, request)
    match target.subresource:
        case "binding":
            return bind(api, kind, request, stored)
        case "eviction":
            return await evict(api, kind, request, stored, _body(request))
        case "finalize":
            return _finalize(api, kind, request, stored)
        case "token":
            return await request_token(api, request, stored, _body(request))
    raise Refusal(
        501,
        "NotImplemented",
        f"pods/{target.subresource} cannot be served: containers of the sandbox are local processes of the machine it "
        "runs on, without a file system or network of their own; run the command there, reach their ports at "
        "localhost, and read what they print with kubectl logs",
    )


def _stored(api: Api, kind: Kind, request: Request) -> Stored:
    target = request.target
    stored = api.storage.get(kind.resource, kind.key(target.namespace, target.name))
    if stored is None:
        raise not_found(kind.group, kind.plural, target.name)
    return stored


def _body(request: Request) -> Object:
    try:
        value = parse(request.body, request.content_type, _TYPES)
    except NoJson as error:
        raise bad_request(str(error)) from None
    if not isinstance(value, dict):
        raise bad_request("the body is no object")
    return value


def _finalize(api: Api, kind: Kind, request: Request, stored: Stored) -> Answer:
    """Take over the finalizers of a namespace's spec; without any a deleted namespace goes."""
    spec = {"finalizers": (_body(request).get("spec") or {}).get("finalizers") or []}
    changed = api.pruned(kind, {**stored.object, "spec": spec})
    key = stored.object["metadata"]["name"]
    metadata = changed["metadata"]
    if "deletionTimestamp" in metadata and not spec["finalizers"] and not metadata.get("finalizers"):
        api.storage.delete(kind.resource, key)
        obj = changed
    else:
        obj = api.storage.update(kind.resource, key, changed).object
    return Answer(api.wire(kind, obj, request.target.api_version), kind=kind, items=[obj])


def _log(api: Api, kind: Kind, request: Request) -> AsyncGenerator[bytes, None] | None:
    target = request.target
    if request.method == "HEAD":
        raise method_not_allowed()
    from dra_kit.apiserver.requests.pod_log import LogOptions, NoLog, container_of  # when somebody reads a log

    options = LogOptions.parse(request.query, target.name)
    pod = _stored(api, kind, request).object
    options = replace(options, container=container_of(pod, options.container))
    if api.pod_log is None:
        raise Refusal(501, "", "this cluster runs no containers, so that there are no logs")
    node = pod["spec"].get("nodeName")
    if not node:
        return None
    if api.lookup("nodes", node) is None:
        raise not_found("", "pods", node)
    try:
        return api.pod_log(pod, options)
    except NoLog as reason:
        raise bad_request(str(reason)) from None
