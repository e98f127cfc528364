"""Subresources other than ``status``.

No disruption budget is looked at.

Sources: Kubernetes 1.37 ``pkg/registry/core/pod/storage`` and ``pkg/apis/core/validation``, ``ValidatePodBinding``;
Kubernetes 1.37 ``pkg/registry/core/pod/storage/eviction.go``; Kubernetes 1.37
``pkg/registry/core/serviceaccount/storage/token.go`` and ``pkg/apis/authentication/validation``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec.structs import replace

from dra_kit.apiserver import discovery
from dra_kit.apiserver.api import AdmissionAttributes, Api, ApiRequest, ApiResponse, created, encode, now, time_text
from dra_kit.apiserver.authentication import AUDIENCE, DEFAULT_SECONDS
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.pod_log import PodLogOptions, PodLogUnavailable, requested_container
from dra_kit.apiserver.requests import Target, WriteOptions
from dra_kit.apiserver.scale import serve_scale
from dra_kit.apiserver.status_errors import (
    StatusError,
    bad_request,
    conflict,
    invalid_object,
    method_not_allowed,
    not_found,
)
from dra_kit.apiserver.storage import StoredObject
from dra_kit.apiserver.verbs.decoding import BodyParseError, parse_body, read_object
from dra_kit.apiserver.verbs.delete import DeleteOptions, check_preconditions, delete_stored
from dra_kit.apiserver.verbs.write import check_namespace, precondition_failed
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import ErrorKind, FieldError, invalid, required
from dra_kit.kubernetes.resource.schema.types import TypeMismatch, decode
from dra_kit.kubernetes.values.json import Object

SUBRESOURCES: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    (resource, name): frozenset(verbs)
    for resource, entries in discovery.SUBRESOURCES.items()
    for name, _, _, verbs in entries
}
"""(resource, subresource) -> verbs."""
_TYPES: Final = {
    "Eviction": "policy/v1.Eviction",
    "Namespace": "core/v1.Namespace",
    "TokenRequest": "authentication/v1.TokenRequest",
}


async def serve_subresource(
    api: Api, kind: Kind, request: ApiRequest
) -> ApiResponse | AsyncGenerator[bytes, None] | None:
    """Serve one of :data:`SUBRESOURCES`; a log is streamed, None if it does not exist yet.

    Raises:
        StatusError: the object does not exist, or the request makes no sense.
    """
    target = request.target
    if target.subresource == "log":
        return _log(api, kind, request)
    if target.subresource == "scale":
        return await serve_scale(api, kind, request)
    if target.subresource == "binding":
        return await bind_pod(api, kind, request)
    if target.subresource == "eviction":
        return await evict_pod(api, kind, request, _body(request))
    stored = api.stored(kind, target)
    match target.subresource:
        case "finalize":
            return _finalize(api, kind, request, stored)
        case "token":
            return await request_token(api, request, stored, _body(request))
        case "ephemeralcontainers" | "resize" if request.method == "GET":
            pod = stored.object
            return ApiResponse(api.wire(kind, pod, target.api_version), kind=kind, items=[pod])
        case "resize":
            cause = "the sandbox does not limit the resources of containers; create the pod again with other ones"
            raise _unserved(target, cause)
    raise _unserved(
        target,
        "containers of the sandbox are local processes of the machine it runs on, without a file system or network of "
        "their own; run the command there, reach their ports at localhost, and read what they print with kubectl logs",
    )


def _unserved(target: Target, cause: str) -> StatusError:
    return StatusError(501, "NotImplemented", f"{target.plural}/{target.subresource} cannot be served: {cause}")


def _body(request: ApiRequest) -> Object:
    try:
        value = parse_body(request.body, request.content_type, _TYPES)
    except BodyParseError as error:
        raise bad_request(str(error)) from None
    if not isinstance(value, dict):
        raise bad_request("the body is not an object")
    return value


def _finalize(api: Api, kind: Kind, request: ApiRequest, stored: StoredObject) -> ApiResponse:
    """Store the finalizers of a namespace's spec; a deleted namespace without any is removed."""
    spec = {"finalizers": (_body(request).get("spec") or {}).get("finalizers") or []}
    changed = api.pruned(kind, {**stored.object, "spec": spec})
    key = stored.object["metadata"]["name"]
    metadata = changed["metadata"]
    if "deletionTimestamp" in metadata and not spec["finalizers"] and not metadata.get("finalizers"):
        api.storage.delete(kind.resource, key)
        obj = changed
    else:
        obj = api.storage.update(kind.resource, key, changed).object
    return ApiResponse(api.wire(kind, obj, request.target.api_version), kind=kind, items=[obj])


def _log(api: Api, kind: Kind, request: ApiRequest) -> AsyncGenerator[bytes, None] | None:
    target = request.target
    if request.method == "HEAD":
        raise method_not_allowed()
    options = PodLogOptions.parse(request.query, target.name)
    pod = api.stored(kind, target).object
    options = replace(options, container=requested_container(pod, options.container))
    if api.pod_log is None:
        raise StatusError(501, "", "this cluster runs no containers, so it has no logs")
    node = pod["spec"].get("nodeName")
    if not node:
        return None
    if api.lookup("nodes", node) is None:
        raise not_found("", "pods", node)
    try:
        return api.pod_log(pod, options)
    except PodLogUnavailable as reason:
        raise bad_request(str(reason)) from None


_BINDING: Final = Kind("", "pods", "Binding", True, {"v1": "core/v1.Binding"})


async def bind_pod(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Set the node of a pod.

    Raises:
        StatusError: the pod is another than the binding means, or can have no node now.
    """
    options = WriteOptions.parse(request.query, "CreateOptions", request.agent)
    context = api.context(request)
    given = read_object(request, _BINDING, options.field_validation, context)
    given |= {"kind": "Binding", "apiVersion": "v1"}
    write = AdmissionAttributes(api, _BINDING, request, options.dry_run, "CREATE", given, None)
    binding = await api.admission.mutate(write, context.warnings)
    _check(binding, request)
    await api.admission.review(replace(write, obj=binding), context.warnings)
    stored = api.stored(kind, request.target)
    pod, metadata = stored.object, binding["metadata"]
    name = pod["metadata"]["name"]
    for field, shown in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        given, real = metadata.get(field), pod["metadata"][field]
        if given and given != real:
            raise precondition_failed(kind, kind.key(request.target.namespace, name), shown, given, real)
    if (cause := _hindrance(pod)) is not None:
        raise conflict("", "pods/binding", name, cause)
    if not options.dry_run:
        api.storage.update(kind.resource, kind.key(request.target.namespace, name), _bound_pod(pod, binding))
    return created(context.warnings)


def _check(binding: Object, request: ApiRequest) -> None:
    check_namespace(binding, request)
    if binding["metadata"].get("name") != request.target.name:
        raise bad_request("name in URL does not match name in Binding object")
    errors = list(map(str, _target_errors(binding.get("target") or {})))
    if errors:
        raise StatusError(500, "", errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]")


def _target_errors(target: Mapping[str, Any]) -> list[FieldError]:
    errors: list[FieldError] = []
    if target.get("kind") not in {None, "", "Node"}:
        detail = 'supported values: "Node", "<empty>"'
        errors.append(FieldError("target.kind", ErrorKind.UNSUPPORTED, target["kind"], detail))
    if not target.get("name"):
        errors.append(required("target.name"))
    else:
        errors += [invalid("target.name", target["name"], text) for text in names.dns_subdomain(target["name"])]
    return errors


def _hindrance(pod: Object) -> str | None:
    """Return why a pod cannot be bound."""
    name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
    if "deletionTimestamp" in pod["metadata"]:
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if node:
        return f'pod {name} is already assigned to node "{node}"'
    return f"pod {name} has non-empty .spec.schedulingGates" if pod["spec"].get("schedulingGates") else None


def _bound_pod(pod: Object, binding: Object) -> Object:
    """Return the pod with its node, and with the labels and annotations of the binding."""
    # a pod that has its node is nominated for none (ClearingNominatedNodeNameAfterBinding)
    status = {name: value for name, value in (pod.get("status") or {}).items() if name != "nominatedNodeName"}
    status["conditions"] = with_true_condition(status, "PodScheduled")
    metadata = dict(pod["metadata"])
    for field in ("labels", "annotations"):
        if added := binding["metadata"].get(field):
            metadata[field] = {**(metadata.get(field) or {}), **added}
    spec = {**pod["spec"], "nodeName": binding["target"]["name"]}
    return {**pod, "metadata": metadata, "spec": spec, "status": status}


def with_true_condition(status: Object, type_: str, **reason: str) -> list[Any]:
    """Return the conditions of a status with a true one added, or replaced if its type exists."""
    conditions = status.get("conditions") or []
    condition = {"type": type_, "status": "True", "lastProbeTime": None, "lastTransitionTime": now(), **reason}
    before = next((item for item in conditions if item.get("type") == type_), None)
    if before is None:
        return [*conditions, condition]
    if before.get("status") == "True":
        condition["lastTransitionTime"] = before.get("lastTransitionTime")
    return [condition if item is before else item for item in conditions]


_EVICTION: Final = Kind("", "pods", "Eviction", True, {"v1": "policy/v1.Eviction"})


async def evict_pod(api: Api, kind: Kind, request: ApiRequest, body: Object) -> ApiResponse:
    """Mark a pod with the condition ``DisruptionTarget``, and delete it.

    Raises:
        StatusError: the body is not an Eviction of this pod, or the pod may not be deleted.
    """
    if body.get("kind", "Eviction") != "Eviction":
        what = f'{body["kind"]} in version "{body.get("apiVersion", "")}"'
        raise bad_request(f"{what} cannot be handled as a Eviction: unknown conversion")
    dry_run = WriteOptions.parse(request.query, "CreateOptions", request.agent).dry_run
    context = api.context(request)
    try:
        given: Object = {"metadata": {}, **decode(body, _TYPES["Eviction"])}
    except TypeMismatch as error:
        raise bad_request(f'Eviction in version "v1" cannot be handled as a Eviction: {error}') from None
    given |= {"kind": "Eviction", "apiVersion": "policy/v1"}
    write = AdmissionAttributes(api, _EVICTION, request, dry_run, "CREATE", given, None)
    eviction = await api.admission.mutate(write, context.warnings)
    if (eviction.get("metadata") or {}).get("name") != request.target.name:
        raise bad_request("name in URL does not match name in Eviction object")
    await api.admission.review(replace(write, obj=eviction), context.warnings)
    stored = api.stored(kind, request.target)
    options = eviction.get("deleteOptions") or {}
    if dry_run:
        options = {**options, "dryRun": ["All"]}
    deletion = replace(request, method="DELETE", body=encode(options), content_type="application/json")
    parsed = DeleteOptions.parse(deletion)
    check_preconditions(parsed, stored, kind)
    if not parsed.dry_run:
        status = stored.object.get("status") or {}
        conditions = with_true_condition(
            status, "DisruptionTarget", reason="EvictionByEvictionAPI", message="Eviction API: evicting"
        )
        key = kind.key(request.target.namespace, request.target.name)
        api.storage.update(kind.resource, key, {**stored.object, "status": {**status, "conditions": conditions}})
    delete_stored(api, kind, api.stored(kind, request.target), parsed, context)  # admission saw the eviction
    return created(context.warnings)


_GROUP: Final = "authentication.k8s.io"
_SHORTEST: Final = 600
_LONGEST: Final = 2**32
_TYPE: Final = "authentication/v1.TokenRequest"
_KIND: Final = Kind("", "serviceaccounts", "TokenRequest", True, {"v1": _TYPE})


async def request_token(api: Api, request: ApiRequest, stored: StoredObject, body: Object) -> ApiResponse:
    """Create a token of a service account.

    Raises:
        StatusError: the request makes no sense, names a pod that does not use the account, or admission refuses it.
    """
    options = WriteOptions.parse(request.query, "CreateOptions", request.agent)
    context = api.context(request)
    account = stored.object
    namespace, name = account["metadata"]["namespace"], account["metadata"]["name"]
    try:
        given: Object = decode(body, _TYPE)
    except TypeMismatch as error:
        raise bad_request(f'TokenRequest in version "v1" cannot be handled as a TokenRequest: {error}') from None
    metadata = {**(given.get("metadata") or {}), "name": name, "namespace": namespace}
    asked: Object = {"kind": "TokenRequest", "apiVersion": f"{_GROUP}/v1", "metadata": metadata,
                     "spec": given.get("spec") or {}}  # fmt: skip
    write = AdmissionAttributes(api, _KIND, request, options.dry_run, "CREATE", asked, None)
    asked = await api.admission.mutate(write, context.warnings)
    spec = asked["spec"]
    spec["audiences"] = spec.get("audiences") or [AUDIENCE]
    spec["expirationSeconds"] = spec.get("expirationSeconds") or DEFAULT_SECONDS
    await api.admission.review(replace(write, obj=asked), context.warnings)
    seconds = spec["expirationSeconds"]
    if not _SHORTEST <= seconds <= _LONGEST:
        text = "may not specify a duration less than 10 minutes"
        if seconds > _LONGEST:
            text = "may not specify a duration larger than 2^32 seconds"
        raise invalid_object(_GROUP, "TokenRequest", name, [invalid("spec.expirationSeconds", seconds, text)])
    pod, node = _bound_object(api, namespace, name, spec.get("boundObjectRef"))
    token, expires = api.tokens.issue(account, pod=pod, node=node, seconds=seconds, audiences=spec["audiences"])
    moment = time_text(datetime.fromtimestamp(expires, UTC))
    metadata = {**metadata, "creationTimestamp": context.now}
    status = {"token": token, "expirationTimestamp": moment}
    return ApiResponse({**asked, "metadata": metadata, "status": status}, 201, warnings=context.warnings)


def _bound_object(
    api: Api, namespace: str, account: str, reference: Object | None
) -> tuple[Object | None, Object | None]:
    """Return the pod or the node to bind a token to."""
    if not reference:
        return None, None
    kind, name, uid = (reference.get(field, "") for field in ("kind", "name", "uid"))
    if kind not in {"Pod", "Node"}:
        raise bad_request(f"cannot bind token to object of type {kind}: only pods and nodes are known here")
    resource, key = ("pods", f"{namespace}/{name}") if kind == "Pod" else ("nodes", name)
    found = api.lookup(resource, key)
    if found is None:
        raise not_found("", resource, name)
    if uid and uid != found["metadata"]["uid"]:
        cause = f"the UID in the bound object reference ({uid}) does not match the UID in record. "
        raise conflict("", resource, name, f"{cause}The object might have been deleted and then recreated")
    if kind == "Node":
        return None, found
    if (found["spec"].get("serviceAccountName") or "default") != account:
        text = "cannot bind token for serviceaccount"
        raise bad_request(f'{text} "{account}" to pod running with different serviceaccount name.')
    return found, None
