"""Subresources other than ``status``: what discovery lists of each, and the function that serves it.

A new one is an entry of :data:`SUBRESOURCES`, at the end, and its function; routing, discovery and RBAC read the table.
A function raises the errors of ``status_errors.py``, or ``StatusError(429, reason, text)`` where it has no constructor.

One that writes a part of the same object by other rules needs no function, only a strategy: its entry is
``Subresource("Pod", STATUS_VERBS, serve_part(ResizeStrategy()))``. The strategy is in the kind's file and a subclass of
the kind's, such as ``PodStrategy`` in ``kinds/pods.py``. Its ``prepare_for_update`` copies from the old object what a
request may not change, and its ``validate_update`` returns the errors of what it changed.

Sources: Kubernetes 1.37 ``pkg/registry/core/pod/storage`` and ``pkg/apis/core/validation``, ``ValidatePodBinding``;
Kubernetes 1.37 ``pkg/registry/core/pod/storage/eviction.go``; Kubernetes 1.37
``pkg/registry/core/serviceaccount/storage/token.go`` and ``pkg/apis/authentication/validation``; Kubernetes 1.37
``pkg/registry/apps/*/storage`` and k8s.io/apimachinery 0.37 ``pkg/util/managedfields/scalehandler.go``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from dra_kit.apiserver.api import AdmissionAttributes, Api, ApiRequest, ApiResponse, encode, now, success, time_text
from dra_kit.apiserver.authentication import AUDIENCE, DEFAULT_SECONDS
from dra_kit.apiserver.authorization import AuthorizationAttributes
from dra_kit.apiserver.kinds.kind import Kind, Strategy, StrategyContext
from dra_kit.apiserver.kinds.pods import EphemeralContainersStrategy
from dra_kit.apiserver.kinds.workloads import SCALABLE
from dra_kit.apiserver.managed_fields import (
    ApplyConflict,
    FieldManager,
    after_apply,
    entries,
    managers_of,
    tracked_fields,
)
from dra_kit.apiserver.pod_log import PodLogOptions, PodLogUnavailable, requested_container
from dra_kit.apiserver.pod_streams import (
    PodStreams,
    PodStreamUnavailable,
    ProxiedRequest,
    StreamOptions,
    StreamUpgrade,
    serve_attach,
    serve_exec,
)
from dra_kit.apiserver.port_forward import forward_ports
from dra_kit.apiserver.requests import Query, WriteOptions
from dra_kit.apiserver.status_errors import (
    StatusError,
    bad_request,
    conflict,
    invalid_object,
    method_not_allowed,
    not_found,
    unauthorized_for,
)
from dra_kit.apiserver.storage import StoredObject
from dra_kit.apiserver.tables import AGE, Column, number_cell, text_cell, written_selector
from dra_kit.apiserver.verbs.decoding import BodyParseError, decode_typed, parse_body, read_object
from dra_kit.apiserver.verbs.delete import DeleteOptions, check_preconditions, delete_stored
from dra_kit.apiserver.verbs.patch import APPLY, configuration, conflicting, mentioned, patch, patch_stored, write_of
from dra_kit.apiserver.verbs.read import get
from dra_kit.apiserver.verbs.write import (
    WriteRequest,
    check_name,
    check_namespace,
    precondition_failed,
    replace_object,
    update,
)
from dra_kit.kubernetes.release import Change, Release
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import NOT_NEGATIVE, ErrorKind, FieldError, go_quote, invalid, required
from dra_kit.kubernetes.resource.schema.types import TypeMismatch, decode
from dra_kit.kubernetes.values.json import Object

_TYPES: Final = {
    "Eviction": "policy/v1.Eviction",
    "Namespace": "core/v1.Namespace",
    "TokenRequest": "authentication/v1.TokenRequest",
}


Served: TypeAlias = ApiResponse | AsyncGenerator[bytes, None] | StreamUpgrade | ProxiedRequest | None
"""An answer; a log is streamed, None if it does not exist yet; some requests become WebSockets or are passed on."""
_Handler: TypeAlias = Callable[[Api, Kind, ApiRequest], Awaitable[Served]]


class Subresource(Struct, frozen=True):
    """A subresource: what discovery lists of it, and what serves it.

    Attributes:
        kind: of its objects.
        verbs: as in RBAC rules.
        serve: answers a request, or raises a StatusError.
        api_version: of its objects where it is another than that of the resource.
    """

    kind: str
    verbs: tuple[str, ...]
    serve: _Handler
    api_version: str = ""


def _body(request: ApiRequest) -> Object:
    try:
        value = parse_body(request.body, request.content_type, _TYPES)
    except BodyParseError as error:
        raise bad_request(str(error)) from None
    if not isinstance(value, dict):
        raise bad_request("the body is not an object")
    return value


async def _finalize(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Store the finalizers of a namespace's spec; a deleted namespace without any is removed."""
    stored = api.stored(kind, request.target)
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


async def _log(api: Api, kind: Kind, request: ApiRequest) -> AsyncGenerator[bytes, None] | None:
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


_Connect: TypeAlias = Callable[[PodStreams, Object, Query], StreamUpgrade]


def _stream(connect: _Connect) -> _Handler:
    """Return a handler that connects a client with a running pod.

    A WebSocket begins with a GET, but the client needs the permission to create the subresource.
    """

    async def handler(api: Api, kind: Kind, request: ApiRequest) -> StreamUpgrade:
        target = request.target
        if request.method == "HEAD":
            raise method_not_allowed()
        asked = AuthorizationAttributes("create", "", kind.plural, target.subresource, target.namespace, target.name)
        if not api.rbac.authorize(request.user, asked).allowed:
            raise unauthorized_for("", kind.plural, target.name, "")
        pod = api.stored(kind, target).object
        if api.pod_streams is None:
            raise StatusError(501, "", "this cluster runs no containers, so there is nothing to connect to")
        if not pod["spec"].get("nodeName"):
            raise bad_request(f"pod {target.name} does not have a host assigned")
        return connect(api.pod_streams, pod, request.query)

    return handler


def _exec(pods: PodStreams, pod: Object, query: Query) -> StreamUpgrade:
    return serve_exec(pods, pod, _stream_options(pod, query))


def _attach(pods: PodStreams, pod: Object, query: Query) -> StreamUpgrade:
    return serve_attach(pods, pod, _stream_options(pod, query))


def _stream_options(pod: Object, query: Query) -> StreamOptions:
    options = StreamOptions.parse(query)
    return replace(options, container=requested_container(pod, options.container))


_SCHEMES: Final = ("", "http", "https")
_PATH_OF_PROXY: Final = 7
"""Segments of ``api/v1/namespaces/<namespace>/pods/<name>/proxy``."""


def _place(kind: str, text: str) -> tuple[str, str, str]:
    """Return scheme, name and port of ``<name>``, ``<name>:<port>`` or ``<scheme>:<name>:<port>``.

    Raises:
        StatusError: 400, it has another form.
    """
    parts = text.split(":")
    scheme, name, port = parts if len(parts) == 3 else ("", parts[0], parts[1] if len(parts) == 2 else "")
    if len(parts) > 3 or scheme not in _SCHEMES or not name:
        raise bad_request(f"invalid {kind} request {go_quote(text)}")
    return scheme or "http", name, port


async def _proxy_pod(api: Api, kind: Kind, request: ApiRequest) -> ProxiedRequest:
    """Pass a request on to a port of a pod, by default its first one."""
    scheme, name, port = _place("pod", request.target.name)
    pod = api.stored(kind, replace(request.target, name=name)).object
    if not port:
        declared = (item["containerPort"] for container in pod["spec"]["containers"]
                    for item in container.get("ports") or ())  # fmt: skip
        port = str(next(declared, 443 if scheme == "https" else 80))
    if not (pod.get("status") or {}).get("podIP"):
        raise bad_request("address not allowed")
    return _proxied(api, pod, pod["status"]["podIP"], port, scheme)


async def _proxy_service(api: Api, kind: Kind, request: ApiRequest) -> ProxiedRequest:
    """Pass a request on to a ready pod of a Service, by the name or the number of its port."""
    scheme, name, port = _place("service", request.target.name)
    namespace, nowhere = request.target.namespace, f'no endpoints available for service "{name}"'
    if port.isascii() and port.isdecimal():
        service = api.stored(kind, replace(request.target, name=name)).object
        ports = service["spec"].get("ports") or ()
        found = [item for item in ports if str(item["port"]) == port]
        if not found:
            raise StatusError(503, "ServiceUnavailable", f"no service port {port} found for service {go_quote(name)}")
        port = found[0].get("name", "")
    ready = []
    for item in api.listed("endpointslices.discovery.k8s.io", f"{namespace}/"):
        if (item["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == name:
            numbers = [entry.get("port") for entry in item.get("ports") or () if (entry.get("name") or "") == port]
            for endpoint in item.get("endpoints") or ():
                target = endpoint.get("targetRef") or {}
                if target.get("kind") != "Pod" or (endpoint.get("conditions") or {}).get("ready") is False:
                    continue
                pod = api.lookup("pods", f"{namespace}/{target.get('name', '')}")
                if pod is not None and pod["metadata"]["uid"] == target.get("uid"):
                    ready += [(pod, number) for number in numbers if number]
    if not ready:
        raise StatusError(503, "ServiceUnavailable", nowhere)
    pod, number = secrets.choice(ready)
    return _proxied(api, pod, (pod.get("status") or {}).get("podIP", ""), str(number), scheme)


def _proxied(api: Api, pod: Object, address: str, port: str, scheme: str) -> ProxiedRequest:
    streams = api.pod_streams
    if streams is None:
        raise StatusError(501, "", "this cluster runs no containers, so there is nothing to connect to")

    async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16):
            raise PodStreamUnavailable(f"lookup tcp/{port}: unknown port")
        return await streams.dial(pod, int(port))

    return ProxiedRequest(dial, f"{address}:{port}", scheme == "https", _PATH_OF_PROXY)


_BINDING: Final = Kind("", "pods", "Binding", True, {"v1": "core/v1.Binding"})


async def _bind_pod(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
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
    _check_binding(binding, request)
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
    bound = _bound_pod(pod, binding, api.release)
    if not options.dry_run:
        bound = api.storage.update(kind.resource, kind.key(request.target.namespace, name), bound).object
    return ApiResponse(success(api.release, bound, code=201), 201, warnings=context.warnings)


def _check_binding(binding: Object, request: ApiRequest) -> None:
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


def _bound_pod(pod: Object, binding: Object, release: Release) -> Object:
    """Return the pod with its node, and with the labels and annotations of the binding."""
    status = dict(pod.get("status") or {})
    if release.has(Change.NOMINATIONS_END_WITH_BINDING):
        status.pop("nominatedNodeName", None)
    status["conditions"] = _with_true_condition(status, "PodScheduled")
    metadata = dict(pod["metadata"])
    for field in ("labels", "annotations") if release.has(Change.BINDINGS_BRING_LABELS) else ("annotations",):
        if added := binding["metadata"].get(field):
            metadata[field] = {**(metadata.get(field) or {}), **added}
    spec = {**pod["spec"], "nodeName": binding["target"]["name"]}
    return {**pod, "metadata": metadata, "spec": spec, "status": status}


def _with_true_condition(status: Object, type_: str, **reason: str) -> list[Any]:
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


async def _evict_pod(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Mark a pod with the condition ``DisruptionTarget``, and delete it; disruption budgets are ignored.

    Raises:
        StatusError: the body is not an Eviction of this pod, or the pod may not be deleted.
    """
    body = _body(request)
    if body.get("kind", "Eviction") != "Eviction":
        what = f'{body["kind"]} in version "{body.get("apiVersion", "")}"'
        raise bad_request(f"{what} cannot be handled as a Eviction: unknown conversion")
    dry_run = WriteOptions.parse(request.query, "CreateOptions", request.agent).dry_run
    context = api.context(request)
    try:
        given: Object = {"metadata": {}, **decode(body, _TYPES["Eviction"], api.release.version)}
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
    parsed = DeleteOptions.parse(deletion, api.release)
    check_preconditions(parsed, stored, kind)
    if not parsed.dry_run:
        status = stored.object.get("status") or {}
        conditions = _with_true_condition(
            status, "DisruptionTarget", reason="EvictionByEvictionAPI", message="Eviction API: evicting"
        )
        if conditions != status.get("conditions"):  # else nothing is written, as by any update without a change
            key = kind.key(request.target.namespace, request.target.name)
            api.storage.update(kind.resource, key, {**stored.object, "status": {**status, "conditions": conditions}})
    # admission saw the eviction
    deleted, _ = delete_stored(api, kind, api.stored(kind, request.target), parsed, context)
    return ApiResponse(success(api.release, deleted, code=201), 201, warnings=context.warnings)


_AUTHENTICATION: Final = "authentication.k8s.io"
_TOKEN_SHORTEST: Final = 600
_TOKEN_LONGEST: Final = 2**32
_TOKEN_REQUEST: Final = Kind("", "serviceaccounts", "TokenRequest", True, {"v1": _TYPES["TokenRequest"]})


async def _request_token(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
    """Create a token of a service account.

    Raises:
        StatusError: the request makes no sense, names a pod that does not use the account, or admission refuses it.
    """
    stored, body = api.stored(kind, request.target), _body(request)
    options = WriteOptions.parse(request.query, "CreateOptions", request.agent)
    context = api.context(request)
    account = stored.object
    namespace, name = account["metadata"]["namespace"], account["metadata"]["name"]
    try:
        given: Object = decode(body, _TYPES["TokenRequest"], api.release.version)
    except TypeMismatch as error:
        raise bad_request(f'TokenRequest in version "v1" cannot be handled as a TokenRequest: {error}') from None
    metadata = {**(given.get("metadata") or {}), "name": name, "namespace": namespace}
    asked: Object = {"kind": "TokenRequest", "apiVersion": f"{_AUTHENTICATION}/v1", "metadata": metadata,
                     "spec": given.get("spec") or {}}  # fmt: skip
    write = AdmissionAttributes(api, _TOKEN_REQUEST, request, options.dry_run, "CREATE", asked, None)
    asked = await api.admission.mutate(write, context.warnings)
    spec = asked["spec"]
    spec["audiences"] = spec.get("audiences") or [AUDIENCE]
    spec["expirationSeconds"] = spec.get("expirationSeconds") or DEFAULT_SECONDS
    await api.admission.review(replace(write, obj=asked), context.warnings)
    seconds = spec["expirationSeconds"]
    if not _TOKEN_SHORTEST <= seconds <= _TOKEN_LONGEST:
        text = "may not specify a duration less than 10 minutes"
        if seconds > _TOKEN_LONGEST:
            text = "may not specify a duration larger than 2^32 seconds"
        raise invalid_object(_AUTHENTICATION, "TokenRequest", name, [invalid("spec.expirationSeconds", seconds, text)])
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


_SCALE_VERSION: Final = "autoscaling/v1"
_REPLICAS: Final = ("f:spec", "f:replicas")
_SCALE_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_SCALE: Final = Kind(
    "autoscaling", "scales", "Scale", True, {"v1": "autoscaling/v1.Scale"},
    columns=(Column("Name", text_cell("metadata.name")),
             Column("Desired", number_cell("spec.replicas"), type="integer"),
             Column("Available", number_cell("status.replicas"), type="integer"), AGE),
)  # fmt: skip


async def _serve_scale(api: Api, workload: Kind, request: ApiRequest) -> ApiResponse:
    """Get, update, patch or apply the scale of a workload.

    Raises:
        StatusError: the workload does not exist, or the request is invalid.
    """
    if request.method == "HEAD":
        raise method_not_allowed()
    if request.method == "GET":
        return _scale_answer(api.stored(workload, request.target).object)
    # what the client sends and sees is of another group than the path
    seen = replace(request, target=replace(request.target, group=_SCALE.group, version="v1"))
    if request.method == "PUT":
        options = WriteOptions.parse(request.query, "UpdateOptions", request.agent)
        return await _Scale(workload, request, WriteRequest(api, _SCALE, seen, options)).update()
    write = write_of(api, _SCALE, seen)
    scale = _Scale(workload, request, write)
    if request.content_type == APPLY:
        return await scale.apply()
    return await patch_stored(write, scale.stored, scale.shown, scale.change)


class _Scale:
    """A write of the scale of one workload, as of a separate object."""

    def __init__(self, workload: Kind, request: ApiRequest, write: WriteRequest) -> None:
        self._workload, self._request, self._write = workload, request, write

    def stored(self) -> StoredObject:
        return self._write.api.stored(self._workload, self._request.target)

    def shown(self, stored: StoredObject) -> Object:
        """Return the scale with those of the workload's managers that own the number, in terms of the scale."""
        scale = _scale_of(stored.object)
        scale["metadata"]["managedFields"] = entries(_to_scale(managers_of(stored.object)))
        return scale

    async def update(self) -> ApiResponse:
        write = self._write
        context = write.api.context(self._request)
        stored = self.stored()
        wire = read_object(write.request, _SCALE, write.options.field_validation, context)
        check_name(wire["metadata"].get("name"), self._request.target.name)
        return await self.change(stored, wire, context)

    async def change(self, stored: StoredObject, wire: Object, context: StrategyContext) -> ApiResponse:
        """Set the workload's replicas to those of a sent or patched scale."""
        writer = self._write.manager("Update", context.now)
        version = self._write.api.release.version
        managed = tracked_fields(self.shown(stored), wire, _SCALE.stored_type, writer, version)
        return await self._store(stored, wire, managers_of({"metadata": {"managedFields": managed}}), context)

    async def apply(self) -> ApiResponse:
        write = self._write
        context = write.api.context(self._request)
        stored = self.stored()
        config = configuration(write)
        decoded = decode_typed(config, write.request, _SCALE, write.options.field_validation, context)
        live = self.shown(stored)
        try:
            applied = after_apply(
                live, mentioned(config, decoded), _SCALE.stored_type, write.manager("Apply", context.now),
                managers_of(live), version=write.api.release.version, force=write.options.force,
            )  # fmt: skip
        except ApplyConflict as error:
            raise conflicting(error) from None
        wire = decode_typed(applied.obj, write.request, _SCALE, "Ignore", context)
        wire["metadata"]["resourceVersion"] = decoded["metadata"].get("resourceVersion", "")
        return await self._store(stored, wire, applied.managers, context)

    async def _store(
        self, stored: StoredObject, scale: Object, managers: list[FieldManager], context: StrategyContext
    ) -> ApiResponse:
        api, kind, target = self._write.api, self._workload, self._request.target
        metadata = scale["metadata"]
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        check_namespace(scale, self._request)
        uid, real = metadata.get("uid"), stored.object["metadata"]["uid"]
        if uid and uid != real:
            raise precondition_failed(kind, kind.key(target.namespace, target.name), "UID", uid, real)
        if replicas < 0:
            error = invalid("spec.replicas", replicas, NOT_NEGATIVE)
            raise invalid_object(_SCALE.group, _SCALE.kind, target.name, [error])
        workload = api.wire(kind, stored.object, target.api_version)
        workload = {
            **workload,
            "metadata": {**workload["metadata"], "resourceVersion": metadata.get("resourceVersion") or ""},
            "spec": {**workload["spec"], "replicas": replicas},
        }
        managed = entries(_to_workload(managers_of(stored.object), managers, target.api_version))
        write = WriteRequest(api, kind, self._request, self._write.options)
        answer = await replace_object(write, stored, workload, context, managed)
        assert answer.items is not None  # noqa: S101 - that of a write has its object
        return _scale_answer(answer.items[0], context.warnings)


def _scale_answer(workload: Object, warnings: Sequence[str] = ()) -> ApiResponse:
    scale = _scale_of(workload)
    return ApiResponse(scale, kind=_SCALE, items=[scale], warnings=warnings)


def _scale_of(workload: Object) -> Object:
    metadata, spec, status = workload["metadata"], workload["spec"], workload.get("status") or {}
    wanted = spec.get("replicas", 0)
    return {
        "kind": _SCALE.kind,
        "apiVersion": _SCALE_VERSION,
        "metadata": {name: metadata[name] for name in _SCALE_METADATA if name in metadata},
        "spec": {"replicas": wanted} if wanted else {},
        "status": {"replicas": status.get("replicas", 0), "selector": written_selector(spec.get("selector"))},
    }


def _to_scale(managers: Iterable[FieldManager]) -> list[FieldManager]:
    return [
        replace(manager, api_version=_SCALE_VERSION, fields=frozenset({_REPLICAS}))
        for manager in managers
        if _REPLICAS in manager.fields
    ]


def _to_workload(
    managers: Iterable[FieldManager], of_scale: Iterable[FieldManager], api_version: str
) -> list[FieldManager]:
    """Return the managers of a workload after its scale was written; the scale decides who owns the replica count."""
    before, owners = list(managers), [owner for owner in of_scale if _REPLICAS in owner.fields]
    retained = [
        manager
        if _REPLICAS not in manager.fields or any(manager.same(owner) for owner in owners)
        else replace(manager, fields=manager.fields - {_REPLICAS})
        for manager in before
    ]
    # a new manager has no time, nor does one that wrote the replica count by a write other than apply
    added = [
        replace(owner, api_version=api_version, fields=frozenset({_REPLICAS}), time="")
        for owner in owners
        if not any(owner.same(manager) for manager in before)
    ]
    return [*retained, *added]


def serve_part(strategy: Strategy) -> _Handler:
    """Return a handler that gets the object itself, and updates, patches or applies it by the rules of a strategy."""

    async def handler(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
        if request.method in {"GET", "HEAD"}:
            return get(api, kind, request)
        serve = update if request.method == "PUT" else patch
        return await serve(api, replace(kind, strategy=strategy), request)

    return handler


class _ReadOnlyStrategy(Strategy):
    """Refuses all writes of a subresource with a cause."""

    def __init__(self, plural: str, cause: str) -> None:
        self._plural, self._cause = plural, cause

    @override
    def admit(self, obj: Object, old: Object | None, context: StrategyContext, subresource: str) -> None:
        raise _not_served(self._plural, subresource, self._cause)


def _refuse(cause: str) -> _Handler:
    """Return a handler that refuses all requests with a cause."""

    async def handler(api: Api, kind: Kind, request: ApiRequest) -> ApiResponse:
        api.stored(kind, request.target)
        raise _not_served(request.target.plural, request.target.subresource, cause)

    return handler


def _not_served(plural: str, subresource: str, cause: str) -> StatusError:
    return StatusError(501, "NotImplemented", f"{plural}/{subresource} cannot be served: {cause}")


STATUS_VERBS: Final = ("get", "patch", "update")
_PROXY_VERBS: Final = ("create", "delete", "get", "patch", "update")
_NO_KUBELET_API: Final = "the kubelets of the sandbox have no HTTP API; use kubectl logs, exec or port-forward"
_NO_LIMITS: Final = "the sandbox does not limit the resources of containers; create the pod again with other ones"
SUBRESOURCES: Final[Mapping[str, Mapping[str, Subresource]]] = {
    "nodes": {"proxy": Subresource("NodeProxyOptions", _PROXY_VERBS, _refuse(_NO_KUBELET_API))},
    "pods": {
        "attach": Subresource("PodAttachOptions", ("create", "get"), _stream(_attach)),
        "binding": Subresource("Binding", ("create",), _bind_pod),
        "ephemeralcontainers": Subresource("Pod", STATUS_VERBS, serve_part(EphemeralContainersStrategy())),
        "eviction": Subresource("Eviction", ("create",), _evict_pod, "policy/v1"),
        "exec": Subresource("PodExecOptions", ("create", "get"), _stream(_exec)),
        "log": Subresource("Pod", ("get",), _log),
        "portforward": Subresource("PodPortForwardOptions", ("create", "get"), _stream(forward_ports)),
        "proxy": Subresource("PodProxyOptions", _PROXY_VERBS, _proxy_pod),
        "resize": Subresource("Pod", STATUS_VERBS, serve_part(_ReadOnlyStrategy("pods", _NO_LIMITS))),
    },
    "services": {"proxy": Subresource("ServiceProxyOptions", _PROXY_VERBS, _proxy_service)},
    "namespaces": {"finalize": Subresource("Namespace", ("update",), _finalize)},
    "serviceaccounts": {"token": Subresource("TokenRequest", ("create",), _request_token, "authentication.k8s.io/v1")},
    **{name: {"scale": Subresource("Scale", STATUS_VERBS, _serve_scale, "autoscaling/v1")} for name in SCALABLE},
}
"""By resource (``<plural>.<group>``) and name."""
