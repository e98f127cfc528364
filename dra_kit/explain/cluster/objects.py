"""The objects that explanations need, and what of them is worth keeping: nothing secret, nothing that only bulks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from dra_kit.errors import ConfigurationError
from dra_kit.explain.cluster.cluster import Cluster, Gap
from dra_kit.explain.cluster.drivers import role_words
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.values.json import ObjectView

KINDS: Final = (
    "ResourceSlice",
    "DeviceClass",
    "DeviceTaintRule",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "Node",
    "Pod",
    "Event",
)
"""The kinds that explanations look at."""

_METADATA: Final = (
    "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "finalizers",
    "labels", "ownerReferences",
)  # fmt: skip
_ANNOTATIONS: Final = frozenset(
    {"resource.kubernetes.io/pod-claim-name", "resource.kubernetes.io/extended-resource-claim"}
)
_POD_SPEC: Final = (
    "nodeName", "nodeSelector", "affinity", "tolerations", "overhead", "resources", "resourceClaims", "schedulingGates",
    "schedulerName", "topologySpreadConstraints", "schedulingGroup",
)  # fmt: skip
TYING_VOLUMES: Final[dict[str, tuple[str, ...]]] = {
    "persistentVolumeClaim": ("claimName",), "csi": ("driver",),
    **dict.fromkeys(("awsElasticBlockStore", "azureDisk", "cinder", "ephemeral", "gcePersistentDisk", "iscsi",
                     "portworxVolume", "rbd", "vsphereVolume"), ()),
}  # fmt: skip
"""Volumes that are not to be had on every node, and what is saved of them.

Source: kube-scheduler 1.37, the filters VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits.
"""

_CONTAINER: Final = ("name", "resources", "restartPolicy")
_POD_STATUS: Final = ("phase", "conditions", "resourceClaimStatuses", "extendedResourceClaimStatus")
_CONTAINER_STATUSES: Final = ("initContainerStatuses", "containerStatuses")
_NODE_STATUS: Final = ("allocatable", "declaredFeatures")
_VERSION: Final = re.compile(r"v?(?P<release>1\.[0-9]+)")


class Objects(Struct, frozen=True):
    """The objects of a cluster at one moment.

    Attributes:
        documents: as JSON, by kind.
        version: the Kubernetes release: ``1.37``.
        alpha: the alpha features of resource.k8s.io are on.
        gaps: what could not be read.
    """

    documents: Mapping[str, Sequence[ObjectView]]
    version: str
    alpha: bool = False
    gaps: tuple[Gap, ...] = field(default=())

    def cluster(self) -> Cluster:
        """Make the objects ready for explanations.

        Raises:
            ConfigurationError: an object does not have the shape of the API, or the release is too old.
        """
        release = _VERSION.match(self.version)
        try:
            gates = (
                AllocatorRules.alpha()
                if self.alpha
                else AllocatorRules.of(release["release"] if release else self.version)
            )
        except ValueError as error:
            raise ConfigurationError(f"Kubernetes {self.version}: {error}") from None
        return Cluster(self.documents, gates=gates, version=self.version, gaps=self.gaps)

    def with_(self, documents: Mapping[str, Sequence[ObjectView]]) -> Objects:
        """Return these objects and others, which replace those of the same name.

        Args:
            documents: the others, by kind.
        """
        merged = {kind: list(found) for kind, found in self.documents.items()}
        for kind, found in documents.items():
            keys = {_key(document) for document in found}
            merged[kind] = [document for document in merged.get(kind, ()) if _key(document) not in keys] + list(found)
        return Objects(merged, self.version, self.alpha, self.gaps)


def reduced(kind: str, document: ObjectView) -> dict[str, Any]:
    """Return what is saved of an object: of pods neither commands nor environments, of nodes no addresses.

    Of a command, only the word is saved that says that a driver is being removed.

    Opaque configuration of claims and classes is saved: what devices would get is part of an explanation.

    Args:
        kind: of the object.
        document: as the API server sends it.
    """
    saved: dict[str, Any] = {
        "apiVersion": document.get("apiVersion", ""),
        "kind": kind,
        "metadata": _metadata(document.get("metadata") or {}),
    }
    match kind:
        case "Node":
            spec = _only(document.get("spec") or {}, ("taints", "unschedulable"))
            return saved | {"spec": spec, "status": _only(document.get("status") or {}, _NODE_STATUS)}
        case "Pod":
            return saved | {
                "spec": _pod_spec(document["spec"]),
                "status": _pod_status(document.get("status") or {}),
            }
        case "Event":
            fields = ("regarding", "reason", "note", "type", "eventTime", "series", "reportingController")
            return saved | _only(document, fields)
        case _:
            return saved | {key: value for key, value in document.items() if key in {"spec", "status"}}


def _metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    saved = _only(metadata, _METADATA)
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key in _ANNOTATIONS}
    return saved | ({"annotations": annotations} if annotations else {})


def _pod_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    saved = _only(spec, _POD_SPEC)
    for field_ in ("initContainers", "containers"):
        if spec.get(field_):
            saved[field_] = [_container(container) for container in spec[field_]]
    volumes = [
        {"name": volume["name"], kind: _only(volume[kind], fields)}
        for volume in spec.get("volumes") or ()
        for kind, fields in TYING_VOLUMES.items()
        if volume.get(kind) is not None
    ]
    return saved | ({"volumes": volumes} if volumes else {})


def _container(container: Mapping[str, Any]) -> dict[str, Any]:
    ports = [port for port in container.get("ports") or () if port.get("hostPort")]
    words = role_words(container)
    return _only(container, _CONTAINER) | ({"ports": ports} if ports else {}) | ({"args": words} if words else {})


def _pod_status(status: Mapping[str, Any]) -> dict[str, Any]:
    saved = _only(status, _POD_STATUS)
    for field_ in _CONTAINER_STATUSES:
        if status.get(field_):
            saved[field_] = [_container_status(entry) for entry in status[field_]]
    return saved


def _container_status(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Why a container waits or how it ended; what it wrote last, which may be its log, is left out."""
    saved = _only(entry, ("name",))
    for moment in ("state", "lastState"):
        states: Mapping[str, Any] = entry.get(moment) or {}
        if "waiting" in states:
            saved[moment] = {"waiting": _only(states["waiting"], ("reason", "message"))}
        elif "terminated" in states:
            saved[moment] = {"terminated": _only(states["terminated"], ("reason", "exitCode"))}
        elif "running" in states:
            saved[moment] = {"running": {}}
    return saved


def _only(document: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: document[name] for name in names if name in document}


def _key(document: ObjectView) -> tuple[str, str]:
    metadata = document.get("metadata") or {}
    return metadata.get("namespace", ""), metadata.get("name", "")
