"""The API server's handling of a new object: fill in defaults, drop fields, validate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from dra_kit.kubernetes.release import FeatureGates
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import APIModel
from dra_kit.kubernetes.resource.conversion import to_v1
from dra_kit.kubernetes.resource.defaulting import apply_defaults, set_defaults, set_pull_policies
from dra_kit.kubernetes.resource.dropping import drop_disabled_fields
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden
from dra_kit.kubernetes.resource.v1 import ResourcePoolStatusRequest
from dra_kit.kubernetes.resource.validation.claims import validate_claim_spec, validate_class, validate_template
from dra_kit.kubernetes.resource.validation.fields import subdomain_problems, validate_object_meta
from dra_kit.kubernetes.resource.validation.pods import validate_node_taints, validate_pod_spec
from dra_kit.kubernetes.resource.validation.slices import (
    validate_pool_status_request,
    validate_slice,
    validate_taint_rule,
)
from dra_kit.kubernetes.values.json import Object, value_at

POD_SPECS: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": ("spec",),
    "PodTemplate": ("template", "spec"),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"),
        ("spec", "template", "spec"),
    ),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}
"""The path of the pod spec, by kind."""


def validate_new_object(obj: Object, kind: str, gates: FeatureGates) -> list[FieldError]:
    """Check all rules of the API server (Kubernetes 1.37) for a new object, except metadata and admission.

    Args:
        obj: values of the right types with defaults; objects of resource.k8s.io are in v1, without the fields of
            disabled gates.
        kind: a kind of resource.k8s.io, Node, or one of ``POD_SPECS``; other kinds have no rules.
        gates: of the API server.
    """
    whole = {**obj, "spec": obj.get("spec") or {}}
    match kind:
        case "DeviceClass":
            return validate_class(v1.DeviceClass.model_validate(whole), gates=gates)
        case "DeviceTaintRule":
            return validate_taint_rule(v1.DeviceTaintRule.model_validate(whole))
        case "ResourceClaim":
            return validate_claim_spec(v1.ResourceClaimSpec.model_validate(whole["spec"]), gates)
        case "ResourceClaimTemplate":
            return validate_template(v1.ResourceClaimTemplate.model_validate(whole), gates)
        case "ResourcePoolStatusRequest":
            return validate_pool_status_request(ResourcePoolStatusRequest.model_validate(whole))
        case "ResourceSlice":
            fractional = "DRAFractionalCapacityRange" in gates
            return validate_slice(v1.ResourceSlice.model_validate(whole), fractional_ranges=fractional)
        case "Node":
            return validate_node_taints(whole["spec"].get("taints") or ())
        case "Pod":
            return _pod(whole["spec"])
        case _ if kind in POD_SPECS:
            path = POD_SPECS[kind]
            return validate_pod_spec(value_at(obj, path) or {}, ".".join(path))
        case _:
            return []


def _pod(spec: Object) -> list[FieldError]:
    """Check its containers and claims, and that a pod with scheduling gates has no node."""
    errors = validate_pod_spec(spec)
    if spec.get("schedulingGates") and spec.get("nodeName"):
        errors.append(forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return errors


GROUP: Final = "resource.k8s.io"


class ManifestKind(Struct, frozen=True):
    """A kind.

    Attributes:
        name: the kind.
        types: type of the known part in the schema table by ``apiVersion``, newest version first.
        namespaced: whether its objects have a namespace.
        status: whether the API server ignores the status on creation.
        generation: whether the API server counts changes of the spec.
        part: path of the part whose fields are known; empty for the whole object.
        model: model of the newest version, for kinds of resource.k8s.io.
    """

    name: str
    types: Mapping[str, str]
    namespaced: bool = False
    status: bool = False
    generation: bool = False
    part: tuple[str, ...] = ()
    model: type[APIModel] | None = None

    @property
    def pod(self) -> tuple[str, ...]:
        """The path of the pod spec; empty without one."""
        return POD_SPECS.get(self.name, ())


def _resource(
    model: type[APIModel],
    *served: str,
    namespaced: bool = False,
    status: bool = False,
    generation: bool = False,
) -> tuple[str, ManifestKind]:
    name = model.__name__
    types = {f"{GROUP}/{version}": f"resource/{version}.{name}" for version in served or ("v1", "v1beta2", "v1beta1")}
    return name, ManifestKind(name, types, namespaced, status, generation, model=model)


RESOURCE_KINDS: Final[Mapping[str, ManifestKind]] = dict(
    (
        _resource(v1.DeviceClass, generation=True),
        _resource(v1.DeviceTaintRule, "v1", "v1beta2", "v1alpha3", status=True, generation=True),
        _resource(v1.ResourceClaim, namespaced=True, status=True),
        _resource(v1.ResourceClaimTemplate, namespaced=True),
        _resource(ResourcePoolStatusRequest, "v1alpha3", status=True),
        _resource(v1.ResourceSlice, generation=True),
    )
)
"""The kinds of resource.k8s.io."""
_TEMPLATE: Final = "core/v1.PodTemplateSpec"


def _template(name: str, api_version: str) -> ManifestKind:
    """Return a kind of which only the pod template is known."""
    return ManifestKind(name, {api_version: _TEMPLATE}, namespaced=True, part=POD_SPECS[name][:-1])


KINDS: Final[Mapping[str, ManifestKind]] = {
    **RESOURCE_KINDS,
    "Pod": ManifestKind("Pod", {"v1": "core/v1.Pod"}, namespaced=True, status=True, generation=True),
    "Node": ManifestKind("Node", {"v1": "core/v1.Node"}),
    "Event": ManifestKind("Event", {"events.k8s.io/v1": "events/v1.Event", "v1": "core/v1.Event"}, namespaced=True),
    **{
        name: ManifestKind(name, {"apps/v1": f"apps/v1.{name}"}, namespaced=True, status=True, generation=True)
        for name in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
    },
    **{
        name: _template(name, api_version)
        for name, api_version in (
            ("CronJob", "batch/v1"), ("Job", "batch/v1"), ("PodTemplate", "v1"), ("ReplicationController", "v1"),
        )
    },
}  # fmt: skip
"""All known kinds."""
NO_TIME: Final = "1970-01-01T00:00:00Z"
"""Creation time of objects outside of a cluster; no rule reads it."""
_ASSIGNED: Final = (
    "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields",
)  # fmt: skip
"""Fields of metadata that clients may send and only the API server sets."""


class NewObjectResult(Struct, frozen=True):
    """An API server's answer to a new object.

    Attributes:
        stored: the object to store, without fields of disabled features.
        errors: the reasons for a rejection, with the paths of v1; empty if it is accepted.
    """

    stored: Object
    errors: tuple[FieldError, ...]


def complete_new_object(obj: Object, kind: ManifestKind, *, namespace: str = "default") -> Object:
    """Return a new object with the API server's defaults; an object of resource.k8s.io in v1.

    Args:
        obj: the result of :func:`dra_kit.kubernetes.resource.schema.decode.decode`; changed in place.
        kind: its kind; ``apiVersion`` is one of its versions.
        namespace: default namespace.
    """
    api_version = str(obj["apiVersion"])
    metadata = obj.setdefault("metadata", {})
    for name in _ASSIGNED:
        metadata.pop(name, None)
    if kind.generation:
        metadata.pop("generation", None)
    if kind.namespaced:
        metadata["namespace"] = metadata.get("namespace") or namespace
    else:
        metadata.pop("namespace", None)  # the path of the request has none
    if kind.status:
        obj.pop("status", None)
    apply_defaults(value_at(obj, kind.part), kind.types[api_version])
    set_defaults(obj, kind.name, api_version, NO_TIME)
    if len(kind.pod) > 1 and value_at(obj, kind.pod) is not None:  # a template
        set_pull_policies(value_at(obj, kind.pod[:-1]))
    return to_v1(obj, kind.name, api_version)


def check_new_object(obj: Object, kind: ManifestKind, gates: FeatureGates) -> NewObjectResult:
    """Return the answer of an API server with these gates to a :func:`complete_new_object`, which is not changed."""
    stored = drop_disabled_fields(obj, None, gates) if kind.model is not None else obj
    # the name of a class is validated with its spec
    own_rule = subdomain_problems if kind.name != "DeviceClass" else lambda _: []
    errors = validate_object_meta(
        stored["metadata"], namespaced=kind.namespaced, name_problems=own_rule, prefix_problems=subdomain_problems
    )
    return NewObjectResult(stored, (*errors, *validate_new_object(stored, kind.name, gates)))
