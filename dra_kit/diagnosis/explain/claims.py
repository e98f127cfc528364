"""Explain one claim: devices, constraints, nodes, and what its author may not expect of the devices.

``allocated.py`` has the sentences about claims that have devices, ``remedies.py`` the changes that would help.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from dra_kit.diagnosis.explain.allocated import (
    ClaimProblem,
    is_bound,
    late_holders,
    pending_release,
    unready_devices,
    vanished_devices,
)
from dra_kit.diagnosis.explain.cluster import ClusterView, named
from dra_kit.diagnosis.explain.devices import judge_devices
from dra_kit.diagnosis.explain.drivers import REMOVAL_PAGE, drivers_of, is_being_removed
from dra_kit.diagnosis.explain.remedies import (
    AllocationTrials,
    ChangedClaim,
    WorkBudget,
    WorkBudgetExceeded,
    named_choices,
    suggest_changes,
    with_constraints,
)
from dra_kit.diagnosis.explain.selectors import compared, conditions, wrong_selectors
from dra_kit.diagnosis.explain.verdicts import (
    ClaimExplanation,
    DeviceVerdict,
    JudgedChoice,
    JudgedRequest,
    NodeOutcome,
    Outcome,
    Reason,
    ReasonKind,
    SuggestedChange,
    groups_of,
)
from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.devices import DeviceID, Scalar, elements, published_attribute
from dra_kit.kubernetes.allocator.requests import RequestAlternative, request_alternatives
from dra_kit.kubernetes.allocator.selectors import CelEvaluator
from dra_kit.kubernetes.resource.conversion import compares_distinct_values, history_of_field
from dra_kit.kubernetes.resource.matching import Node, tolerates
from dra_kit.kubernetes.resource.v1 import DeviceConstraint, DeviceRequestAllocationResult, DeviceTaint, ResourceClaim
from dra_kit.kubernetes.scheduler.controllers import protects
from dra_kit.text import counted, did_you_mean

_CLASSES: Final = 5
_DISTINCT: Final = "a constraint with distinctAttribute needs Kubernetes " + (
    history_of_field("distinctAttribute", "DRAConsumableCapacity").need("DRAConsumableCapacity")
)
_ADVICE: Final = {
    "cel-runtime": "kube-scheduler gives up the whole pod at the first device for which a selector fails",
    "invalid-pools": "the driver publishes contradictory slices; kube-scheduler ignores that pool",
    "all-constraint": "with allocationMode All every matching device must satisfy the constraint; narrow the selectors",
    "constraint-unknown": _DISTINCT,
    "all-pool-incomplete": "wait until the driver has published all slices, or request a count instead of All",
    "too-many-devices": "split the claim",
    "scheduler-stops": "delete the pod, since no pod is scheduled while it waits; kube-scheduler does not end from "
    "Kubernetes 1.35 on, or without the feature gate DRAConsumableCapacity",
}


class ClaimExplainer:
    """Explains claims of one cluster; share one instance, which caches the results of selectors."""

    def __init__(self, cluster: ClusterView) -> None:
        self.cluster = cluster
        self._budget = WorkBudget(sum(map(len, cluster.slices)))
        self._evaluator = CelEvaluator(cluster.gates.version, self._budget.evaluated)
        self._allocator = Allocator(cluster.snapshot, cluster.gates, evaluator=self._evaluator)

    def renew_budget(self) -> None:
        """Reset the budget for the next explanation."""
        self._budget.renew()

    def explain(self, claim: ResourceClaim) -> ClaimExplanation:
        """Explain why a claim has its devices, gets them, or does not.

        Raises:
            Unsupported: Kubernetes could decide this, and dra-kit cannot.
        """
        if claim.status.allocation is not None or claim.metadata.deletion_timestamp is not None:
            return self._allocated(claim)
        requests: list[JudgedRequest] = []
        nodes: list[NodeOutcome] = []
        try:
            self._budget.compiled(_characters(claim))
            requests += self._requests(claim)
            nodes += self.outcomes([claim], hopeless=nodes_without_devices(claim, requests, self.cluster.nodes))
        except WorkBudgetExceeded:
            return ClaimExplanation(claim, "stopped", tuple(requests), not_looked_at=_missed(claim, requests))
        explanation = ClaimExplanation(claim, self._outcome(nodes), tuple(requests), tuple(nodes))
        if explanation.outcome == "unknown":
            missed = ("which nodes exist, and their labels", *self.cluster.not_known)
            return replace(explanation, not_looked_at=missed)
        if explanation.finds_devices:
            return self._with_caveats(replace(explanation, not_looked_at=self.cluster.not_known))
        try:
            return self._with_advice(explanation)
        except WorkBudgetExceeded:
            return replace(explanation, not_looked_at=("what would have to change",))

    def _allocated(self, claim: ResourceClaim) -> ClaimExplanation:
        """Explain a claim that has devices, or gets none because it is being deleted."""
        release = pending_release(self.cluster, claim)
        cluster = self.cluster
        unready = [] if is_bound(cluster, claim) else unready_devices(claim)
        problems = [*unready, *vanished_devices(cluster, claim), *evicting_taints(cluster, claim)]
        remedies = (*(release.remedies if release is not None else ()), *(each.remedy for each in problems))
        return ClaimExplanation(
            claim,
            "allocated" if release is None else release.kind,
            blockers=tuple(each.text for each in problems),
            remedies=tuple(dict.fromkeys(filter(None, remedies))),
            drivers=tuple(drivers_of(self.cluster, claim)),
            release=release.text if release is not None else "",
        )

    def _outcome(self, nodes: Sequence[NodeOutcome]) -> Outcome:
        """Return the outcome of a claim: an error on a node ends the attempt, unless it affects only that node."""
        if any(outcome.error is not None and not outcome.error.node_only for outcome in nodes):
            return "error"
        if any(outcome.allocations is not None for outcome in nodes):
            return "devices-fit" if self.cluster.not_known else "fits"
        return "unknown" if self.cluster.has_devices_for_unknown_nodes else "does-not-fit"

    def _with_caveats(self, explanation: ClaimExplanation) -> ClaimExplanation:
        """Add what is special about the devices of a claim that finds some, and whether its pods are evicted."""
        fitting = explanation.fitting_nodes
        evicted: list[ClaimProblem] = []
        if any(map(has_open_toleration, explanation.requests)):  # allocations are created on first access
            allocations = [allocation for outcome in fitting for allocation in outcome.allocations or ()]
            results = [result for allocation in allocations for result in allocation.devices.results]
            # equal nodes have equal devices
            evicted += {each.remedy: each for each in evictions(self.cluster, results)}.values()
        problems = [*caveats(self.cluster, explanation.claim, explanation.requests), *evicted]
        if evicted and all(evicts(self.cluster, outcome) for outcome in fitting):
            explanation = replace(explanation, outcome="evicted", not_looked_at=())
        return replace(
            explanation,
            blockers=tuple(dict.fromkeys(each.text for each in problems)),
            remedies=tuple(dict.fromkeys(each.remedy for each in problems)),
        )

    def _with_advice(self, explanation: ClaimExplanation) -> ClaimExplanation:
        """Add the blockers of a claim, and the changes that would help."""
        claim, requests = explanation.claim, explanation.requests
        blockers = list(self._errors(requests, explanation.nodes)) or list(_shortages(requests))
        blockers[:0] = self._removed_drivers(requests)
        if not blockers:
            blockers += constraint_blockers(
                claim, requests, AllocationTrials(self.cluster, self._evaluator, self._budget)
            )
        wrong, remedies = wrong_selectors(self.cluster, requests)
        late = [*late_holders(self.cluster, holders_of(requests)), *caveats(self.cluster, claim, requests)]
        sentences = tuple(dict.fromkeys((*wrong, *blockers, *(each.text for each in late))))
        remedies = tuple(dict.fromkeys((*remedies, *filter(None, (each.remedy for each in late)))))
        explanation = replace(explanation, blockers=sentences, remedies=remedies)
        return replace(explanation, nearest=self.nearest(explanation))

    def nearest(
        self, explanation: ClaimExplanation, beside: Sequence[ResourceClaim] = (), nodes: Sequence[str] | None = None
    ) -> tuple[SuggestedChange, ...]:
        """Return changes that would help a claim, best first; none after an error, which they cannot fix.

        With the other unallocated claims of its pod, they help on one of these nodes (None for all).

        Raises:
            Unsupported: Kubernetes could decide this, and dra-kit cannot.
            WorkBudgetExceeded: it is too much work.
        """
        if explanation.outcome != "does-not-fit":
            return ()
        trials = AllocationTrials(self.cluster, self._evaluator, self._budget, beside, nodes)
        return suggest_changes(explanation.claim, explanation.requests, trials)

    def outcomes(
        self,
        claims: Sequence[ResourceClaim],
        nodes: Sequence[str] | None = None,
        hopeless: Collection[str] = frozenset(),
    ) -> Iterator[NodeOutcome]:
        """Yield the allocator's verdict on each of these nodes (None for all) for unallocated claims of one pod.

        On the ``hopeless`` nodes, which have too few devices, it is given without a search.

        Raises:
            Unsupported: Kubernetes could decide this, and dra-kit cannot.
            WorkBudgetExceeded: it is too much work.
        """
        attempt = self._allocator.attempt(claims, is_aborted=self._budget.asked)
        selected = None if nodes is None else frozenset(nodes)
        for node in self.cluster.nodes:
            if selected is not None and node.name not in selected:
                continue
            allocations = None
            try:
                if node.name in hopeless:
                    self.cluster.snapshot.pools(node, self.cluster.gates)  # its error, if it has one
                else:
                    allocations = attempt.on(node)
            except AllocationError as error:
                yield NodeOutcome(node, error=error)
            else:
                yield NodeOutcome(node, allocations)

    def _requests(self, claim: ResourceClaim) -> Iterator[JudgedRequest]:
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
                    choices.append(judge_devices(self.cluster, choice, self._evaluator))
            yield JudgedRequest(request.name, tuple(choices))

    def _errors(self, requests: Sequence[JudgedRequest], nodes: Sequence[NodeOutcome]) -> Iterator[str]:
        """Yield the errors that stop the attempt, each kind once, with advice."""
        errors = [error for request in requests for error in request.errors]
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

    def _removed_drivers(self, requests: Sequence[JudgedRequest]) -> Iterator[str]:
        """Name the requested drivers that an administrator is removing."""
        named = [_named_drivers(judged.choice) for request in requests for judged in request.choices if judged.choice]
        for driver in dict.fromkeys(driver for drivers in named for driver in drivers):
            if is_being_removed(self.cluster, driver):
                removed = f"driver {driver} is being removed (node.decommission)"
                yield f"{removed}: it has withdrawn its devices ({REMOVAL_PAGE})"

    def _missing_class(self, name: str) -> str:
        missing = f"DeviceClass {name} does not exist"
        known = sorted(self.cluster.snapshot.classes)
        if not known:
            return f"{missing}, nor any other: is the driver's chart installed?"
        if hint := did_you_mean(name, known):
            return f"{missing}{hint}"
        more = f" and {len(known) - _CLASSES} more" if len(known) > _CLASSES else ""
        return f"{missing}; there are {', '.join(known[:_CLASSES])}{more}"


def holders_of(requests: Sequence[JudgedRequest]) -> Iterator[str]:
    """Yield the claims (``namespace/name``) that hold devices which match a request, or their capacity or counters."""
    seen: set[int] = set()  # equivalent devices share their reasons
    for verdict in (verdict for request in requests for judged in request.choices for verdict in judged.devices):
        if id(verdict.reasons) not in seen and verdict.matches:
            for reason in verdict.reasons:
                yield from reason.details.get("claims", ())
        seen.add(id(verdict.reasons))


def _characters(claim: ResourceClaim) -> int:
    """Count the characters of a claim's selectors."""
    selectors = [selector for _, asked in named_choices(claim) for selector in asked.selectors]
    return sum(len(selector.cel.expression) for selector in selectors if selector.cel is not None)


def _missed(claim: ResourceClaim, requests: Sequence[JudgedRequest]) -> tuple[str, ...]:
    """List what was not examined when the budget ended."""
    missed = [f"devices for request {each.name}" for each in claim.spec.devices.requests[len(requests) :]]
    return (*missed, "which nodes have devices for all requests", "what would have to change")


def _shortages(requests: Sequence[JudgedRequest]) -> Iterator[str]:
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
        return f"request {judged.name}: no driver has published any device; is a driver installed and running?"
    if choice.all_devices:
        return _all_shortage(judged)
    best = max(judged.fitting.values(), default=0)
    if not best:
        matching = [verdict for verdict in judged.devices if verdict.matches]
        if not matching:
            return f"request {judged.name}: no device matches{_silent_drivers(judged)}"
        match = "1 device matches, but is not" if len(matching) == 1 else f"{len(matching)} devices match, but none is"
        return f"request {judged.name}: {match} available: {', '.join(groups_of(matching))}"
    node = next(name for name, count in judged.fitting.items() if count == best)
    return (
        f"request {judged.name}: needs {choice.count} devices on one node, but no node has more than "
        f"{best} that fit (node {node})"
    )


def _silent_drivers(judged: JudgedChoice) -> str:
    """Name the requested drivers that have published no devices."""
    assert judged.choice is not None  # noqa: S101 - the caller looked
    heard = {verdict.driver for verdict in judged.devices}
    silent = [driver for driver in _named_drivers(judged.choice) if driver not in heard]
    if not silent:
        return ""
    return f": driver {' and '.join(silent)} has published nothing; is it installed and running?"


def _named_drivers(choice: RequestAlternative) -> list[str]:
    """Return the drivers that the selectors of a choice require, in order."""
    found = [compared(part) for text in (*choice.class_selectors, *choice.selectors) for part in conditions(text)]
    of_driver = [each for each in found if each is not None and each.path == "device.driver" and each.sign == "=="]
    return list(dict.fromkeys(each.constant.strip("\"'") for each in of_driver))


def _all_shortage(judged: JudgedChoice) -> str:
    """Explain why mode All cannot be satisfied; empty if devices alone are not the reason."""
    selected = [verdict for verdict in judged.devices if verdict.matches]
    if not selected:
        return f"request {judged.name}: needs all matching devices of a node, but none matches"
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
        f"request {judged.name}: needs all matching devices of a node, but on every node some are not available; "
        f"on {node}: {', '.join(blocked[:3])}{', …' if len(blocked) > 3 else ''}"
    )


def nodes_without_devices(
    claim: ResourceClaim, requests: Sequence[JudgedRequest], nodes: Sequence[Node]
) -> frozenset[str]:
    """Return the nodes that have too few devices for one of the requests, and no error.

    The first node is never among them, so that an error that ends every attempt is found there.
    """
    choices = [judged for request in requests for judged in request.choices]
    if any(judged.choice is None or judged.choice.all_devices for judged in choices):
        return frozenset()
    if claim.spec.devices.constraints and any(
        judged.choice is not None and judged.choice.derived for judged in choices
    ):
        return frozenset()  # a constraint on a derived attribute may fail before the allocator finds too few devices
    hopeful = {nodes[0].name} if nodes else set()
    hopeful |= {name for judged in choices for name in _with_errors(judged)}
    sufficient = [set().union(*map(_sufficient, request.choices)) for request in requests]
    if sufficient:
        hopeful |= set.intersection(*sufficient)
    else:
        hopeful |= {node.name for node in nodes}
    return frozenset(node.name for node in nodes if node.name not in hopeful)


def _sufficient(judged: JudgedChoice) -> set[str]:
    """Find the nodes with enough fitting devices for a choice."""
    assert judged.choice is not None  # noqa: S101 - the caller looked
    # a shareable device can be allocated more than once
    needed = 1 if any(verdict.shareable for verdict in judged.fits) else judged.choice.count
    return {name for name, number in judged.fitting.items() if number >= needed}


def _with_errors(judged: JudgedChoice) -> Iterable[str]:
    """Find the nodes with a device whose reasons include an error."""
    known: dict[int, bool] = {}  # equivalent devices share their reasons
    for verdict in judged.devices:
        wrong = known.get(id(verdict.reasons))
        if wrong is None:
            wrong = known[id(verdict.reasons)] = _is_error(verdict.reasons)
        if wrong:
            yield from verdict.nodes


def _is_error(reasons: Iterable[Reason]) -> bool:
    for reason in reasons:  # noqa: SIM110 - asked of every device of a cluster: any() takes longer
        if reason.check is ReasonKind.ERROR or reason.check is ReasonKind.POOL:
            return True
    return False


_VALUES: Final = 5


def constraint_blockers(
    claim: ResourceClaim, requests: Sequence[JudgedRequest], trials: AllocationTrials
) -> Iterator[str]:
    """Yield the unsatisfiable constraint, or that the requests need devices of different nodes, or the same ones."""
    nodes = trials.promising(requests)
    constraints = claim.spec.devices.constraints
    found = False
    for constraint in constraints:
        others = tuple(each for each in constraints if each is not constraint)
        if trials.fits(ChangedClaim(with_constraints(claim, others)), nodes):
            found = True
            yield f"{_rule(constraint)}{_there_is(constraint, requests, nodes[:1])}"
    if found:
        return
    if constraints and trials.fits(ChangedClaim(with_constraints(claim, ())), nodes):
        names = ", ".join(_attribute(constraint) for constraint in constraints)
        yield f"no set of devices satisfies all constraints at once: {names}"
        return
    if places := disjoint_nodes({request.name: set().union(*map(_nodes, request.choices)) for request in requests}):
        yield f"no node has devices for all requests: {places}"
    elif len(requests) > 1:
        yield (
            "each request alone finds devices, but no node has devices for all of them: they need the "
            "same devices, or share counters or capacity"
        )
    else:
        yield "no node has enough devices at once: those that fit share counters or capacity"
    for constraint in constraints:
        if values := _nothing_in_common(constraint, requests):
            yield f"{_rule(constraint)}; {values}"


def _rule(constraint: DeviceConstraint) -> str:
    attribute = _attribute(constraint)
    short = attribute.partition("/")[2] or attribute
    whose = f"of {' and '.join(constraint.requests)}" if constraint.requests else "of the claim"
    rule = "have the same" if constraint.match_attribute is not None else "each have another"
    return f"constraint: all devices {whose} must {rule} {short} ({attribute})"


def _there_is(constraint: DeviceConstraint, requests: Sequence[JudgedRequest], nodes: Sequence[str]) -> str:
    """Describe the values of fitting devices on some nodes, each device counted once."""
    fits: dict[DeviceID, DeviceVerdict] = {}
    for request in requests:
        for judged in _covered(constraint, request):
            fits.update({fit.id: fit for fit in judged.fits if not set(nodes).isdisjoint(fit.nodes)})
    return f"; on {nodes[0]} those that fit have {_counted(fits.values(), _attribute(constraint))}" if fits else ""


def _nothing_in_common(constraint: DeviceConstraint, requests: Sequence[JudgedRequest]) -> str:
    """Describe the values of devices that fit each request, if no value is common to enough of them on any nodes."""
    name = constraint.match_attribute
    if name is None:
        return ""
    possible: list[set[Scalar]] = []
    parts: list[str] = []
    for request in requests:
        choices = _covered(constraint, request)
        if not choices or len(choices) < len(request.choices):
            continue
        if any(judged.choice is None or name in judged.choice.derived for judged in choices):
            return ""
        possible.append({value for judged in choices for value in _frequent(judged, name)})
        parts.append(
            f"those that fit {request.name} have {_counted([fit for judged in choices for fit in judged.fits], name)}"
        )
    return "" if not possible or set.intersection(*possible) else ", ".join(parts)


def _frequent(judged: JudgedChoice, name: str) -> Iterator[Scalar]:
    """Return the values that enough devices have."""
    assert judged.choice is not None  # noqa: S101 - the caller looked
    needed = 1 if judged.choice.all_devices else judged.choice.count
    found = Counter(value for fit in judged.fits for value in _values(fit, name))
    return (value for value, number in found.items() if number >= needed)


def _covered(constraint: DeviceConstraint, request: JudgedRequest) -> list[JudgedChoice]:
    """Return the choices of a request that a constraint applies to."""
    named = constraint.requests
    return [judged for judged in request.choices if not named or not {request.name, judged.name}.isdisjoint(named)]


def _attribute(constraint: DeviceConstraint) -> str:
    return constraint.match_attribute or constraint.distinct_attribute or "?"


def _counted(verdicts: Iterable[DeviceVerdict], name: str) -> str:
    found = Counter(
        value for verdict in verdicts for value in (sorted(map(_shown, _values(verdict, name))) or ["none at all"])
    )
    parts = [f"{value} ({counted(number, 'device')})" for value, number in found.items()]
    return ", ".join(parts[:_VALUES]) + (", …" if len(parts) > _VALUES else "")


def _values(verdict: DeviceVerdict, name: str) -> frozenset[Scalar]:
    attribute = published_attribute(verdict.device, name)
    return frozenset() if attribute is None else elements(attribute)


def _shown(value: Scalar) -> str:
    kind, plain = value
    return f'"{plain}"' if kind == "string" else str(plain)


def disjoint_nodes(places: Mapping[str, Collection[str]]) -> str:
    """Return ``a fits only on n1, b only on n2``; empty if they have a node in common, or one has none."""
    if len(places) < 2 or not all(places.values()) or set.intersection(*map(set, places.values())):
        return ""
    parts = [f"{name} only on {named(nodes)}" for name, nodes in places.items()]
    return ", ".join([parts[0].replace(" only", " fits only", 1), *parts[1:]])


def _nodes(judged: JudgedChoice) -> set[str]:
    """Return the nodes that have enough devices for one choice of a request."""
    if judged.choice is None:
        return set()
    if not judged.choice.all_devices:
        return {node for node, number in judged.fitting.items() if number >= judged.choice.count}
    spoilt = {node for verdict in judged.devices if verdict.reasons and verdict.matches for node in verdict.nodes}
    return judged.fitting.keys() - spoilt


_NO_EXECUTE: Final = "NoExecute"


def caveats(cluster: ClusterView, claim: ResourceClaim, requests: Sequence[JudgedRequest]) -> Iterator[ClaimProblem]:
    """Yield what is special about a claim and the devices that match its requests."""
    yield from _without_effect(cluster, claim)
    for judged in (judged for request in requests for judged in request.choices):
        yield from _given_whole(judged)
    yield from _repeated(cluster, requests)


def _without_effect(cluster: ClusterView, claim: ResourceClaim) -> Iterator[ClaimProblem]:
    """Yield the constraints that are stored, and accept all devices."""
    if compares_distinct_values(cluster.gates.version):
        return
    for constraint in claim.spec.devices.constraints:
        if constraint.distinct_attribute is not None and constraint.match_attribute is None:
            yield ClaimProblem(
                f"the constraint distinctAttribute {constraint.distinct_attribute} has no effect: kube-scheduler "
                f"{cluster.gates.version} does not compare the values of devices",
                _DISTINCT,
            )


def _given_whole(judged: JudgedChoice) -> Iterator[ClaimProblem]:
    """Yield that a request for an amount gets whole devices."""
    amounts = judged.choice.capacity if judged.choice is not None else None
    whole = [verdict for verdict in judged.devices if verdict.matches and not verdict.shareable] if amounts else []
    if whole:
        drivers = dict.fromkeys(verdict.driver for verdict in whole)
        yield ClaimProblem(
            f"request {judged.name} asks for an amount of {' and '.join(amounts or ())}, and gets a whole device: "
            f"{named([verdict.name for verdict in whole])} cannot be allocated to several claims",
            f"driver {' and '.join(drivers)} must publish devices with allowMultipleAllocations: true if claims are to "
            "share them",
        )


def _repeated(cluster: ClusterView, requests: Sequence[JudgedRequest]) -> Iterator[ClaimProblem]:
    """Yield the pools that several nodes publish with equal names of devices."""
    if not cluster.repeated_pools:
        return
    matching = {
        (verdict.driver, verdict.id.pool)
        for request in requests
        for judged in request.choices
        for verdict in judged.devices
        if verdict.matches
    }
    for (driver, pool), (nodes, device) in cluster.repeated_pools.items():
        if (driver, pool) in matching:
            yield ClaimProblem(
                f"{named(nodes)} publish the same pool {pool} of {driver}: for kube-scheduler, which knows a device by "
                f"driver, pool and name, device {device} of each node is one device, which one claim can have",
                f"driver {driver} must publish a separate pool for each node, with the node's name in the pool's name",
            )


def evicting_taints(cluster: ClusterView, claim: ResourceClaim) -> Iterator[ClaimProblem]:
    """Yield the devices of an allocated claim for which its pods are evicted."""
    allocation = claim.status.allocation
    return evictions(cluster, allocation.devices.results if allocation is not None else ())


def evictions(cluster: ClusterView, results: Iterable[DeviceRequestAllocationResult]) -> Iterator[ClaimProblem]:
    """Yield the allocated devices for which pods are evicted.

    A toleration without an effect lets kube-scheduler allocate a device with a taint NoExecute; before Kubernetes 1.38,
    it does not prevent the eviction (``pkg/controller/devicetainteviction``).
    """
    if not cluster.gates.device_taints:
        return
    for result in results:
        for taint, rule in _taints(cluster, DeviceID(result.driver, result.pool, result.device)):
            accepted = [each for each in result.tolerations if tolerates(each, taint)]
            if any(protects(each, taint, cluster.gates.version) for each in accepted):
                continue
            shown = f"{taint.key}{f'={taint.value}' if taint.value else ''}:{_NO_EXECUTE}"
            by = f" (by DeviceTaintRule {rule})" if rule else ""
            why = f", and the toleration of request {result.request} names no effect" if accepted else ""
            remedy = (
                f"with effect: {_NO_EXECUTE} in the toleration of {taint.key} the pod keeps the device; without the "
                "toleration kube-scheduler does not allocate it"
                if accepted
                else f"pods keep the device with a toleration of {taint.key} (effect: {_NO_EXECUTE}) in a new claim; "
                "tolerations of a claim cannot be changed"
            )
            yield ClaimProblem(
                f"device {result.device} of {result.driver}, pool {result.pool}, has the taint {shown}{by}{why}: the "
                "device taint eviction controller deletes pods that have the device",
                remedy,
            )


def has_open_toleration(request: JudgedRequest) -> bool:
    """Return whether a toleration of a request has no effect; others prevent evictions, or admit no such device."""
    choices = [judged.choice for judged in request.choices if judged.choice is not None]
    return any(not toleration.effect for choice in choices for toleration in choice.tolerations)


def evicts(cluster: ClusterView, outcome: NodeOutcome) -> bool:
    """Return whether a pod that gets these devices is evicted."""
    results = (result for allocation in outcome.allocations or () for result in allocation.devices.results)
    return any(evictions(cluster, results))


def _taints(cluster: ClusterView, device: DeviceID) -> Iterator[tuple[DeviceTaint, str]]:
    """Yield the taints NoExecute of a device, each with the name of its DeviceTaintRule; empty for its own."""
    for slice_ in cluster.newest_slices.get((device.driver, device.pool), ()):
        if slice_.usual is None and device.device in slice_.names:
            found = slice_.devices[slice_.names.index(device.device)]
            yield from ((taint, "") for taint in found.taints if taint.effect == _NO_EXECUTE)
            break
    for rule in cluster.snapshot.rules_of(device) if cluster.gates.device_taint_rules else ():
        if rule.spec.taint.effect == _NO_EXECUTE:
            yield rule.spec.taint, rule.metadata.name
