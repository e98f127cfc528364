"""The subresource ``binding`` of pods: gives a pod its node, as a scheduler does.

Source: Kubernetes 1.37 ``pkg/registry/core/pod/storage`` and ``pkg/apis/core/validation``, ``ValidatePodBinding``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dra_kit.apiserver.answers import Refusal, bad_request, conflict
from dra_kit.apiserver.api import Answer, Api, Request, created, now
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.requests.requests import WriteOptions
from dra_kit.apiserver.storage import Stored
from dra_kit.apiserver.verbs.bodies import read_object
from dra_kit.apiserver.verbs.write import precondition_failed
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import ErrorKind, FieldError, invalid, required
from dra_kit.kubernetes.values.json import Object

_BINDING: Final = Kind("", "bindings", "Binding", True, {"v1": "core/v1.Binding"})


def bind(api: Api, kind: Kind, request: Request, stored: Stored) -> Answer:
    """Give a pod its node.

    Raises:
        Refusal: the pod is another than the binding means, or can have no node now.
    """
    options = WriteOptions.parse(request.query, "CreateOptions", request.agent)
    context = api.context(request)
    binding = read_object(request, _BINDING, options.field_validation, context)
    _check(binding, request)
    pod, metadata = stored.object, binding["metadata"]
    name = pod["metadata"]["name"]
    for field, shown in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        given, real = metadata.get(field), pod["metadata"][field]
        if given and given != real:
            raise precondition_failed(kind, kind.key(request.target.namespace, name), shown, given, real)
    if (cause := _hindrance(pod)) is not None:
        raise conflict("", "pods/binding", name, cause)
    if not options.dry_run:
        api.storage.update(kind.resource, kind.key(request.target.namespace, name), _bound(pod, binding))
    return created(context.warnings)


def _check(binding: Object, request: Request) -> None:
    metadata, target = binding["metadata"], request.target
    if metadata.get("namespace") not in {None, "", target.namespace}:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if metadata.get("name") != target.name:
        raise bad_request("name in URL does not match name in Binding object")
    errors = list(map(str, _target_errors(binding.get("target") or {})))
    if errors:
        raise Refusal(500, "", errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]")


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


def _bound(pod: Object, binding: Object) -> Object:
    """Return the pod with its node, and with the labels and annotations of the binding."""
    # a pod that has its node is nominated for none (ClearingNominatedNodeNameAfterBinding)
    status = {name: value for name, value in (pod.get("status") or {}).items() if name != "nominatedNodeName"}
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now()}
    status["conditions"] = with_condition(status.get("conditions") or [], scheduled)
    metadata = dict(pod["metadata"])
    for field in ("labels", "annotations"):
        if added := binding["metadata"].get(field):
            metadata[field] = {**(metadata.get(field) or {}), **added}
    spec = {**pod["spec"], "nodeName": binding["target"]["name"]}
    return {**pod, "metadata": metadata, "spec": spec, "status": status}


def with_condition(conditions: list[Any], condition: Object) -> list[Any]:
    """Return conditions with another one, in the place of that of its type."""
    before = next((item for item in conditions if item.get("type") == condition["type"]), None)
    if before is None:
        return [*conditions, condition]
    if before.get("status") == condition["status"]:
        condition = {**condition, "lastTransitionTime": before.get("lastTransitionTime")}
    return [condition if item is before else item for item in conditions]
