"""Small changes after which a claim would get devices, found by trials within a budget."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.diagnosis.explain.cluster import ClusterView
from dra_kit.diagnosis.explain.selectors import compared, conditions
from dra_kit.diagnosis.explain.verdicts import (
    RELEASED,
    JudgedChoice,
    JudgedRequest,
    Reason,
    Remedy,
    RemedyKind,
    SuggestedChange,
)
from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.allocation import Allocator
from dra_kit.kubernetes.allocator.selectors import CelEvaluator
from dra_kit.kubernetes.resource.v1 import (
    CELDeviceSelector,
    DeviceClass,
    DeviceConstraint,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)

_SHOWN: Final = 3
_WAITING, _REQUEST, _LESS, _CLASS = range(4)
"""Who must act: others, the claim's author, the author who gets less, the class's author."""
_TWO: Final = _CLASS + 1
"""Added to the worse rank of two changes that help only together."""
_Changes: TypeAlias = frozenset[tuple[RemedyKind, tuple[str, ...]]]
"""The changes that a device needs, each as :attr:`Remedy.change`."""


class _Candidate(Struct, frozen=True):
    """A change that may help.

    Attributes:
        miss: the change; ``enough`` only considers the number of devices.
        rank: who must act.
        short: whether no node currently has enough devices for the request.
        helps: whether the allocator confirms the change.
        fewer: the change with a lower count, if that helps.
    """

    miss: SuggestedChange
    rank: int
    short: bool
    helps: Callable[[], bool] = lambda: True
    fewer: Callable[[], SuggestedChange | None] = lambda: None

    @property
    def order(self) -> tuple[bool, int, int, str]:
        """Sort key, best first."""
        return not self.miss.enough, self.rank, -(self.miss.devices or 0), self.miss.change


def suggest_changes(
    claim: ResourceClaim, requests: Sequence[JudgedRequest], trials: AllocationTrials
) -> tuple[SuggestedChange, ...]:
    """Return changes that give a claim devices: first waiting, then changes of the claim, then of its class.

    Returns:
        Up to three; if none suffices, the one that comes closest.
    """
    candidates = sorted(_candidates(claim, requests, trials), key=lambda candidate: candidate.order)
    found: list[SuggestedChange] = []
    for candidate in candidates:
        if len(found) == _SHOWN or (found and candidate.rank >= _TWO):
            break
        if candidate.miss.enough and candidate.helps():
            found.append(candidate.miss)
    if found:
        return tuple(found)
    single = [candidate for candidate in candidates if candidate.rank < _TWO][:_SHOWN]
    with_fewer = next((miss for candidate in single if (miss := candidate.fewer()) is not None), None)
    closest = [replace(candidate.miss, enough=False) for candidate in candidates if candidate.short]
    return (with_fewer,) if with_fewer is not None else tuple(closest[:1])


def _candidates(
    claim: ResourceClaim, requests: Sequence[JudgedRequest], trials: AllocationTrials
) -> Iterator[_Candidate]:
    for request in requests:
        for judged in request.choices:
            yield from _of_devices(claim, judged, trials)
            yield from _of_count(claim, judged, trials)
    constraints = claim.spec.devices.constraints
    nodes = trials.promising(requests)
    for constraint in constraints:
        changed = with_constraints(claim, [each for each in constraints if each is not constraint])
        if trials.fits(ChangedClaim(changed), nodes):
            name = constraint.match_attribute or constraint.distinct_attribute
            rule = "matchAttribute" if constraint.match_attribute is not None else "distinctAttribute"
            text, manifests = f"without the constraint {rule}: {name}", ChangedClaim(changed).manifests(claim)
            miss = SuggestedChange(text, "", None, enough=True, manifests=manifests)
            yield _Candidate(miss, _LESS, short=False)


def _of_count(claim: ResourceClaim, judged: JudgedChoice, trials: AllocationTrials) -> Iterator[_Candidate]:
    """Yield the highest possible lower count, or for mode All, that others release devices or a count."""
    if judged.choice is not None and judged.choice.all_devices:
        yield from _of_all(claim, judged, trials)
        return
    if judged.choice is None or judged.choice.count < 2:
        return
    limit = min(judged.choice.count, max(judged.fitting.values(), default=0) + 1)
    possible = _most(judged, ChangedClaim(claim), judged.fitting, trials, limit)
    if possible:
        changed = ChangedClaim(with_count(claim, judged.name, possible)).manifests(claim)
        miss = SuggestedChange(f"with count: {possible}", judged.name, None, enough=True, manifests=changed)
        yield _Candidate(miss, _LESS, short=False)


def _of_all(claim: ResourceClaim, judged: JudgedChoice, trials: AllocationTrials) -> Iterator[_Candidate]:
    """Yield what helps a request for all devices of a node: others release them, or the highest possible count."""
    matching: Counter[str] = Counter()
    for verdict in judged.devices:
        if verdict.matches:
            matching.update(verdict.nodes)
    nodes = [name for name, _ in matching.most_common()]
    if trials.fits(ChangedClaim(claim, released=True), nodes):
        yield _Candidate(SuggestedChange(RELEASED.text, judged.name, None, enough=True), _WAITING, short=False)
    limit = max(judged.fitting.values(), default=0) + 1
    possible = _most(judged, ChangedClaim(claim), judged.fitting, trials, limit)
    if possible:
        change = f"with allocationMode: ExactCount and count: {possible}"
        changed = ChangedClaim(with_count(claim, judged.name, possible)).manifests(claim)
        miss = SuggestedChange(change, judged.name, None, enough=True, manifests=changed)
        yield _Candidate(miss, _LESS, short=False)


class ChangedClaim(Struct, frozen=True):
    """A claim, changed or not, and changes around it.

    Attributes:
        released: no other claim holds devices.
        device_class: replaces the class of this name.
    """

    claim: ResourceClaim
    released: bool = False
    device_class: DeviceClass | None = None

    def manifests(self, before: ResourceClaim) -> tuple[Mapping[str, Any], ...]:
        """Return the changed parts: ``requests`` and ``constraints`` below ``devices`` of the claim, and the class."""
        old, new = before.spec.devices, self.claim.spec.devices
        devices: dict[str, Any] = {}
        if new.requests != old.requests:
            devices["requests"] = [request.to_json() for request in new.requests]
        if new.constraints != old.constraints:
            devices["constraints"] = [constraint.to_json() for constraint in new.constraints]
        found: list[Mapping[str, Any]] = [{"devices": devices}] if devices else []
        if self.device_class is not None:
            selectors = [selector.to_json() for selector in self.device_class.spec.selectors]
            metadata = {"name": self.device_class.metadata.name}
            kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
            found.append({**kind, "metadata": metadata, "spec": {"selectors": selectors}})
        return tuple(found)


def _most(
    judged: JudgedChoice, changed: ChangedClaim, numbers: Mapping[str, int], trials: AllocationTrials, refused: int
) -> int:
    """Return the highest available count below ``refused``."""
    nodes = [node for node, _ in Counter(numbers).most_common()]
    possible = 0
    while refused - possible > 1:
        middle = (possible + refused) // 2
        if trials.fits(replace(changed, claim=with_count(changed.claim, judged.name, middle)), nodes):
            possible = middle
        else:
            refused = middle
    return possible


def _of_devices(claim: ResourceClaim, judged: JudgedChoice, trials: AllocationTrials) -> Iterator[_Candidate]:
    """Yield the changes that make devices fit that need only one or two; the texts of their remedies may differ."""
    if judged.choice is None or judged.choice.all_devices:
        return
    gained: Counter[_Changes] = Counter()
    remedies: dict[_Changes, list[Remedy]] = {}
    names: defaultdict[_Changes, list[str]] = defaultdict(list)
    known: dict[int, _Changes] = {}  # equivalent devices share their reasons
    for verdict in judged.devices:
        changes = known.get(id(verdict.reasons))
        if changes is None:
            found = {each.change: each for each in map(_remedy_to_try, verdict.reasons) if each is not None}
            helps = 1 <= len(found) <= 2 and all(map(_remedy_to_try, verdict.reasons))
            changes = known[id(verdict.reasons)] = frozenset(found if helps else ())
            if helps:
                remedies.setdefault(changes, list(found.values()))
        if changes:
            gained[changes] += 1
            names[changes] += verdict.nodes
    by_node = {changes: Counter(trials.allowed(nodes)) for changes, nodes in names.items()}
    short = judged.choice.count > max((judged.fitting[node] for node in trials.allowed(judged.fitting)), default=0)
    for changes in gained:
        # both changes also help devices that need only one of them
        helped = [each for each in gained if each <= changes]
        numbers = Counter(judged.fitting)
        for each in helped:
            numbers.update(by_node[each])
        nodes = [node for node, number in numbers.most_common() if number >= judged.choice.count]
        nodes = list(trials.allowed(nodes))
        tried = sorted(remedies[changes], key=_rank)
        text = " and ".join(remedy.text for remedy in tried)
        miss = SuggestedChange(
            text, judged.name, len(judged.fits) + sum(gained[each] for each in helped), enough=bool(nodes)
        )
        rank = _rank(tried[-1]) + (_TWO if len(tried) > 1 else 0)
        changed = _after(claim, judged, tried)
        if changed is None:
            yield _Candidate(miss, rank, short)
            continue
        miss = replace(miss, manifests=changed.manifests(claim))
        fewer = partial(_fewer, claim, judged, miss, changed, numbers, trials=trials)
        yield _Candidate(miss, rank, short, partial(trials.fits, changed, nodes), fewer)


def _fewer(
    claim: ResourceClaim,
    judged: JudgedChoice,
    miss: SuggestedChange,
    changed: ChangedClaim,
    numbers: Mapping[str, int],
    *,
    trials: AllocationTrials,
) -> SuggestedChange | None:
    """Return a change combined with a lower count; None if that does not help either."""
    assert judged.choice is not None  # noqa: S101 - the caller looked
    allowed = {name: numbers[name] for name in trials.allowed(numbers)}
    limit = min(judged.choice.count, max(allowed.values(), default=0) + 1)
    possible = _most(judged, changed, allowed, trials, limit)
    if not possible:
        return None
    both = replace(changed, claim=with_count(changed.claim, judged.name, possible))
    return SuggestedChange(
        f"{miss.change} and with count: {possible}", judged.name, None, enough=True, manifests=both.manifests(claim)
    )


def _remedy_to_try(reason: Reason) -> Remedy | None:
    """Return the remedy; None if the user cannot fix the cause. Devices of another driver are never suggested."""
    remedy = reason.remedy
    if remedy is None or remedy.kind is RemedyKind.SELECTOR:
        return None
    if remedy.kind in {RemedyKind.CLASS_CONDITION, RemedyKind.CLAIM_CONDITION}:
        comparison = compared(remedy.subject[0])
        if comparison is not None and comparison.path == "device.driver":
            return None
    return remedy


def _rank(remedy: Remedy) -> int:
    if remedy.kind is RemedyKind.RELEASE:
        return _WAITING
    return _CLASS if remedy.kind is RemedyKind.CLASS_CONDITION else _REQUEST


def _after(claim: ResourceClaim, judged: JudgedChoice, remedies: Sequence[Remedy]) -> ChangedClaim | None:
    """Return the claim after the changes of remedies; None if they cannot be tried."""
    assert judged.choice is not None  # noqa: S101 - the caller looked
    changed = ChangedClaim(claim)
    for remedy in remedies:
        if remedy.kind is RemedyKind.RELEASE:
            changed = replace(changed, released=True)
        elif remedy.kind is RemedyKind.CLASS_CONDITION:
            before = changed.device_class or judged.choice.device_class
            device_class = class_without_condition(before, remedy.subject[0])
            if device_class is None:
                return None
            changed = replace(changed, device_class=device_class)
        elif remedy.kind is RemedyKind.CLAIM_CONDITION:
            relaxed = without_condition(changed.claim, judged.name, remedy.subject[0])
            if relaxed is None:
                return None
            changed = replace(changed, claim=relaxed)
        elif remedy.kind is RemedyKind.TOLERATION:
            changed = replace(changed, claim=tolerating(changed.claim, judged.name, remedy.subject[0]))
        else:
            return None
    return changed


_NODES: Final = 20
"""Nodes on which a change is tried, those with most devices first."""
_STEPS: Final = 200_000
"""Device visits after which a trial stops: a tenth of a verdict's limit, since there are many trials."""


class AllocationTrials:
    """Tries changed claims in a cluster, with the other claims of the pod, on these nodes (None for all)."""

    def __init__(
        self,
        cluster: ClusterView,
        evaluator: CelEvaluator,
        budget: WorkBudget,
        beside: Sequence[ResourceClaim] = (),
        nodes: Collection[str] | None = None,
    ) -> None:
        self._cluster = cluster
        self._evaluator = evaluator
        self._budget = budget
        self._beside = tuple(beside)
        self._nodes = {node.name: node for node in cluster.nodes if nodes is None or node.name in nodes}

    def allowed(self, names: Iterable[str]) -> Iterable[str]:
        """Filter names by the nodes to consider."""
        return (name for name in names if name in self._nodes)

    def promising(self, requests: Sequence[JudgedRequest]) -> list[str]:
        """Return the nodes to try, sorted by the number of requests with devices there, then by that of devices."""
        counts: Counter[str] = Counter()
        served: Counter[str] = Counter()
        for request in requests:
            for judged in request.choices:
                counts.update(judged.fitting)
            served.update({name for judged in request.choices for name in judged.fitting})
        names = sorted(counts, key=lambda name: (-served[name], -counts[name]))
        return [*self.allowed(names)][:_NODES]

    def fits(self, changed: ChangedClaim, nodes: Sequence[str]) -> bool:
        """Return whether one of some nodes, best first, has devices for a claim.

        Raises:
            Unsupported: Kubernetes could decide this, and dra-kit cannot.
            WorkBudgetExceeded: it is too much work.
        """
        classes = () if changed.device_class is None else (changed.device_class,)
        snapshot = self._cluster.snapshot.overlaid(classes=classes, released=changed.released)
        allocator = Allocator(snapshot, self._cluster.gates, evaluator=self._evaluator, max_steps=_STEPS)
        attempt = allocator.attempt([changed.claim, *self._beside], is_aborted=self._budget.asked)
        for name in [*self.allowed(nodes)][:_NODES]:
            try:
                if attempt.on(self._nodes[name]) is not None:
                    return True
            except AllocationError as error:
                if not error.node_only:
                    return False
        return False


_Choice: TypeAlias = ExactDeviceRequest | DeviceSubRequest


def with_constraints(claim: ResourceClaim, constraints: Sequence[DeviceConstraint]) -> ResourceClaim:
    """Return the claim with these constraints instead of its own."""
    return _with_devices(claim, {"constraints": tuple(constraints)})


def with_count(claim: ResourceClaim, choice: str, count: int) -> ResourceClaim:
    """Return the claim with a count for ``request`` or ``request/subrequest``."""
    update = {"allocation_mode": "ExactCount", "count": count}
    return _with_choice(claim, choice, lambda asked: asked.model_copy(update=update))


def tolerating(claim: ResourceClaim, choice: str, key: str) -> ResourceClaim:
    """Return the claim with a toleration of all taints of a key."""
    toleration = DeviceToleration(key=key, operator="Exists")
    return _with_choice(
        claim, choice, lambda asked: asked.model_copy(update={"tolerations": (*asked.tolerations, toleration)})
    )


def without_condition(claim: ResourceClaim, choice: str, condition: str) -> ResourceClaim | None:
    """Return the claim without one condition of its own selectors; None if the text does not let it be removed."""
    asked = next((asked for name, asked in named_choices(claim) if name == choice), None)
    selectors = _without(asked.selectors, condition) if asked is not None else None
    if selectors is None:
        return None
    return _with_choice(claim, choice, lambda asked: asked.model_copy(update={"selectors": selectors}))


def class_without_condition(device_class: DeviceClass, condition: str) -> DeviceClass | None:
    """Return the class without one condition of its selectors; None if the text does not let it be removed."""
    selectors = _without(device_class.spec.selectors, condition)
    if selectors is None:
        return None
    return device_class.model_copy(update={"spec": device_class.spec.model_copy(update={"selectors": selectors})})


def _without(selectors: Sequence[DeviceSelector], condition: str) -> tuple[DeviceSelector, ...] | None:
    changed: list[DeviceSelector] = []
    found = False
    for selector in selectors:
        parts = conditions(selector.cel.expression) if selector.cel is not None else []
        if condition not in parts:
            changed.append(selector)
            continue
        found = True
        rest = [f"({part})" for part in parts if part != condition]
        if rest:
            changed.append(DeviceSelector(cel=CELDeviceSelector(expression=" && ".join(rest))))
    return tuple(changed) if found else None


def named_choices(claim: ResourceClaim) -> Iterator[tuple[str, _Choice]]:
    """Yield the requests of a claim by ``request``, and their alternatives by ``request/subrequest``."""
    for request in claim.spec.devices.requests:
        if request.exactly is not None:
            yield request.name, request.exactly
        yield from ((f"{request.name}/{asked.name}", asked) for asked in request.first_available)


def _with_choice(claim: ResourceClaim, choice: str, change: Callable[[_Choice], _Choice]) -> ResourceClaim:
    requests = []
    for request in claim.spec.devices.requests:
        if request.exactly is not None and request.name == choice:
            requests.append(request.model_copy(update={"exactly": change(request.exactly)}))
            continue
        subrequests = tuple(
            change(asked) if f"{request.name}/{asked.name}" == choice else asked for asked in request.first_available
        )
        requests.append(request.model_copy(update={"first_available": subrequests}))
    return _with_devices(claim, {"requests": tuple(requests)})


def _with_devices(claim: ResourceClaim, update: dict[str, object]) -> ResourceClaim:
    devices = claim.spec.devices.model_copy(update=update)
    return claim.model_copy(update={"spec": claim.spec.model_copy(update={"devices": devices})})


_BASE: Final = 3_000_000
"""Units of every explanation. Kubernetes limits an evaluation of CEL to one million, about 0.3 s."""
_PER_DEVICE: Final = 2_000
"""Units for each device of the cluster; a selector of four conditions costs about twenty for one device."""
_PER_CHARACTER: Final = 40
"""Units for compiling each character of a selector."""
_VISITS: Final = 5 * 1024
"""Units for the visits of devices between two ``is_aborted`` calls of the allocator."""


class WorkBudgetExceeded(Exception):
    """An explanation needs too much work, and stops."""


class WorkBudget:
    """The remaining work of an explanation, in units of the cost of CEL."""

    def __init__(self, devices: int) -> None:
        self.limit: int = _BASE + _PER_DEVICE * devices
        self._left = self.limit

    def renew(self) -> None:
        """Begin with the whole limit again."""
        self._left = self.limit

    def evaluated(self, cost: int) -> None:
        """Charge an evaluation of CEL.

        Raises:
            WorkBudgetExceeded: the budget is used up.
        """
        self._left -= cost
        if self._left < 0:
            raise WorkBudgetExceeded

    def compiled(self, characters: int) -> None:
        """Charge the compilation of expressions; raises like :meth:`evaluated`."""
        self.evaluated(characters * _PER_CHARACTER)

    def asked(self) -> bool:
        """Charge the allocator's visits and return False, for ``is_aborted``; raises like :meth:`evaluated`."""
        self.evaluated(_VISITS)
        return False
