"""Affinity between pods: which nodes may take a pod, and which are better, for the pods that are already placed.

Source: kube-scheduler 1.37, the plugin InterPodAffinity (``pkg/scheduler/framework/plugins/interpodaffinity``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.kubernetes.resource.matching import LabelSelector, parse_label_selector
from dra_kit.kubernetes.resource.objects import ObjectKey
from dra_kit.kubernetes.values.json import ObjectView

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
