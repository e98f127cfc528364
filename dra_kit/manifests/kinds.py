"""The kinds whose rules are known, of Kubernetes 1.37."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from dra_kit.resource import v1, v1alpha3
from dra_kit.resource.v1 import APIModel
from dra_kit.resource.validation.new_objects import POD_SPECS

GROUP: Final = "resource.k8s.io"


class KnownKind(Struct, frozen=True):
    """A kind.

    Attributes:
        name: the kind.
        types: by ``apiVersion`` the type of the part that is known, in the schema table; the newest version first.
        namespaced: whether its objects live in namespaces.
        status: whether its status is written by others than whoever creates it.
        generation: whether the API server counts the changes of its spec.
        part: where the part is whose fields are known; empty for all of the object.
        model: of resource.k8s.io, of its newest version.
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
        """Where the spec of a pod is; empty if it has none."""
        return POD_SPECS.get(self.name, ())


def _resource(
    model: type[APIModel],
    *served: str,
    namespaced: bool = False,
    status: bool = False,
    generation: bool = False,
) -> tuple[str, KnownKind]:
    name = model.__name__
    types = {f"{GROUP}/{version}": f"resource/{version}.{name}" for version in served or ("v1", "v1beta2", "v1beta1")}
    return name, KnownKind(name, types, namespaced, status, generation, model=model)


RESOURCE_KINDS: Final[Mapping[str, KnownKind]] = dict(
    (
        _resource(v1.DeviceClass, generation=True),
        _resource(v1.DeviceTaintRule, "v1", "v1beta2", "v1alpha3", status=True, generation=True),
        _resource(v1.ResourceClaim, namespaced=True, status=True),
        _resource(v1.ResourceClaimTemplate, namespaced=True),
        _resource(v1alpha3.ResourcePoolStatusRequest, "v1alpha3", status=True),
        _resource(v1.ResourceSlice, generation=True),
    )
)
"""The kinds of resource.k8s.io."""

_TEMPLATE: Final = "core/v1.PodTemplateSpec"


def _template(name: str, api_version: str) -> KnownKind:
    """Return a kind of which only the pods are known that it creates."""
    return KnownKind(name, {api_version: _TEMPLATE}, namespaced=True, part=POD_SPECS[name][:-1])


KINDS: Final[Mapping[str, KnownKind]] = {
    **RESOURCE_KINDS,
    "Pod": KnownKind("Pod", {"v1": "core/v1.Pod"}, namespaced=True, status=True, generation=True),
    "Node": KnownKind("Node", {"v1": "core/v1.Node"}),
    "Event": KnownKind("Event", {"events.k8s.io/v1": "events/v1.Event", "v1": "core/v1.Event"}, namespaced=True),
    **{
        name: KnownKind(name, {"apps/v1": f"apps/v1.{name}"}, namespaced=True, status=True, generation=True)
        for name in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
    },
    **{
        name: _template(name, api_version)
        for name, api_version in (
            ("CronJob", "batch/v1"), ("Job", "batch/v1"), ("PodTemplate", "v1"), ("ReplicationController", "v1"),
        )
    },
}  # fmt: skip
"""All of them."""
