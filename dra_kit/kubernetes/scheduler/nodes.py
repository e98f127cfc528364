"""Filters of nodes without devices: cordon, taints, affinity to nodes and pods, and resources such as CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from dra_kit.kubernetes.resource.matching import Node, node_selector_matches, tolerates
from dra_kit.kubernetes.resource.objects import ObjectKey, containers, init_containers, is_sidecar, is_terminal
from dra_kit.kubernetes.resource.v1 import DeviceTaint, DeviceToleration, NodeSelector
from dra_kit.kubernetes.scheduler.pod_affinity import PodAffinity
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.kubernetes.values.quantity import InvalidQuantity, Quantity

NODE_UNSCHEDULABLE: Final = "NodeUnschedulable"
TAINT_TOLERATION: Final = "TaintToleration"
NODE_AFFINITY: Final = "NodeAffinity"
NODE_RESOURCES_FIT: Final = "NodeResourcesFit"
INTER_POD_AFFINITY: Final = "InterPodAffinity"
DYNAMIC_RESOURCES: Final = "DynamicResources"
RejectionKind: TypeAlias = Literal["cordon", "taint", "affinity", "resources", "pods", "devices", "claim", "error"]
_PLUGINS: Final[Mapping[RejectionKind, str]] = {
    "cordon": NODE_UNSCHEDULABLE,
    "taint": TAINT_TOLERATION,
    "affinity": NODE_AFFINITY,
    "resources": NODE_RESOURCES_FIT,
    "pods": INTER_POD_AFFINITY,
}
_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class Rejection(Struct, frozen=True):
    """Why a node cannot take a pod.

    Attributes:
        reasons: the messages of kube-scheduler.
        kind: the obstacle: ``cordon``, ``taint``, ``affinity``, ``resources``, ``pods`` (affinity between pods); for
            its claims ``devices`` (none are left for them), ``claim`` (one is bound to other nodes, or not ready
            there) or ``error``.
        lacking: for ``resources``, their names in the order of the reasons; ``pods`` if there are too many.
        hopeless: evicting other pods does not help.
    """

    reasons: tuple[str, ...]
    kind: RejectionKind
    lacking: tuple[str, ...] = ()
    hopeless: bool = True

    @property
    def plugin(self) -> str:
        """Name of the kube-scheduler plugin that rejects it."""
        return _PLUGINS.get(self.kind, DYNAMIC_RESOURCES)


class NodeLoad(Struct):
    """A node and its pods.

    Attributes:
        document: the Node object.
        node: the node for allocations.
        allocatable: allocatable resources in thousandths of each unit.
        used: requests of its pods in thousandths of each unit.
        placed: its pods.
        with_affinity: those with an affinity, which concerns other pods; they are few in most clusters.
    """

    document: ObjectView
    node: Node
    allocatable: Mapping[str, int]
    used: Counter[str] = field(default_factory=Counter)
    placed: list[ObjectView] = field(default_factory=list)
    with_affinity: list[ObjectView] = field(default_factory=list)

    @property
    def pods(self) -> int:
        """The number of its pods."""
        return len(self.placed)

    def add(self, pod: ObjectView) -> None:
        """Count a pod on the node."""
        self.used.update(pod_requests(pod))
        self.placed.append(pod)
        if pod["spec"].get("affinity"):
            self.with_affinity.append(pod)


def node_loads(nodes: Iterable[ObjectView], placed: Iterable[tuple[str, ObjectView]]) -> dict[str, NodeLoad]:
    """Return the nodes by name with their pods that have not finished."""
    loads = {item["metadata"]["name"]: NodeLoad(item, Node.of(item), allocatable(item)) for item in nodes}
    for name, pod in placed:
        if name in loads and not is_terminal(pod):
            loads[name].add(pod)
    return loads


def pod_affinity(
    pod: ObjectView, loads: Mapping[str, NodeLoad], namespaces: Mapping[ObjectKey, ObjectView]
) -> PodAffinity:
    """Return the relation of a pod to the pods on all nodes.

    Args:
        pod: to place.
        loads: all nodes with their pods.
        namespaces: all Namespaces; of one that is missing, only the name is known.
    """
    has_affinity = bool(pod["spec"].get("affinity"))
    placed = ((load.node.labels, load.placed if has_affinity else load.with_affinity) for load in loads.values())
    return PodAffinity(pod, placed, namespaces)


def node_rejection(
    pod: ObjectView,
    load: NodeLoad,
    requests: Mapping[str, int],
    provided: Iterable[str],
    affinity: PodAffinity | None = None,
) -> Rejection | None:
    """Return why the node cannot take the pod, by the first filter that rejects it; None if it can.

    Args:
        pod: to place.
        load: of the node.
        requests: of the pod, see :func:`pod_requests`.
        provided: extended resources that devices of the pod's claims provide.
        affinity: the relation of the pod to the pods on all nodes; None leaves out other pods.
    """
    if is_cordoned(pod, load.document):
        return Rejection(("node(s) were unschedulable",), "cordon")
    if is_tainted(pod, load.document):
        return Rejection(("node(s) had untolerated taint(s)",), "taint")
    if not _affine(pod, load.node):
        return Rejection(("node(s) didn't match Pod's node affinity/selector",), "affinity")
    lacking = shortages(requests, load.allocatable, load.used, pods=load.pods, provided=provided)
    if lacking:
        return Rejection(
            tuple(item.text for item in lacking),
            "resources",
            tuple(item.resource for item in lacking),
            hopeless=any(item.never for item in lacking),
        )
    mismatch = affinity.mismatch(load.node.labels) if affinity is not None else None
    return Rejection((mismatch.reason,), "pods", hopeless=mismatch.hopeless) if mismatch is not None else None


def is_cordoned(pod: ObjectView, node: ObjectView) -> bool:
    """Whether a Node is unschedulable for this pod."""
    return bool(node.get("spec", {}).get("unschedulable")) and not _tolerated(_UNSCHEDULABLE_TAINT, _tolerations(pod))


def is_tainted(pod: ObjectView, node: ObjectView) -> bool:
    """Whether a Node has a taint that the pod does not tolerate."""
    tolerations = _tolerations(pod)
    return any(
        taint.get("effect") in {"NoSchedule", "NoExecute"} and not _tolerated(taint, tolerations)
        for taint in node.get("spec", {}).get("taints", [])
    )


def is_affine(pod: ObjectView, node: ObjectView) -> bool:
    """Whether a Node matches the pod's node selector and affinity."""
    return _affine(pod, Node.of(node))


def filter_message(rejections: Mapping[str, Rejection]) -> str:
    """Return the message for a pod that fits on no node, without the result of a preemption."""
    if not rejections:
        return "no nodes available to schedule pods"
    counts = Counter(reason for item in rejections.values() for reason in item.reasons)
    texts = sorted(f"{number} {reason}" for reason, number in counts.items())
    return f"{_available(rejections)}: {', '.join(texts)}."


def fit_message(rejections: Mapping[str, Rejection], remedy: str = "") -> str:
    """Return the message for a pod that fits on no node, with the result of the remedy."""
    if not rejections:
        return filter_message(rejections)
    tail = ", ".join([*([remedy] if remedy else []), _preemption(rejections)])
    return f"{filter_message(rejections)} {tail}"


def prefilter_message(text: str, nodes: Iterable[str], *, preemption: bool = True) -> str:
    """Return the message for a pod that fits on no node because of its own claims."""
    rejections = {name: Rejection((), "claim") for name in nodes}
    if not rejections:
        return fit_message(rejections)
    return f"{_available(rejections)}: {text}." + (f" {_preemption(rejections)}" if preemption else "")


def _available(rejections: Mapping[str, Rejection]) -> str:
    return f"0/{len(rejections)} nodes are available"


def _preemption(rejections: Mapping[str, Rejection]) -> str:
    counts = Counter(
        "Preemption is not helpful for scheduling" if item.hopeless else "No preemption victims found for incoming pod"
        for item in rejections.values()
    )
    texts = sorted(f"{number} {text}" for text, number in counts.items())
    return f"preemption: {_available(rejections)}: {', '.join(texts)}."


def _tolerations(pod: ObjectView) -> list[DeviceToleration]:
    return [DeviceToleration.model_validate(item) for item in pod["spec"].get("tolerations", [])]


def _tolerated(taint: Mapping[str, Any], tolerations: Iterable[DeviceToleration]) -> bool:
    wanted = DeviceTaint.model_validate(taint)
    return any(tolerates(item, wanted) for item in tolerations)


def _affine(pod: ObjectView, node: Node) -> bool:
    """Whether node selector and required node affinity match; an invalid selector matches nothing."""
    labels = pod["spec"].get("nodeSelector") or {}
    if any(node.labels.get(key) != value for key, value in labels.items()):
        return False
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    try:
        return node_selector_matches(NodeSelector.model_validate(required), node)
    except ValueError:
        return False


def pod_requests(pod: ObjectView) -> dict[str, int]:
    """Return the resource requests of a pod in thousandths of each unit (KEP-753, KEP-2837).

    That is the sum of its containers and sidecars, or more if an init container needs more while it runs.
    """
    total: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    for container in init_containers(pod):
        needs = _requests(container)
        if is_sidecar(container):
            sidecars.update(needs)
            needs = Counter()
        peak |= sidecars + needs
    for container in containers(pod):
        total.update(_requests(container))
    total.update(sidecars)
    # requests of the whole pod, if there are any, replace the sum
    requests = Counter({**(total | peak), **_requests(pod["spec"])})
    requests.update(_amounts(pod["spec"].get("overhead")))
    return dict(requests)


def allocatable(node: ObjectView) -> dict[str, int]:
    """Return the allocatable resources of a node in thousandths of each unit."""
    return dict(_amounts(node.get("status", {}).get("allocatable")))


class Shortage(Struct, frozen=True):
    """A resource that is insufficient on a node for a pod.

    Attributes:
        resource: its name; ``pods`` if there are too many.
        never: it is insufficient even on the empty node.
    """

    resource: str
    never: bool

    @property
    def text(self) -> str:
        """The message of kube-scheduler (1.37)."""
        return "Too many pods" if self.resource == "pods" else f"Insufficient {self.resource}"


def shortages(
    requests: Mapping[str, int],
    allocatable: Mapping[str, int],
    used: Mapping[str, int],
    *,
    pods: int,
    provided: Iterable[str] = (),
) -> list[Shortage]:
    """Return the insufficient resources of a node with ``pods`` pods, which request ``used``.

    Devices of claims provide the extended resources in ``provided``.
    """
    found = []
    limit = allocatable.get("pods", 0)
    if pods + 1 > limit // 1000:
        found.append(Shortage("pods", limit == 0))
    covered = set(provided)
    for name, amount in requests.items():
        has = allocatable.get(name, 0)
        if amount and name not in covered and amount > has - used.get(name, 0):
            found.append(Shortage(name, amount > has))
    return found


def _requests(holder: ObjectView) -> Counter[str]:
    return _amounts((holder.get("resources") or {}).get("requests"))


def _amounts(document: Any) -> Counter[str]:
    return Counter({name: _thousandths(text) for name, text in (document or {}).items()})


@lru_cache(maxsize=1024)
def _thousandths(text: str | int) -> int:
    """Return a quantity in thousandths; 0 for an invalid text, which the API server rejects."""
    try:
        return Quantity(text).milli_value
    except InvalidQuantity:
        return 0
