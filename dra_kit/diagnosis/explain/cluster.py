"""The cluster for ``explain``: documents, models, and objects that could not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, TypeVar

from msgspec import Struct, field, structs
from pydantic import ValidationError

from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.allocator.devices import DeviceID
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.kubernetes.resource.api_model import APIModel
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.slice_reader import LazySlice, SliceReader
from dra_kit.kubernetes.resource.v1 import (
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from dra_kit.kubernetes.scheduler.nodes import KnownRequests, NodeLoad, node_loads, pod_requests
from dra_kit.kubernetes.values.json import ObjectView

_Model = TypeVar("_Model", bound=APIModel)
_Read = TypeVar("_Read")
_NOT_KNOWN: Final = {
    "ResourceClaim": "devices that claims of other namespaces hold",
    "DeviceTaintRule": "taints of DeviceTaintRules",
}
"""What is unknown if objects of a kind could not be read."""


@dataclass(frozen=True, slots=True)
class MissingRight:
    """A missing right to list objects, and what is unknown without them."""

    kind: str
    group: str
    plural: str
    consequence: str

    @property
    def text(self) -> str:
        """The denied operation."""
        return f"you may not list {self.plural}"


class DeviceHolder(Struct, frozen=True):
    """A claim (``namespace/name``) and request that hold a device, or a share of it."""

    claim: str
    request: str
    share: bool


def missing_rules(gaps: Iterable[MissingRight]) -> list[str]:
    """Return the ClusterRole rules for the missing rights as YAML, one for each API group."""
    groups: dict[str, list[str]] = {}
    for gap in gaps:
        groups.setdefault(gap.group, []).append(gap.plural)
    return [
        f'{{apiGroups: ["{group}"], resources: [{", ".join(plurals)}], verbs: [list]}}'
        for group, plurals in sorted(groups.items())
    ]


class ClusterView:
    """The objects of a cluster as models.

    Args:
        documents: objects of resource.k8s.io/v1 and core/v1 as JSON, by kind, with the defaults of the API.
        gates: the scheduler's feature gates.
        version: the Kubernetes release whose rules answer, for display.
        gaps: the missing rights.
        pods_of: the only namespace of which all pods were read; empty for all.
        complete: whether all objects were read that exist; not from files that a person saved.
        extended_resources: whether DeviceClasses provide extended resources (feature gate DRAExtendedResource).

    Attributes:
        slices: all ResourceSlices.
        claims: ResourceClaims by namespace and name.
        rules: all DeviceTaintRules.
        nodes: Nodes in the order of the documents; without any, the nodes named by slices.
        knows_nodes: whether ``nodes`` come from Node objects.

    Raises:
        ConfigurationError: an object does not have the shape of the API.
    """

    def __init__(
        self,
        documents: Mapping[str, Sequence[ObjectView]],
        *,
        gates: AllocatorRules,
        version: str = "",
        gaps: Iterable[MissingRight] = (),
        pods_of: str = "",
        complete: bool = True,
        extended_resources: bool = True,
    ) -> None:
        self._documents = documents
        self.complete: bool = complete
        self.extended_resources: bool = extended_resources
        self._pods_of = pods_of
        self.gates = gates
        self.version = version
        self.gaps: tuple[MissingRight, ...] = tuple(gaps)
        read = SliceReader(gates.version).read
        self.slices: list[LazySlice] = [
            _read("ResourceSlice", document, read) for document in documents.get("ResourceSlice", ())
        ]
        self.rules: list[DeviceTaintRule] = list(_models(DeviceTaintRule, documents, gates))
        self.claims: dict[tuple[str, str], ResourceClaim] = {
            (claim.metadata.namespace, claim.metadata.name): claim for claim in _models(ResourceClaim, documents, gates)
        }
        self.knows_nodes: bool = bool(documents.get("Node"))
        self.nodes: list[Node] = [Node.of(node) for node in self.documents("Node")] or [
            Node(name) for name in self._named_nodes()
        ]
        self.snapshot: AllocatorState = AllocatorState(
            slices=self.slices,
            classes=_models(DeviceClass, documents, gates),
            taint_rules=self.rules,
            claims=self.claims.values(),
            version=gates.version,
        )

    def assume(
        self,
        pod: ObjectView,
        node: str,
        allocated: Iterable[tuple[ResourceClaim, AllocationResult]],
        reserved: Iterable[ResourceClaim],
    ) -> None:
        """Record that a pod is scheduled to a node, for the pods that are explained after it.

        Args:
            pod: with a namespace and a UID.
            node: name of the node.
            allocated: its claims that get devices there.
            reserved: its claims that already have devices.
        """
        metadata = pod["metadata"]
        consumer = ResourceClaimConsumerReference(resource="pods", name=metadata["name"], uid=metadata["uid"])
        changed = {"metadata": {key: value for key, value in metadata.items() if key != "uid"}}
        placed = {**pod, **changed, "spec": {**pod["spec"], "nodeName": node}}
        key = _document_key(pod)
        others = [each for each in self.documents("Pod") if _document_key(each) != key]
        self._documents = {**self._documents, "Pod": [*others, placed]}
        if node in self.loads:
            self.loads[node].add(placed, pod_requests(placed, self.gates.version))
        for claim, allocation in allocated:
            self.snapshot.allocate(allocation)
            status = ResourceClaimStatus(allocation=allocation, reserved_for=(consumer,))
            self.claims[claim.metadata.namespace, claim.metadata.name] = claim.model_copy(update={"status": status})
        for claim in reserved:
            if all(each.uid != consumer.uid for each in claim.status.reserved_for):
                consumers = {"reserved_for": (*claim.status.reserved_for, consumer)}
                status = claim.status.model_copy(update=consumers)
                self.claims[claim.metadata.namespace, claim.metadata.name] = claim.model_copy(update={"status": status})
        for name in ("holders", "pods"):
            self.__dict__.pop(name, None)

    def documents(self, kind: str) -> Sequence[ObjectView]:
        """Return all objects of a kind as JSON."""
        return self._documents.get(kind, ())

    def find(self, kind: str, namespace: str, name: str) -> ObjectView | None:
        """Return an object as JSON; None if it does not exist."""
        for document in self.documents(kind):
            metadata = document["metadata"]
            if metadata.get("name") == name and metadata.get("namespace", "") == namespace:
                return document
        return None

    def gap(self, kind: str) -> MissingRight | None:
        """Return the missing right for a kind; None if its objects could be read."""
        return next((gap for gap in self.gaps if gap.kind == kind), None)

    @cached_property
    def not_known(self) -> tuple[str, ...]:
        """Objects that hold or taint devices, and could not be read."""
        return tuple(text for kind, text in _NOT_KNOWN.items() if self.gap(kind) is not None)

    @cached_property
    def has_devices_for_unknown_nodes(self) -> bool:
        """Whether devices are offered to all nodes or by labels while the nodes are unknown."""
        return not self.knows_nodes and any(
            scope.all_nodes or scope.node_selector is not None
            for slice_ in self.slices
            for scope in (slice_.devices if slice_.spec.per_device_node_selection else (slice_.spec,))
        )

    @cached_property
    def node_names(self) -> frozenset[str]:
        """Names of the nodes."""
        return frozenset(node.name for node in self.nodes)

    @property
    def extended_classes(self) -> Sequence[ObjectView]:
        """The DeviceClasses that may provide extended resources."""
        return self.documents("DeviceClass") if self.extended_resources else ()

    def knows_pods(self, namespace: str) -> bool:
        """Return whether all pods of a namespace were read, so that others do not exist."""
        return "Pod" in self._documents and self.gap("Pod") is None and self._pods_of in {"", namespace}

    @cached_property
    def pods(self) -> Mapping[tuple[str, str], ObjectView]:
        """The pods by namespace and name."""
        return {_document_key(pod): pod for pod in self.documents("Pod")}

    @cached_property
    def loads(self) -> Mapping[str, NodeLoad]:
        """The nodes by name, with the requests of their pods."""
        placed = [(pod["spec"]["nodeName"], pod) for pod in self.documents("Pod") if pod["spec"].get("nodeName")]
        return node_loads(self.documents("Node"), placed, KnownRequests(self.gates.version))

    @cached_property
    def newest_slices(self) -> Mapping[tuple[str, str], Sequence[LazySlice]]:
        """The slices of the newest generation of each pool, by driver and pool."""
        newest: dict[tuple[str, str], list[LazySlice]] = {}
        for slice_ in self.slices:
            known = newest.setdefault((slice_.spec.driver, slice_.spec.pool.name), [])
            if not known or slice_.spec.pool.generation == known[0].spec.pool.generation:
                known.append(slice_)
            elif slice_.spec.pool.generation > known[0].spec.pool.generation:
                known[:] = [slice_]
        return newest

    @cached_property
    def published(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """The names of the devices of each complete pool, by driver and pool."""
        return {
            pool: frozenset(name for slice_ in slices for name in slice_.names)
            for pool, slices in self.newest_slices.items()
            if len(slices) == slices[0].spec.pool.resource_slice_count
        }

    @cached_property
    def repeated_pools(self) -> Mapping[tuple[str, str], tuple[Sequence[str], str]]:
        """The nodes that publish one pool, and a device that several of them have, by driver and pool."""
        found: dict[tuple[str, str], tuple[Sequence[str], str]] = {}
        for pool, slices in self.newest_slices.items():
            nodes = list(dict.fromkeys(slice_.spec.node_name for slice_ in slices if slice_.spec.node_name))
            if len(nodes) > 1:
                counts = Counter(name for slice_ in slices if slice_.spec.node_name for name in slice_.names)
                name, number = max(counts.items(), key=lambda item: item[1], default=("", 0))
                if number > 1:
                    found[pool] = nodes, name
        return found

    @cached_property
    def holders(self) -> Mapping[DeviceID, Sequence[DeviceHolder]]:
        """The holders of each device; admin access holds nothing."""
        holders: dict[DeviceID, list[DeviceHolder]] = {}
        for (namespace, name), claim in self.claims.items():
            allocation = claim.status.allocation
            for result in allocation.devices.results if allocation is not None else ():
                if not result.admin_access:
                    device = DeviceID(result.driver, result.pool, result.device)
                    holder = DeviceHolder(f"{namespace}/{name}", result.request, share=result.share_id is not None)
                    holders.setdefault(device, []).append(holder)
        return holders

    @cached_property
    def advertised(self) -> Advertised | None:
        """The names, types and values of the devices; None if an API server would not accept them."""
        try:
            return Advertised(self.slices, complete=True)
        except ValueError:
            return None

    def _named_nodes(self) -> list[str]:
        names = {slice_.spec.node_name for slice_ in self.slices}
        names |= {device.node_name for slice_ in self.slices if slice_.usual is None for device in slice_.devices}
        return sorted(name for name in names if name)


def model_of_claim(document: ObjectView, gates: AllocatorRules) -> ResourceClaim:
    """Return a ResourceClaim as a model.

    Args:
        document: the claim.
        gates: of the scheduler; its release has the limits of quantities.

    Raises:
        ConfigurationError: it does not have the shape of the API.
    """
    return _model(ResourceClaim, document, gates)


def _models(
    model: type[_Model], documents: Mapping[str, Sequence[ObjectView]], gates: AllocatorRules
) -> Iterator[_Model]:
    return (_model(model, document, gates) for document in documents.get(model.__name__, ()))


def _model(model: type[_Model], document: ObjectView, gates: AllocatorRules) -> _Model:
    return _read(model.__name__, document, partial(model.model_validate, context=gates.version))


def _read(kind: str, document: ObjectView, read: Callable[[ObjectView], _Read]) -> _Read:
    try:
        return read(document)
    except ValidationError as error:
        metadata = document.get("metadata") or {}
        name = "/".join(filter(None, (metadata.get("namespace"), metadata.get("name"))))
        raise ConfigurationError(
            f"{kind} {name}: {first_problem(error)}; it is not an object that an API server would store"
        ) from None


def first_problem(error: ValidationError) -> str:
    """Return the first problem of a value as ``path.of.field: problem``."""
    first = error.errors(include_url=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


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
"""The kinds that explanations read."""
COPY_KINDS: Final = ("Namespace", "ResourceQuota", "PodGroup")
"""The kinds that a snapshot has beside them, for copies of the cluster."""
_METADATA: Final = (
    "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "finalizers",
    "labels", "ownerReferences",
)  # fmt: skip
_ANNOTATIONS: Final = frozenset(
    {"resource.kubernetes.io/pod-claim-name", "resource.kubernetes.io/extended-resource-claim"}
)
_POD_SPEC: Final = (
    "nodeName", "nodeSelector", "affinity", "tolerations", "overhead", "resources", "resourceClaims", "schedulingGates",
    "schedulerName", "topologySpreadConstraints", "schedulingGroup", "priority",
    "priorityClassName", "activeDeadlineSeconds",  # scopes of quotas
)  # fmt: skip
_POD_STATUS: Final = (
    "phase", "conditions", "nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus",
)  # fmt: skip
TYING_VOLUMES: Final[dict[str, tuple[str, ...]]] = {
    "persistentVolumeClaim": ("claimName",), "csi": ("driver",),
    **dict.fromkeys(("awsElasticBlockStore", "azureDisk", "cinder", "ephemeral", "gcePersistentDisk", "iscsi",
                     "portworxVolume", "rbd", "vsphereVolume"), ()),
}  # fmt: skip
"""Volumes that are not available on every node, and their saved fields.

Source: kube-scheduler 1.37, the filters VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits.
"""
_CONTAINER_STATUSES: Final = ("initContainerStatuses", "containerStatuses")


class ClusterDocuments(Struct, frozen=True):
    """The objects of a cluster at one moment.

    Attributes:
        documents: the objects as JSON, by kind.
        version: the Kubernetes release: ``1.37``.
        judged_as: the release whose rules answer, as if the cluster were upgraded to it; empty for its own.
        alpha: whether the alpha features of resource.k8s.io are on.
        pods_of: the only namespace of which all pods were read; empty for all.
        complete: whether all objects were read that exist; not from files that a person saved.
    """

    documents: Mapping[str, Sequence[ObjectView]]
    version: str
    alpha: bool = False
    gaps: tuple[MissingRight, ...] = field(default=())
    pods_of: str = ""
    complete: bool = True
    judged_as: str = ""

    def cluster(self) -> ClusterView:
        """Create the models.

        Raises:
            ConfigurationError: an object does not have the shape of the API, or the release is too old.
        """
        return ClusterView(
            self.documents,
            gates=AllocatorRules.of(self.release),
            version=self.judged_as or self.version,
            gaps=[gap for gap in self.gaps if gap.kind in KINDS],
            pods_of=self.pods_of,
            complete=self.complete,
            extended_resources=self.extended_resources,
        )

    @property
    def release(self) -> Release:
        """The release whose rules answer, with its default gates or those of alpha features too.

        Raises:
            ConfigurationError: the version is not a release with resource.k8s.io/v1.
        """
        named = self.judged_as or self.version
        try:
            version = KubernetesVersion.parse(named)
        except ValueError as error:
            raise ConfigurationError(f"the cluster is of release {named}: {error}") from None
        return Release.alpha(version) if self.alpha else Release.of(version)

    @property
    def extended_resources(self) -> bool:
        """Whether the feature gate DRAExtendedResource is on: by default, or a class has a name.

        Raises:
            ConfigurationError: see :attr:`release`.
        """
        if "DRAExtendedResource" in self.release:
            return True
        classes = self.documents.get("DeviceClass", ())
        return any((document.get("spec") or {}).get("extendedResourceName") for document in classes)

    def with_(self, documents: Mapping[str, Sequence[ObjectView]]) -> ClusterDocuments:
        """Return a view of these objects and others, which replace those of the same kind and name.

        DeviceClasses lose the names of extended resources if the API server would drop them. Claims that have devices
        keep them.
        """
        if not self.extended_resources:
            documents = {**documents, "DeviceClass": list(map(_unextended, documents.get("DeviceClass", ())))}
        merged = {kind: list(found) for kind, found in self.documents.items()}
        for kind, found in documents.items():
            keys = {_document_key(document) for document in found}
            former = merged.get(kind, ())
            stored = {_document_key(each): each for each in former} if kind == "ResourceClaim" else {}
            given = [_with_status(document, stored.get(_document_key(document))) for document in found]
            merged[kind] = [document for document in former if _document_key(document) not in keys] + given
        return structs.replace(self, documents=merged)


def _with_status(claim: ObjectView, stored: ObjectView | None) -> ObjectView:
    """Return a claim after its manifest is applied; ``stored`` is the present one, None if it is new."""
    return {**claim, "status": stored["status"]} if stored is not None and stored.get("status") else claim


def _unextended(device_class: ObjectView) -> ObjectView:
    spec = {key: value for key, value in device_class["spec"].items() if key != "extendedResourceName"}
    return {**device_class, "spec": spec}


def reduced(kind: str, document: ObjectView) -> dict[str, Any]:
    """Return an object as it is saved: pods without commands and environments, nodes without addresses.

    A command is reduced to the word that shows the removal of a driver. Opaque configuration of claims and classes is
    saved, since explanations show it.
    """
    saved: dict[str, Any] = {
        "apiVersion": document.get("apiVersion", ""),
        "kind": kind,
        "metadata": _metadata(document.get("metadata") or {}),
    }
    match kind:
        case "Node":
            spec = _only(document.get("spec") or {}, ("taints", "unschedulable"))
            status = _only(document.get("status") or {}, ("allocatable", "declaredFeatures"))
            return saved | {"spec": spec, "status": status}
        case "Pod":
            return saved | {
                "spec": _pod_spec(document["spec"]),
                "status": _pod_status(document.get("status") or {}),
            }
        case "Namespace":
            return saved | {"status": _only(document.get("status") or {}, ("phase",))}
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
    volumes += [
        {"name": volume["name"], "hostPath": {"path": path}}
        for volume in spec.get("volumes") or ()
        if is_plugin_path(path := (volume.get("hostPath") or {}).get("path") or "")
    ]
    return saved | ({"volumes": volumes} if volumes else {})


def is_plugin_path(path: str) -> bool:
    """Return whether a host path is a folder of kubelet plugins, which the pods of drivers mount."""
    return not {"plugins", "plugins_registry"}.isdisjoint(path.split("/"))


def _container(container: Mapping[str, Any]) -> dict[str, Any]:
    ports = [port for port in container.get("ports") or () if port.get("hostPort")]
    words = role_words(container)
    saved = _only(container, ("name", "resources", "restartPolicy"))
    return saved | ({"ports": ports} if ports else {}) | ({"args": words} if words else {})


def _pod_status(status: Mapping[str, Any]) -> dict[str, Any]:
    saved = _only(status, _POD_STATUS)
    for field_ in _CONTAINER_STATUSES:
        if status.get(field_):
            saved[field_] = [_container_status(entry) for entry in status[field_]]
    return saved


def _container_status(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return why a container waits or ended, without its termination message, which may be its log."""
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


def container_statuses(pod: ObjectView) -> list[Mapping[str, Any]]:
    """Return the statuses of a pod's init containers, then of its regular ones."""
    status = pod.get("status") or {}
    return [entry for field_ in _CONTAINER_STATUSES for entry in status.get(field_) or ()]


_STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Reasons of waiting containers that are not failures."""


def failing_containers(pod: ObjectView) -> list[str]:
    """Return each failing container with its status: ``container app: CrashLoopBackOff: back-off 10s …``."""
    return [
        f"container {entry.get('name', '')}: {text}" for entry in container_statuses(pod) if (text := _failure(entry))
    ]


def _failure(entry: Mapping[str, Any]) -> str:
    state, before = entry.get("state") or {}, entry.get("lastState") or {}
    waiting, ended = state.get("waiting"), state.get("terminated")
    if waiting and waiting.get("reason", "") not in _STARTING:
        text = ": ".join(filter(None, (waiting["reason"], " ".join(str(waiting.get("message") or "").split()))))
        return "; ".join((text, *_ended(before.get("terminated"))))
    return "".join(_ended(ended)) if ended and ended.get("exitCode") else ""


def _ended(terminated: Mapping[str, Any] | None) -> Iterator[str]:
    if terminated:
        reason = f" ({terminated['reason']})" if terminated.get("reason") else ""
        yield f"it exited with code {terminated.get('exitCode', 0)}{reason}"


def _document_key(document: ObjectView) -> tuple[str, str]:
    metadata = document.get("metadata") or {}
    return metadata.get("namespace", ""), metadata.get("name", "")


def role_words(container: ObjectView) -> list[str]:
    """Return ``decommission`` if a container of a pod runs that role, and no other word of its command line."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return ["decommission"] if "decommission" in words[:3] else []  # an interpreter and dra-kit may come before it


_NAMES: Final = 3


def named(nodes: Collection[str]) -> str:
    """Return ``n1, n2 and n3``; of many nodes the first ones."""
    names = sorted(nodes)
    if len(names) <= _NAMES:
        return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
    return f"{', '.join(names[:_NAMES])} and {len(names) - _NAMES} more"
