"""Where a driver works, as far as the objects of a cluster show it: its slices, and its pods.

A kubelet calls registered drivers only, and no object lists the drivers it knows. It removes the slices of a driver
that it has lost (Kubernetes 1.37, ``pkg/kubelet/cm/dra/manager.go``). So a driver without any slice of a node is not
registered there, or has withdrawn its devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.diagnosis.explain.cluster import ClusterView, role_words
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from dra_kit.kubernetes.values.json import ObjectView

NODE_PODS: Final = "app.kubernetes.io/component=node"
"""Selects the pods of the node role, by the labels of the chart."""
REMOVAL_PAGE: Final = "docs/how-to/remove-a-driver.md"
_NAME: Final = "app.kubernetes.io/name"
_HOSTNAMES: Final = frozenset({"metadata.name", "kubernetes.io/hostname"})
_ENDED: Final = frozenset({"Succeeded", "Failed"})
Presence: TypeAlias = Literal["works", "removing", "absent", "silent", "unknown"]


class DriverOnNode(Struct, frozen=True):
    """A driver on a node whose devices a claim has.

    Attributes:
        driver: its name.
        node: name of the node.
        presence: ``works``: it publishes devices of the node; ``removing``: its pod there runs ``decommission``;
            ``absent``: there is neither a slice nor a pod of it; ``silent``: there is a pod, and no slice;
            ``unknown``: its devices belong to no node, so that slices do not show where it is registered.
        pod: namespace and name of its pod on the node; empty where none is known.
    """

    driver: str
    node: str
    presence: Presence
    pod: str = ""

    @property
    def problem(self) -> str:
        """What keeps it from serving the node, a clause about "the driver"; empty where it works."""
        match self.presence:
            case "absent":
                return f"the driver has no slice of {self.node}, so it is not registered there"
            case "silent":
                return f"the driver has no slice of {self.node}, although its pod {self.pod} is there"
            case "removing":
                return f"the driver is being removed (node.decommission), by pod {self.pod}"
            case "works" | "unknown":
                return ""

    @property
    def remedy(self) -> str:
        """What to do about it; empty where it works."""
        match self.presence:
            case "absent":
                return (
                    f"install {self.driver} again, or with node.decommission=true where it is to be removed: it "
                    f"releases what pods on {self.node} have ({REMOVAL_PAGE})"
                )
            case "silent":
                return f"look at the log of pod {self.pod}, and at `dra-kit status` in it"
            case "removing":
                return (
                    f"delete pods that have its devices; the log of pod {self.pod} says what is left ({REMOVAL_PAGE})"
                )
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
    name = f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata'].get('name', '')}" if pod is not None else ""
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


def is_being_removed(cluster: ClusterView, driver: str) -> bool:
    """Whether pods of a driver run ``dra-kit decommission``: it publishes no devices any more."""
    return any(_decommissions(pod) for pod in _pods(cluster, driver))


def driver_label(driver: str) -> str:
    """Return what selects the pods of a driver, by the labels of the chart."""
    return f"{_NAME}={driver}"


def _decommissions(pod: ObjectView) -> bool:
    return any(role_words(container) for container in pod["spec"].get("containers") or ())


def _pods(cluster: ClusterView, driver: str) -> Iterator[ObjectView]:
    """Yield the live pods of a driver's node role; those that end come last."""
    label, _, value = NODE_PODS.partition("=")
    found = []
    for pod in cluster.documents("Pod"):
        labels = pod["metadata"].get("labels") or {}
        ended = (pod.get("status") or {}).get("phase") in _ENDED
        if labels.get(_NAME) == driver and labels.get(label) == value and not ended:
            found.append(pod)
    yield from sorted(found, key=lambda pod: bool(pod["metadata"].get("deletionTimestamp")))


def _node_of(claim: ResourceClaim) -> str:
    """Return the only node that an allocation is for; empty where it is for several."""
    selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
    for term in selector.node_selector_terms if selector is not None else ():
        for requirement in (*term.match_fields, *term.match_expressions):
            if requirement.key in _HOSTNAMES and requirement.operator == "In" and len(requirement.values) == 1:
                return requirement.values[0]
    return ""
