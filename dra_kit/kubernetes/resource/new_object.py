"""The API server's handling of a new object: fill in defaults, drop fields, validate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from msgspec import Struct

from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import APIModel
from dra_kit.kubernetes.resource.conversion import V1BETA1, drop_disabled_fields, to_v1
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden
from dra_kit.kubernetes.resource.schema.types import LIST, MAP, decode, item_type, reached_types, read_table, struct
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


def validate_new_object(obj: Object, kind: str, release: Release) -> list[FieldError]:
    """Check all rules of the API server for a new object, except metadata and admission.

    Args:
        obj: values of the right types with defaults; objects of resource.k8s.io are in v1, without the fields of
            disabled gates.
        kind: a kind of resource.k8s.io, Node, or one of ``POD_SPECS``; other kinds have no rules.
        release: of the API server.
    """
    whole = {**obj, "spec": obj.get("spec") or {}}
    version = release.version
    match kind:
        case "DeviceClass":
            return validate_class(v1.DeviceClass.model_validate(whole, context=version), release)
        case "DeviceTaintRule":
            return validate_taint_rule(v1.DeviceTaintRule.model_validate(whole, context=version), release)
        case "ResourceClaim":
            return validate_claim_spec(v1.ResourceClaimSpec.model_validate(whole["spec"], context=version), release)
        case "ResourceClaimTemplate":
            return validate_template(v1.ResourceClaimTemplate.model_validate(whole, context=version), release)
        case "ResourcePoolStatusRequest":
            return validate_pool_status_request(
                ResourcePoolStatusRequest.model_validate(whole, context=version), release
            )
        case "ResourceSlice":
            return validate_slice(v1.ResourceSlice.model_validate(whole, context=version), release)
        case "Node":
            return validate_node_taints(whole["spec"].get("taints") or ())
        case "Pod":
            return _pod(whole["spec"], release)
        case _ if kind in POD_SPECS:
            path = POD_SPECS[kind]
            return validate_pod_spec(value_at(obj, path) or {}, release, ".".join(path))
        case _:
            return []


def _pod(spec: Object, release: Release) -> list[FieldError]:
    """Check its containers and claims, and that a pod with scheduling gates has no node."""
    errors = validate_pod_spec(spec, release)
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
KINDS: Final[Mapping[str, ManifestKind]] = {
    **RESOURCE_KINDS,
    "Pod": ManifestKind("Pod", {"v1": "core/v1.Pod"}, namespaced=True, status=True, generation=True),
    "Node": ManifestKind("Node", {"v1": "core/v1.Node"}),
    "Event": ManifestKind("Event", {"events.k8s.io/v1": "events/v1.Event", "v1": "core/v1.Event"}, namespaced=True),
    **{
        name: ManifestKind(name, {"apps/v1": f"apps/v1.{name}"}, namespaced=True, status=True, generation=True)
        for name in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
    },
    **{  # only the pod template is known
        name: ManifestKind(name, {version: "core/v1.PodTemplateSpec"}, namespaced=True, part=POD_SPECS[name][:-1])
        for name, version in (
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


def complete_new_object(
    obj: Object, kind: ManifestKind, version: KubernetesVersion, *, namespace: str = "default"
) -> Object:
    """Return a new object with the API server's defaults; an object of resource.k8s.io in v1.

    Args:
        obj: the result of :func:`dra_kit.kubernetes.resource.schema.types.decode`; changed in place.
        kind: its kind; ``apiVersion`` is one of its versions.
        version: the release of the API server.
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
    apply_defaults(value_at(obj, kind.part), kind.types[api_version], version)
    set_defaults(obj, kind.name, api_version, NO_TIME)
    if len(kind.pod) > 1 and value_at(obj, kind.pod) is not None:  # a template
        set_pull_policies(value_at(obj, kind.pod[:-1]))
    return to_v1(obj, kind.name, api_version)


def check_new_object(obj: Object, kind: ManifestKind, release: Release) -> NewObjectResult:
    """Return the answer of an API server with these gates to a :func:`complete_new_object`, which is not changed."""
    stored = drop_disabled_fields(obj, None, release) if kind.model is not None else obj
    # the name of a class is validated with its spec
    own_rule = subdomain_problems if kind.name != "DeviceClass" else lambda _: []
    errors = validate_object_meta(
        stored["metadata"],
        namespaced=kind.namespaced,
        name_problems=own_rule,
        prefix_problems=subdomain_problems,
        release=release,
    )
    return NewObjectResult(stored, (*errors, *validate_new_object(stored, kind.name, release)))


def set_defaults(obj: Object, kind: str, api_version: str, now: str) -> None:
    """Fill in the defaults of an object, in place.

    Args:
        obj: JSON of the sent version; ``null`` counts as absent.
        kind: its kind.
        api_version: its version.
        now: the current time, the default of ``timeAdded`` of taints (``metav1.Time``).
    """
    spec = {} if obj.get("spec") is None else obj["spec"]
    match kind:
        case "ResourceSlice":
            for device in spec.get("devices") or ():
                for taint in ((device.get("basic") or {}) if api_version == V1BETA1 else device).get("taints") or ():
                    _fill(taint, "timeAdded", now)
        case "ResourceClaim":
            _requests(spec, api_version)
            for result in _results(obj.get("status") or {}):
                _tolerations(result)
        case "ResourceClaimTemplate":
            _requests(spec.get("spec") or {}, api_version)
        case "DeviceTaintRule":
            if spec.get("taint") is not None:
                _fill(spec["taint"], "timeAdded", now)
        case "ResourcePoolStatusRequest":
            _fill(spec, "limit", 100)
        case "Pod":
            set_pod_defaults(obj)
        case "Node":
            _allocatable(obj.get("status") or {})


def _allocatable(status: Object) -> None:
    """Use the capacity of a node as the default of ``allocatable``."""
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _requests(spec: Object, api_version: str) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        if api_version != V1BETA1:
            bodies = [request["exactly"]] if request.get("exactly") is not None else []
        else:  # without a class it has subrequests, or is invalid
            bodies = [request] if request.get("deviceClassName") else []
            _tolerations(request)
        for body in (*bodies, *(request.get("firstAvailable") or ())):
            if not body.get("allocationMode"):
                body["allocationMode"] = "ExactCount"
            if body["allocationMode"] == "ExactCount" and not body.get("count"):
                body["count"] = 1
            _tolerations(body)


def _tolerations(body: Object) -> None:
    for toleration in body.get("tolerations") or ():
        if not toleration.get("operator"):
            toleration["operator"] = "Equal"


def _results(status: Object) -> Iterable[Object]:
    return ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()


def _fill(obj: Object, name: str, value: Any) -> None:
    if obj.get(name) is None:
        obj[name] = value


@cache
def _has_defaults(type_name: str) -> bool:
    """Return whether a type or one of its fields has defaults, at any depth."""
    return any(name in read_table("defaults") for name in reached_types(type_name))


def apply_defaults(value: Any, type_name: str, version: KubernetesVersion) -> None:
    """Fill in the defaults of a value that a release has decoded in place, at any depth."""
    if not _has_defaults(type_name):
        return
    if type_name.startswith((LIST, MAP)):
        below = item_type(type_name)
        for item in value.values() if isinstance(value, dict) else value:
            apply_defaults(item, below, version)
        return
    known = struct(type_name, version)
    if known is None:
        return
    for name, default in read_table("defaults").get(type_name, {}).items():
        # the zero value of a field that is not a pointer cannot be distinguished from absence
        if value.get(name) is None or (known.fields[name].presence != "pointer" and value[name] in ("", 0)):
            value[name] = decode(default, known.fields[name].type, version)
    for name, entry in known.fields.items():
        if (item := value.get(name)) is not None:
            apply_defaults(item, entry.type, version)


def set_pod_defaults(pod: Object) -> None:
    """Fill in pull policies, requests from limits, empty volumes and host ports of a pod or pod template in place."""
    spec = pod.get("spec")
    if spec is None:
        return
    spec.setdefault("enableServiceLinks", True)
    for volume in spec.get("volumes") or ():
        if not any(value is not None for name, value in volume.items() if name != "name"):
            volume["emptyDir"] = {}
    set_pull_policies(pod)
    for container in _containers(pod):
        resources = container.get("resources") or {}
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
        for port in (container.get("ports") or ()) if spec.get("hostNetwork") else ():
            port["hostPort"] = port.get("hostPort") or port.get("containerPort")


def set_pull_policies(pod: Object) -> None:
    """Fill in ``imagePullPolicy`` of the containers of a pod or pod template, depending on the image's tag."""
    for container in _containers(pod):
        if not container.get("imagePullPolicy"):
            tag = container.get("image", "").rpartition("/")[2]
            latest = (":" not in tag and "@" not in tag) or tag.endswith(":latest")
            container["imagePullPolicy"] = "Always" if latest else "IfNotPresent"


def _containers(pod: Object) -> Iterator[Object]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod["spec"].get(field) or ()
