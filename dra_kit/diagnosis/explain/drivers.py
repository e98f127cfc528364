"""The nodes where a driver works, inferred from its slices and pods; what the deletion of a pod waits for. Pure.

A kubelet calls only registered drivers, and no object lists them. It deletes the slices of a driver whose registration
is lost (Kubernetes 1.37, ``pkg/kubelet/cm/dra/manager.go``). So a driver without slices of a node is not registered
there, or has withdrawn its devices.

A pod that is being deleted waits for drivers: the kubelet stops the containers, then asks each driver to release the
pod's devices (NodeUnprepareResources), and retries until it has. It reports no Event when a driver does not answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.diagnosis.explain.cluster import (
    ClusterView,
    container_statuses,
    failing_containers,
    is_plugin_path,
    role_words,
)
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


_UNREACHABLE: Final = "node.kubernetes.io/unreachable"


class PodDeletion(Struct, frozen=True):
    """The deletion of a pod that has a node.

    Attributes:
        since: when it was requested, RFC 3339.
        waits_for: drivers that have not released its devices; empty while containers run, or without a kubelet.
        text: what it waits for, a clause: ``waits for kitchen.pizza.example to release its devices``.
        problems: why that takes long, one sentence each.
        remedies: what to do.
    """

    since: str
    waits_for: tuple[str, ...]
    text: str
    problems: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()


def pod_deletion(cluster: ClusterView, pod: ObjectView, drivers: Sequence[DriverOnNode]) -> PodDeletion:
    """Return what the deletion of a pod waits for.

    ``drivers`` are those of its devices, on its node.
    """
    metadata, node = pod["metadata"], str(pod["spec"].get("nodeName") or "")
    since, problems, remedies = _since(metadata), [], []
    if finalizers := metadata.get("finalizers"):
        problems.append(f"then it waits for its finalizers, which their controllers remove: {', '.join(finalizers)}")
    if gone := _without_kubelet(cluster, node):
        remedies.append(f"start the kubelet of {node}; if it does not return, delete the Node")
        return PodDeletion(since, (), f"waits for the kubelet of {node}: {gone}", tuple(problems), tuple(remedies))
    if running := list(_running(pod)):
        return PodDeletion(since, (), f"waits for its containers to terminate: {', '.join(running)}", tuple(problems))
    if not drivers:
        return PodDeletion(since, (), "waits for the kubelet: its containers have terminated", tuple(problems))
    # if a driver cannot be reached, the pod does not wait for those that work
    waits_for = [each for each in drivers if each.problem] or list(drivers)
    names = " and ".join(each.driver for each in waits_for)
    text = f"waits for {names} to release its devices"
    if len(waits_for) == 1 and waits_for[0].problem:
        text += f": {waits_for[0].problem}"
    else:
        problems[:0] = [f"{each.driver}: {each.problem}" for each in waits_for if each.problem]
    remedies += [each.remedy for each in waits_for if each.remedy]
    if not remedies:
        remedies.append(
            f"`dra-kit status` in the driver's pod on {node}, and the log of that pod, say why they are not released"
        )
    return PodDeletion(
        since, tuple(each.driver for each in waits_for), text, tuple(problems), tuple(dict.fromkeys(remedies))
    )


def driver_warnings(drivers: Iterable[DriverOnNode]) -> Iterator[str]:
    """Yield a sentence for each driver with a problem of a pod that is not being deleted."""
    for each in drivers:
        if each.presence == "removing":
            yield (
                f"{each.driver} is being removed from {each.node} (node.decommission, pod {each.pod}): this pod "
                "keeps its devices until it ends, and no new claims are prepared there"
            )
        elif each.problem:
            waits = "pods with its devices can neither start nor terminate there"
            yield f"{each.driver}: {each.problem}: {waits}; {each.remedy}"


def _since(metadata: ObjectView) -> str:
    """Return when the deletion was requested; deletionTimestamp is the end of the grace period."""
    ends, grace = str(metadata["deletionTimestamp"]), metadata.get("deletionGracePeriodSeconds") or 0
    try:
        asked = datetime.fromisoformat(ends) - timedelta(seconds=int(grace))
    except (OverflowError, TypeError, ValueError):
        return ends
    return asked.isoformat().replace("+00:00", "Z")


def _running(pod: ObjectView) -> Iterator[str]:
    """Yield the names of containers that run."""
    for entry in container_statuses(pod):
        state = entry.get("state")
        if state is not None and not {"waiting", "terminated"} & state.keys():
            yield str(entry.get("name", ""))


def _without_kubelet(cluster: ClusterView, name: str) -> str:
    """Return why no kubelet stops the pods of a node; empty if its kubelet seems to run."""
    if not cluster.knows_nodes:
        return ""
    node = cluster.find("Node", "", name)
    if node is None:
        return "the node does not exist"
    taints = [taint.get("key") for taint in (node.get("spec") or {}).get("taints") or ()]
    return f"the node does not answer (taint {_UNREACHABLE})" if _UNREACHABLE in taints else ""
