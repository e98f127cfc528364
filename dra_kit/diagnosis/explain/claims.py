"""Explain a claim: the allocator's verdict on every node, and the reasons."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from dra_kit.errors import AllocationError
from dra_kit.explain.budget import Budget, WorkSpent
from dra_kit.explain.changes.nearest import nearest_misses
from dra_kit.explain.changes.trials import Trials
from dra_kit.explain.claims.constraints import constraint_blockers
from dra_kit.explain.claims.hopeless import hopeless_nodes
from dra_kit.explain.cluster.cluster import Cluster
from dra_kit.explain.cluster.drivers import PAGE, drivers_of, is_being_removed
from dra_kit.explain.devices.conditions import compared, conditions
from dra_kit.explain.devices.judge import judge
from dra_kit.explain.devices.selectors import wrong_selectors
from dra_kit.explain.text.summary import groups_of
from dra_kit.explain.verdicts import ClaimExplanation, JudgedChoice, Miss, NodeOutcome, Outcome, Request
from dra_kit.kubernetes.allocator.allocation import AllocationAttempt, Allocator
from dra_kit.kubernetes.allocator.requests import RequestAlternative, request_alternatives
from dra_kit.kubernetes.allocator.selectors import CelEvaluator
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.v1 import DeviceSubRequest, ExactDeviceRequest, ResourceClaim

_CLASSES: Final = 5
_ADVICE: Final = {
    "cel-runtime": "kube-scheduler gives up the whole pod at the first device for which a selector fails",
    "invalid-pools": "what the driver publishes contradicts itself; kube-scheduler passes over that pool",
    "all-constraint": "with allocationMode All every matching device must satisfy the constraint; narrow the selectors",
    "all-pool-incomplete": "wait until the driver has published all slices, or ask for a count instead of All",
    "too-many-devices": "split the claim",
}


class Explainer:
    """Explain claims of one cluster; share one for all claims, which caches the results of selectors.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._budget = Budget(sum(map(len, cluster.slices)))
        self._evaluator = CelEvaluator(self._budget.evaluated)
        self._allocator = Allocator(cluster.snapshot, cluster.gates, evaluator=self._evaluator)

    def renew_budget(self) -> None:
        """Give what is explained next a budget of its own."""
        self._budget.renew()

    def explain(self, claim: ResourceClaim) -> ClaimExplanation:
        """Explain why a claim has its devices, gets them, or does not.

        Args:
            claim: with the defaults of the API.

        Raises:
            Unsupported: Kubernetes could decide this, and dra-kit cannot.
        """
        if claim.status.allocation is not None:
            return ClaimExplanation(claim, "allocated", drivers=tuple(drivers_of(self.cluster, claim)))
        requests: list[Request] = []
        nodes: list[NodeOutcome] = []
        try:
            self._budget.compiled(_characters(claim))
            requests += self._requests(claim)
            nodes += self._outcomes([claim], hopeless=hopeless_nodes(claim, requests, self.cluster.nodes))
        except WorkSpent:
            return ClaimExplanation(claim, "stopped", tuple(requests), not_looked_at=_missed(claim, requests))
        explanation = ClaimExplanation(claim, self._outcome(nodes), tuple(requests), tuple(nodes))
        if explanation.outcome == "unknown":
            missed = ("which nodes there are, and their labels", *self.cluster.not_known)
            return replace(explanation, not_looked_at=missed)
        if explanation.finds_devices:
            return replace(explanation, not_looked_at=self.cluster.not_known)
        try:
            return self._with_advice(explanation)
        except WorkSpent:
            return replace(explanation, not_looked_at=("what would have to change",))

    def _outcome(self, nodes: Sequence[NodeOutcome]) -> Outcome:
        """Return the outcome of a claim: an error on a node ends the attempt, unless it is that node's alone."""
        if any(outcome.error is not None and not outcome.error.node_only for outcome in nodes):
            return "error"
        if any(outcome.allocations is not None for outcome in nodes):
            return "devices-fit" if self.cluster.not_known else "fits"
        return "unknown" if self.cluster.has_devices_for_unknown_nodes else "does-not-fit"

    def _with_advice(self, explanation: ClaimExplanation) -> ClaimExplanation:
        """Add the blockers of a claim, and the changes that would help."""
        claim, requests = explanation.claim, explanation.requests
        blockers = list(self._errors(requests, explanation.nodes)) or list(_shortages(requests))
        blockers[:0] = self._removed_drivers(requests)
        if not blockers:
            blockers += constraint_blockers(claim, requests, Trials(self.cluster, self._evaluator, self._budget))
        wrong, remedies = wrong_selectors(self.cluster, requests)
        sentences = tuple(dict.fromkeys((*wrong, *blockers)))
        explanation = replace(explanation, blockers=sentences, remedies=remedies)
        return replace(explanation, nearest=self.nearest(explanation))

    def nearest(
        self, explanation: ClaimExplanation, beside: Sequence[ResourceClaim] = (), nodes: Sequence[str] | None = None
    ) -> tuple[Miss, ...]:
        """Find the changes that would help a claim, best first; none after an error, which they do not remove.

        Args:
            explanation: of the claim.
            beside: other claims without allocation that its pod needs.
            nodes: names of the nodes that take the pod; None means all.

        Raises:
            Unsupported: Kubernetes could decide this, and dra-kit cannot.
            WorkSpent: it is too much work.
        """
        if explanation.outcome != "does-not-fit":
            return ()
        trials = Trials(self.cluster, self._evaluator, self._budget, beside, nodes)
        return nearest_misses(explanation.claim, explanation.requests, trials)

    def outcomes(self, claims: Sequence[ResourceClaim], nodes: Sequence[str] | None = None) -> tuple[NodeOutcome, ...]:
        """Return the allocator's verdict on each node, for claims that one pod needs together.

        Args:
            claims: without allocation.
            nodes: names of the nodes to look at; None means all.

        Raises:
            Unsupported: Kubernetes could decide this, and dra-kit cannot.
            WorkSpent: it is too much work.
        """
        return tuple(self._outcomes(claims, nodes))

    def _outcomes(
        self,
        claims: Sequence[ResourceClaim],
        nodes: Sequence[str] | None = None,
        hopeless: Collection[str] = frozenset(),
    ) -> Iterator[NodeOutcome]:
        attempt = self._allocator.attempt(claims, is_aborted=self._budget.asked)
        selected = None if nodes is None else frozenset(nodes)
        for node in self.cluster.nodes:
            if selected is None or node.name in selected:
                yield self._without_devices(node) if node.name in hopeless else _on(attempt, node)

    def _without_devices(self, node: Node) -> NodeOutcome:
        """Return the verdict on a node that has too few devices for a request, without a search."""
        try:
            self.cluster.snapshot.pools(node, self.cluster.gates)
        except AllocationError as error:
            return NodeOutcome(node, error=error)
        return NodeOutcome(node)

    def _requests(self, claim: ResourceClaim) -> Iterator[Request]:
        for request in claim.spec.devices.requests:
            choices = []
            for position, choice in enumerate(
                request_alternatives(claim, request, self.cluster.snapshot.classes, self.cluster.gates)
            ):
                if isinstance(choice, AllocationError):
                    name = request.name
                    if request.first_available:
                        name = f"{name}/{request.first_available[position].name}"
                    choices.append(JudgedChoice(name, None, choice))
                else:
                    choices.append(judge(self.cluster, choice, self._evaluator))
            yield Request(request.name, tuple(choices))

    def _errors(self, requests: Sequence[Request], nodes: Sequence[NodeOutcome]) -> Iterator[str]:
        """List the errors that end the attempt, each kind once, with advice."""
        errors = [judged.error for request in requests for judged in request.choices if judged.error is not None]
        errors += [outcome.error for outcome in nodes if outcome.error is not None]
        seen = set()
        for error in errors:
            if error.kind in seen:
                continue
            seen.add(error.kind)
            if error.kind == "class-not-found":
                yield f"request {error.request}: {self._missing_class(error.device_class)}"
            else:
                advice = _ADVICE.get(error.kind)
                yield f"{error}; {advice}" if advice else str(error)

    def _removed_drivers(self, requests: Sequence[Request]) -> Iterator[str]:
        """Name the drivers whose devices are asked for, and that an administrator is removing."""
        named = [_named_drivers(judged.choice) for request in requests for judged in request.choices if judged.choice]
        for driver in dict.fromkeys(driver for drivers in named for driver in drivers):
            if is_being_removed(self.cluster, driver):
                yield f"driver {driver} is being removed (node.undertake): it has withdrawn its devices ({PAGE})"

    def _missing_class(self, name: str) -> str:
        missing = f"there is no DeviceClass {name}"
        known = sorted(self.cluster.snapshot.classes)
        if not known:
            return f"{missing}, nor any other: is the driver's chart installed?"
        similar = difflib.get_close_matches(name, known, n=1)
        if similar:
            return f"{missing}; did you mean {similar[0]}?"
        more = f" and {len(known) - _CLASSES} more" if len(known) > _CLASSES else ""
        return f"{missing}; there are {', '.join(known[:_CLASSES])}{more}"


def _characters(claim: ResourceClaim) -> int:
    """Count the characters of a claim's selectors."""
    asked: list[ExactDeviceRequest | DeviceSubRequest] = []
    for request in claim.spec.devices.requests:
        asked += [request.exactly] if request.exactly is not None else []
        asked += request.first_available
    return sum(
        len(selector.cel.expression) for each in asked for selector in each.selectors if selector.cel is not None
    )


def _missed(claim: ResourceClaim, requests: Sequence[Request]) -> tuple[str, ...]:
    """List what was not looked at when the budget ended."""
    missed = [f"devices for request {each.name}" for each in claim.spec.devices.requests[len(requests) :]]
    return (*missed, "which nodes have devices for all requests", "what would have to change")


def _on(attempt: AllocationAttempt, node: Node) -> NodeOutcome:
    try:
        return NodeOutcome(node, attempt.on(node))
    except AllocationError as error:
        return NodeOutcome(node, error=error)


def _shortages(requests: Sequence[Request]) -> Iterator[str]:
    """List the requests for which no node has enough devices."""
    for request in requests:
        if any(_suffices(judged) for judged in request.choices):
            continue
        for judged in request.choices:
            if judged.choice is not None:
                yield _shortage(judged)


def _suffices(judged: JudgedChoice) -> bool:
    if judged.choice is None:
        return False
    if judged.choice.all_devices:
        return not _all_shortage(judged)
    return judged.choice.count <= max(judged.fitting.values(), default=0)


def _shortage(judged: JudgedChoice) -> str:
    choice = judged.choice
    assert choice is not None  # noqa: S101 - the caller looks
    if not judged.devices:
        return f"request {judged.name}: no driver has published any device; is one installed, and does it run?"
    if choice.all_devices:
        return _all_shortage(judged)
    best = max(judged.fitting.values(), default=0)
    if not best:
        matching = [verdict for verdict in judged.devices if verdict.matches]
        if not matching:
            return f"request {judged.name}: no device matches{_silent_drivers(judged)}"
        match = "1 device matches, and is not" if len(matching) == 1 else f"{len(matching)} devices match, and none is"
        return f"request {judged.name}: {match} to be had: {', '.join(groups_of(matching))}"
    node = next(name for name, count in judged.fitting.items() if count == best)
    return (
        f"request {judged.name}: asks for {choice.count} devices that one node can reach, and no node has more than "
        f"{best} that fit (node {node})"
    )


def _silent_drivers(judged: JudgedChoice) -> str:
    """Name the drivers whose devices are asked for, and that have published none."""
    assert judged.choice is not None  # noqa: S101 - the caller looked
    heard = {verdict.driver for verdict in judged.devices}
    silent = [driver for driver in _named_drivers(judged.choice) if driver not in heard]
    if not silent:
        return ""
    return f": driver {' and '.join(silent)} has published nothing; is it installed, and does it run?"


def _named_drivers(choice: RequestAlternative) -> list[str]:
    """Return the drivers whose name the selectors of a choice compare with, in their order."""
    found = [compared(part) for text in (*choice.class_selectors, *choice.selectors) for part in conditions(text)]
    wanted = [
        each.constant.strip("\"'")
        for each in found
        if each is not None and each.path == "device.driver" and each.sign == "=="
    ]
    return list(dict.fromkeys(wanted))


def _all_shortage(judged: JudgedChoice) -> str:
    """Explain why mode All cannot be satisfied; empty where the devices alone are not the reason."""
    selected = [verdict for verdict in judged.devices if verdict.matches]
    if not selected:
        return f"request {judged.name}: asks for all matching devices of a node, and none matches"
    by_node: dict[str, list[str]] = {}
    for verdict in selected:
        for node in verdict.nodes:
            blocked = by_node.setdefault(node, [])
            if verdict.reasons:
                blocked.append(f"{verdict.name} ({verdict.reasons[0].text})")
    if not all(by_node.values()):
        return ""
    node, blocked = min(by_node.items(), key=lambda item: len(item[1]))
    return (
        f"request {judged.name}: asks for all matching devices of a node, and on every node some cannot be had; "
        f"on {node}: {', '.join(blocked[:3])}{', …' if len(blocked) > 3 else ''}"
    )
