"""Filters of nodes without devices: cordon, taints, affinity to nodes and pods, and resources such as CPU.

Affinity between pods is that of kube-scheduler 1.37, the plugin InterPodAffinity
(``pkg/scheduler/framework/plugins/interpodaffinity``): which nodes may take a pod, and which are better, for the pods
that are already placed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource.matching import (
    LabelSelector,
    Node,
    node_selector_matches,
    parse_label_selector,
    tolerates,
)
from dra_kit.kubernetes.resource.objects import ObjectKey, containers, init_containers, is_sidecar, is_terminal
from dra_kit.kubernetes.resource.v1 import DeviceTaint, DeviceToleration, NodeSelector
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

    def add(self, pod: ObjectView, requests: Mapping[str, int]) -> None:
        """Count a pod with its requests on the node."""
        self.used.update(requests)
        self.placed.append(pod)
        if pod["spec"].get("affinity"):
            self.with_affinity.append(pod)


class KnownRequests:
    """The resource requests of pods that are counted again and again, by UID; for a release of the scheduler."""

    def __init__(self, version: KubernetesVersion) -> None:
        self.version: KubernetesVersion = version
        self._known: dict[str, tuple[ObjectView, Mapping[str, int]]] = {}

    def of(self, pod: ObjectView) -> Mapping[str, int]:
        """Return the requests of a pod; they are computed once for each of its states."""
        uid, spec = pod["metadata"].get("uid", ""), pod["spec"]  # a pod of a file has no UID
        known = self._known.get(uid)
        if known is None or known[0] is not spec:
            known = self._known[uid] = spec, pod_requests(pod, self.version)
        return known[1]

    def forget(self, pod: ObjectView) -> None:
        """Drop a pod that is gone."""
        self._known.pop(pod["metadata"]["uid"], None)


def node_loads(
    nodes: Iterable[ObjectView], placed: Iterable[tuple[str, ObjectView]], known: KnownRequests
) -> dict[str, NodeLoad]:
    """Return the nodes by name with their pods that have not finished."""
    loads = {
        item["metadata"]["name"]: NodeLoad(item, Node.of(item), allocatable(item, known.version)) for item in nodes
    }
    for name, pod in placed:
        if name in loads and not is_terminal(pod):
            loads[name].add(pod, known.of(pod))
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


def prefilter_message(text: str, nodes: Iterable[str], remedy: str = "", *, preemption: bool = True) -> str:
    """Return the message for a pod that fits on no node because of its own claims, with the result of the remedy."""
    rejections = {name: Rejection((), "claim") for name in nodes}
    if not rejections:
        return fit_message(rejections)
    tail = [*([remedy] if remedy else []), _preemption(rejections)] if preemption else []
    return " ".join([f"{_available(rejections)}: {text}.", *([", ".join(tail)] if tail else [])])


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


def pod_requests(pod: ObjectView, version: KubernetesVersion) -> dict[str, int]:
    """Return the resource requests of a pod in thousandths of each unit (KEP-753, KEP-2837).

    That is the sum of its containers and sidecars, or more if an init container needs more while it runs.
    """
    total: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    for container in init_containers(pod):
        needs = _requests(container, version)
        if is_sidecar(container):
            sidecars.update(needs)
            needs = Counter()
        peak |= sidecars + needs
    for container in containers(pod):
        total.update(_requests(container, version))
    total.update(sidecars)
    # requests of the whole pod, if there are any, replace the sum
    requests = Counter({**(total | peak), **_requests(pod["spec"], version)})
    requests.update(_amounts(pod["spec"].get("overhead"), version))
    return dict(requests)


def allocatable(node: ObjectView, version: KubernetesVersion) -> dict[str, int]:
    """Return the allocatable resources of a node in thousandths of each unit."""
    return dict(_amounts(node.get("status", {}).get("allocatable"), version))


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


def _requests(holder: ObjectView, version: KubernetesVersion) -> Counter[str]:
    return _amounts((holder.get("resources") or {}).get("requests"), version)


def _amounts(document: Any, version: KubernetesVersion) -> Counter[str]:
    return Counter({name: _thousandths(text, version) for name, text in (document or {}).items()})


@lru_cache(maxsize=1024)
def _thousandths(text: str | int, version: KubernetesVersion) -> int:
    """Return a quantity in thousandths; 0 for an invalid text, which the API server rejects."""
    try:
        return Quantity(text, version).milli_value
    except InvalidQuantity:
        return 0


Labels: TypeAlias = Mapping[str, str]
AffinityField: TypeAlias = Literal["podAffinity", "podAntiAffinity"]
AFFINITY_MISMATCH: Final = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY_MISMATCH: Final = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY_MISMATCH: Final = "node(s) didn't satisfy existing pods anti-affinity rules"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_REQUIRED_WEIGHT: Final = 1  # hardPodAffinityWeight of kube-scheduler
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_OPERATORS: Final = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}  # whether they need values


class AffinityTerm(Struct, frozen=True):
    """One term of the affinity or anti-affinity of a pod.

    Attributes:
        topology_key: label of nodes; nodes with the same value are one place for the term.
        namespaces: names of namespaces with pods that it may select.
        namespace_selector: selects further namespaces; None selects none.
        selector: selects pods; None selects none.
        weight: of a preferred term; a required affinity of a placed pod counts like a preferred one of weight 1.
    """

    topology_key: str
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None
    selector: LabelSelector | None
    weight: int

    def selects(self, pod: ObjectView, namespaces: Mapping[ObjectKey, ObjectView]) -> bool:
        """Return whether the term selects a pod.

        Args:
            pod: any pod.
            namespaces: all Namespaces; of one that is missing, only the name is known.
        """
        if self.selector is None or not self.selector.matches(pod):
            return False
        name = _namespace(pod)
        if name in self.namespaces:
            return True
        namespace = namespaces.get(("", name)) or {"metadata": {"labels": {_NAMESPACE_NAME: name}}}
        return self.namespace_selector is not None and self.namespace_selector.matches(namespace)


def required_terms(pod: ObjectView, field: AffinityField) -> list[AffinityTerm]:
    """Return the required terms of a pod; a term with an invalid selector selects no pod."""
    return [_term(pod, term) for term in _terms(pod, field, _REQUIRED)]


def preferred_terms(pod: ObjectView, field: AffinityField) -> list[AffinityTerm]:
    """Return the preferred terms of a pod; a term with an invalid selector selects no pod."""
    return [
        _term(pod, item.get("podAffinityTerm") or {}, item.get("weight", 0)) for item in _terms(pod, field, _PREFERRED)
    ]


def _terms(pod: ObjectView, field: AffinityField, necessity: str) -> Sequence[ObjectView]:
    affinity = pod["spec"].get("affinity") or {}
    return (affinity.get(field) or {}).get(necessity) or ()


def _term(pod: ObjectView, term: ObjectView, weight: int = _REQUIRED_WEIGHT) -> AffinityTerm:
    names, others = term.get("namespaces") or (), term.get("namespaceSelector")
    own = () if names or others is not None else (_namespace(pod),)
    return AffinityTerm(
        term.get("topologyKey", ""),
        frozenset((*names, *own)),
        _selector(others),
        _selector(term.get("labelSelector")),
        weight,
    )


def _namespace(pod: ObjectView) -> str:
    return str(pod["metadata"].get("namespace") or "default")


def _selector(selector: ObjectView | None) -> LabelSelector | None:
    """Return a selector; unlike an empty one, a missing or an invalid one selects nothing."""
    if selector is None:
        return None
    for item in selector.get("matchExpressions") or ():
        if not item.get("key") or _OPERATORS.get(item.get("operator", "")) is not bool(item.get("values")):
            return None
    return parse_label_selector(selector)


class AffinityMismatch(Struct, frozen=True):
    """Why a node cannot take a pod.

    Attributes:
        reason: the message of kube-scheduler.
        hopeless: evicting other pods does not help.
    """

    reason: str
    hopeless: bool = False


class PodAffinity:
    """The relation of a pod without a node to the pods on all nodes.

    Args:
        pod: to place.
        placed: the labels of each node with its pods that have not finished; those with an affinity suffice if the pod
            has none.
        namespaces: all Namespaces.
    """

    def __init__(
        self,
        pod: ObjectView,
        placed: Iterable[tuple[Labels, Collection[ObjectView]]],
        namespaces: Mapping[ObjectKey, ObjectView],
    ) -> None:
        self._pod = pod
        self._namespaces = namespaces
        self._together = required_terms(pod, "podAffinity")
        self._apart = required_terms(pod, "podAntiAffinity")
        self._nearer = preferred_terms(pod, "podAffinity")
        self._farther = preferred_terms(pod, "podAntiAffinity")
        self._matching: set[tuple[str, str]] = set()  # places, as key and value, with pods for its affinity
        self._conflicting: set[tuple[str, str]] = set()  # with pods against its anti-affinity
        self._closed: set[tuple[str, str]] = set()  # with pods whose anti-affinity selects it
        self._scores: Counter[tuple[str, str]] = Counter()
        asks = bool(self._together or self._apart or self._nearer or self._farther)
        for labels, pods in placed:
            for other in pods:
                if asks:
                    self._count(other, labels)
                if other["spec"].get("affinity"):
                    self._count_terms_of(other, labels)

    def _count(self, other: ObjectView, labels: Labels) -> None:
        """Apply the terms of the pod to a placed pod."""
        if self._together and self._all(self._together, other):
            self._matching.update(_places(self._together, labels))
        self._conflicting.update(_places(self._selecting(self._apart, other), labels))
        self._score(self._selecting(self._nearer, other), labels, 1)
        self._score(self._selecting(self._farther, other), labels, -1)

    def _count_terms_of(self, other: ObjectView, labels: Labels) -> None:
        """Apply the terms of a placed pod to the pod; its required affinity makes the place better, too."""
        pod = self._pod
        self._closed.update(_places(self._selecting(required_terms(other, "podAntiAffinity"), pod), labels))
        self._score(self._selecting(required_terms(other, "podAffinity"), pod), labels, 1)
        self._score(self._selecting(preferred_terms(other, "podAffinity"), pod), labels, 1)
        self._score(self._selecting(preferred_terms(other, "podAntiAffinity"), pod), labels, -1)

    def _score(self, terms: Iterable[AffinityTerm], labels: Labels, sign: int) -> None:
        for term in terms:
            for place in _places([term], labels):
                self._scores[place] += sign * term.weight

    def _selecting(self, terms: Iterable[AffinityTerm], pod: ObjectView) -> Iterator[AffinityTerm]:
        return (term for term in terms if term.selects(pod, self._namespaces))

    def _all(self, terms: Iterable[AffinityTerm], pod: ObjectView) -> bool:
        return all(term.selects(pod, self._namespaces) for term in terms)

    def mismatch(self, labels: Labels) -> AffinityMismatch | None:
        """Return why a node with these labels cannot take the pod; None if it can."""
        if self._together and not self._joins(labels):
            return AffinityMismatch(AFFINITY_MISMATCH, hopeless=True)
        if any(place in self._conflicting for place in _places(self._apart, labels)):
            return AffinityMismatch(ANTI_AFFINITY_MISMATCH)
        if self._closed and not self._closed.isdisjoint(labels.items()):
            return AffinityMismatch(EXISTING_ANTI_AFFINITY_MISMATCH)
        return None

    def _joins(self, labels: Labels) -> bool:
        """Whether pods for its affinity are in the place; the first of pods that select each other is alone."""
        if any(term.topology_key not in labels for term in self._together):
            return False
        if all(place in self._matching for place in _places(self._together, labels)):
            return True
        return not self._matching and self._all(self._together, self._pod)

    def scores(self, nodes: Iterable[Labels]) -> list[int]:
        """Return how good nodes are for the preferences of the pod and of placed pods: from 0 to 100 for the best."""
        found = [sum(self._scores[place] for place in labels.items() if place in self._scores) for labels in nodes]
        lowest = min(found, default=0)
        span = max(found, default=0) - lowest
        # with floating point numbers, as kube-scheduler rounds them
        return [int(100.0 * ((score - lowest) / span)) if span else 0 for score in found]


def _places(terms: Iterable[AffinityTerm], labels: Labels) -> Iterator[tuple[str, str]]:
    """Yield the places of terms that a node is part of."""
    for term in terms:
        if term.topology_key in labels:
            yield term.topology_key, labels[term.topology_key]


# --- queueing hints


def placed_pod_helps(
    pod: ObjectView, before: ObjectView | None, after: ObjectView | None, namespaces: Mapping[ObjectKey, ObjectView]
) -> bool:
    """Whether a pod with a node that was added, changed or ended may help a pod that does not fit to other pods.

    kube-scheduler 1.37 does not know the labels of namespaces here, nor that a pod becomes the first of pods that
    select each other when the last other one ends; the pod then waits for up to five minutes.
    """
    together, apart = required_terms(pod, "podAffinity"), required_terms(pod, "podAntiAffinity")

    def joins(other: ObjectView) -> bool:
        return bool(together) and all(term.selects(other, namespaces) for term in together)

    def conflicts(terms: Iterable[AffinityTerm], other: ObjectView) -> bool:
        return any(term.selects(other, namespaces) for term in terms)

    if after is None:
        return before is not None and (
            conflicts(apart, before)
            or conflicts(required_terms(before, "podAntiAffinity"), pod)
            or (joins(before) and joins(pod))
        )
    if before is None:
        return joins(after)
    return (not joins(before) and joins(after)) or (conflicts(apart, before) and not conflicts(apart, after))


def node_topology_helps(pod: ObjectView, before: ObjectView | None, after: ObjectView) -> bool:
    """Whether a Node that is new, or is in another place, may help a pod that does not fit to other pods."""
    together, apart = required_terms(pod, "podAffinity"), required_terms(pod, "podAntiAffinity")
    new = _labels(after)
    if before is None:
        return bool(apart) or any(term.topology_key in new for term in together)
    old = _labels(before)
    return any(term.topology_key in new and _moved(term, old, new) for term in together) or any(
        term.topology_key in old and _moved(term, old, new) for term in apart
    )


def _moved(term: AffinityTerm, old: Labels, new: Labels) -> bool:
    return old.get(term.topology_key) != new.get(term.topology_key)


def _labels(node: Mapping[str, Any]) -> Labels:
    labels: Labels = node["metadata"].get("labels") or {}
    return labels
