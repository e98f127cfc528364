"""The nodes where a driver works, inferred from its slices and pods.

A kubelet calls only registered drivers, and no object lists them. It deletes the slices of a driver whose registration
is lost (Kubernetes 1.37, ``pkg/kubelet/cm/dra/manager.go``). So a driver without slices of a node is not registered
there, or has withdrawn its devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.diagnosis.explain.cluster import ClusterView, failing_containers, is_plugin_path, role_words
from dra_kit.kubernetes.resource.objects import is_deleted, is_terminal, object_name
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from dra_kit.kubernetes.values.json import ObjectView

NODE_PODS: Final = "app.kubernetes.io/component=node"
"""Selects the pods of the node role, by the labels of the chart."""
REMOVAL_PAGE: Final = "docs/how-to/remove-a-driver.md"
_NAME: Final = "app.kubernetes.io/name"
_HOSTNAMES: Final = frozenset({"metadata.name", "kubernetes.io/hostname"})
Presence: TypeAlias = Literal["works", "removing", "absent", "silent", "unknown"]


class DriverOnNode(Struct, frozen=True):
    """The driver of a claim's devices on a node.

    Attributes:
        presence: ``works``: it publishes devices of the node; ``removing``: its pod there runs ``decommission``;
            ``absent``: it has neither slices nor a pod there; ``silent``: it has a pod, but no slices;
            ``unknown``: its devices belong to no node, so slices do not show where it is registered.
        pod: namespace and name of its pod on the node; empty if unknown.
    """

    driver: str
    node: str
    presence: Presence
    pod: str = ""

    @property
    def problem(self) -> str:
        """A clause about why it does not serve the node; empty if it does."""
        match self.presence:
            case "absent":
                return f"the driver has no slice of {self.node}, so it is not registered there"
            case "silent":
                return f"the driver has no slice of {self.node}, although its pod {self.pod} exists"
            case "removing":
                return f"the driver is being removed (node.decommission), by pod {self.pod}"
            case "works" | "unknown":
                return ""

    @property
    def remedy(self) -> str:
        """What to do; empty if it works."""
        match self.presence:
            case "absent":
                return (
                    f"install {self.driver} again, or with node.decommission=true if it is to be removed: it then "
                    f"releases the devices of pods on {self.node} ({REMOVAL_PAGE})"
                )
            case "silent":
                return f"see the log of pod {self.pod}, and `dra-kit status` in it"
            case "removing":
                return f"delete pods that have its devices; the log of pod {self.pod} lists them ({REMOVAL_PAGE})"
            case "works" | "unknown":
                return ""


def drivers_of(cluster: ClusterView, claim: ResourceClaim, node: str = "") -> Iterator[DriverOnNode]:
    """Yield the drivers of a claim's devices on ``node``, or on the node that the allocation names."""
    allocation = claim.status.allocation
    node = node or _node_of(claim)
    if allocation is None or not node:
        return
    pools: dict[str, set[str]] = {}
    for result in allocation.devices.results:
        pools.setdefault(result.driver, set()).add(result.pool)
    for driver, names in pools.items():
        yield driver_on(cluster, driver, node, names)


def driver_on(cluster: ClusterView, driver: str, node: str, pools: Iterable[str] = ()) -> DriverOnNode:
    """Return the state of a driver on a node, for devices of ``pools``."""
    pod = next((each for each in _pods(cluster, driver) if each["spec"].get("nodeName") == node), None)
    name = object_name(pod) if pod is not None else ""
    specs = [slice_.spec for slice_ in cluster.slices if slice_.spec.driver == driver]
    presence: Presence = "absent"
    if pod is not None and _decommissions(pod):
        presence = "removing"
    elif any(spec.node_name == node for spec in specs):
        presence = "works"
    elif any(not spec.node_name and spec.pool.name in pools for spec in specs):
        presence = "unknown"
    elif pod is not None:
        presence = "silent"
    return DriverOnNode(driver, node, presence, name)


def pod_to_examine(cluster: ClusterView, driver: DriverOnNode) -> str:
    """Return what to do if the kubelet of a node cannot prepare the devices of a driver."""
    node, registers = driver.node, f"{driver.driver} must run and register with the kubelet of {driver.node}"
    if driver.pod:
        pod = next(each for each in _pods(cluster, driver.driver) if object_name(each) == driver.pod)
        state = "; ".join(failing_containers(pod))
        return f"{registers}: see the log of its pod there, {driver.pod}{f' ({state})' if state else ''}"
    mounting = sorted(object_name(pod) for pod in cluster.documents("Pod") if _is_plugin_on(pod, node))
    if mounting:
        return f"{registers}: its pod there is one of those with the kubelet's plugin folders: {', '.join(mounting)}"
    command = f"`kubectl get pods -A -o wide --field-selector spec.nodeName={node}`"
    return f"{registers}: does its pod, one of a DaemonSet, run there, and what does its log say? {command} lists pods"


def _is_plugin_on(pod: ObjectView, node: str) -> bool:
    """Return whether a pod of a node mounts the folders in which drivers register."""
    if pod["spec"].get("nodeName") != node or is_terminal(pod):
        return False
    volumes = pod["spec"].get("volumes") or ()
    return any(is_plugin_path((volume.get("hostPath") or {}).get("path") or "") for volume in volumes)


def is_being_removed(cluster: ClusterView, driver: str) -> bool:
    """Return whether pods of a driver run ``dra-kit decommission``, so that it publishes no devices."""
    return any(_decommissions(pod) for pod in _pods(cluster, driver))


def driver_label(driver: str) -> str:
    """Return the label selector of a driver's pods, by the labels of the chart."""
    return f"{_NAME}={driver}"


def _decommissions(pod: ObjectView) -> bool:
    return any(role_words(container) for container in pod["spec"].get("containers") or ())


def _pods(cluster: ClusterView, driver: str) -> Iterator[ObjectView]:
    """Yield the live pods of a driver's node role, terminating ones last."""
    label, _, value = NODE_PODS.partition("=")
    found = []
    for pod in cluster.documents("Pod"):
        labels = pod["metadata"].get("labels") or {}
        if labels.get(_NAME) == driver and labels.get(label) == value and not is_terminal(pod):
            found.append(pod)
    yield from sorted(found, key=is_deleted)


def _node_of(claim: ResourceClaim) -> str:
    """Return the only node of an allocation; empty if it allows several."""
    selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
    terms = selector.node_selector_terms if selector is not None else ()
    if len(terms) != 1:
        return ""
    for requirement in (*terms[0].match_fields, *terms[0].match_expressions):
        if requirement.key in _HOSTNAMES and requirement.operator == "In" and len(requirement.values) == 1:
            return requirement.values[0]
    return ""
