"""The nearest miss: the one change, or the two, after which a claim gets devices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dra_kit.explain.changes import (
    class_without_condition,
    tolerating,
    with_constraints,
    with_count,
    without_condition,
)
from dra_kit.explain.conditions import compared
from dra_kit.explain.reasons import RELEASED, Check, Reason
from dra_kit.explain.trials import Trials
from dra_kit.explain.verdicts import Miss, Request, Way
from dra_kit.resource.v1 import DeviceClass, ResourceClaim

_TOLD: Final = 3

_WAITING, _REQUEST, _LESS, _CLASS = range(4)
"""Who has to do something: others, the claim's author, the author who gets less, the author of the class."""

_TWO: Final = _CLASS + 1
"""The rank of changes that help only together with another one is that of theirs which is less welcome, and this."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A change that may help.

    Attributes:
        miss: it; ``enough`` as the numbers of devices say.
        rank: who has to do something.
        short: no node has enough devices for the request as things are.
        helps: whether the allocator says so, too.
    """

    miss: Miss
    rank: int
    short: bool
    helps: Callable[[], bool]

    @property
    def order(self) -> tuple[bool, int, int, str]:
        """The best first."""
        return not self.miss.enough, self.rank, -(self.miss.devices or 0), self.miss.change


def nearest_misses(claim: ResourceClaim, requests: Sequence[Request], trials: Trials) -> tuple[Miss, ...]:
    """The changes after which the claim gets devices: waiting first, then what its author can do, then its class.

    Args:
        claim: does not fit.
        requests: of the claim.
        trials: asks the allocator.

    Returns:
        Up to three; if none suffices, the one that comes closest.
    """
    candidates = sorted(_candidates(claim, requests, trials), key=lambda candidate: candidate.order)
    found: list[Miss] = []
    for candidate in candidates:
        if len(found) == _TOLD or (found and candidate.rank >= _TWO):
            break
        if candidate.miss.enough and candidate.helps():
            found.append(candidate.miss)
    closest = [replace(candidate.miss, enough=False) for candidate in candidates if candidate.short]
    return tuple(found or closest[:1])


def _candidates(claim: ResourceClaim, requests: Sequence[Request], trials: Trials) -> Iterator[_Candidate]:
    for request in requests:
        for way in request.ways:
            yield from _of_devices(claim, way, trials)
            yield from _of_count(claim, way, trials)
    constraints = claim.spec.devices.constraints
    nodes = trials.promising(requests)
    for constraint in constraints:
        changed = with_constraints(claim, [each for each in constraints if each is not constraint])
        if trials.fits(changed, nodes):
            name = constraint.match_attribute or constraint.distinct_attribute
            rule = "matchAttribute" if constraint.match_attribute is not None else "distinctAttribute"
            miss = Miss(f"without the constraint {rule}: {name}", "", None, enough=True)
            yield _Candidate(miss, _LESS, False, lambda: True)


def _of_count(claim: ResourceClaim, way: Way, trials: Trials) -> Iterator[_Candidate]:
    """Fewer devices, as many as there can be."""
    if way.choice is None or way.choice.all_devices or way.choice.count < 2:
        return
    nodes = [node for node, _ in Counter(way.fitting).most_common()]
    possible, refused = 0, min(way.choice.count, max(way.fitting.values(), default=0) + 1)
    while refused - possible > 1:
        middle = (possible + refused) // 2
        if trials.fits(with_count(claim, way.name, middle), nodes):
            possible = middle
        else:
            refused = middle
    if possible:
        yield _Candidate(Miss(f"with count: {possible}", way.name, None, enough=True), _LESS, False, lambda: True)


def _of_devices(claim: ResourceClaim, way: Way, trials: Trials) -> Iterator[_Candidate]:
    """What devices have against them that have nothing else against them, or only one other thing."""
    if way.choice is None or way.choice.all_devices:
        return
    gained: Counter[frozenset[str]] = Counter()
    reasons: dict[frozenset[str], list[Reason]] = {}
    by_node: defaultdict[frozenset[str], Counter[str]] = defaultdict(Counter)
    for verdict in way.devices:
        changes = {reason.remedy: reason for reason in verdict.reasons}
        if 1 <= len(changes) <= 2 and all(map(_can_change, verdict.reasons)):
            remedies = frozenset(changes)
            gained[remedies] += 1
            reasons.setdefault(remedies, list(changes.values()))
            by_node[remedies].update(trials.allowed(verdict.nodes))
    short = way.choice.count > max((way.fitting[node] for node in trials.allowed(way.fitting)), default=0)
    for remedies in gained:
        # with both changes, the devices fit that lack only one of them, too
        helped = [each for each in gained if each <= remedies]
        numbers = Counter(way.fitting)
        for each in helped:
            numbers.update(by_node[each])
        nodes = [node for node, number in numbers.most_common() if number >= way.choice.count]
        nodes = list(trials.allowed(nodes))
        changes_ = sorted(reasons[remedies], key=_rank)
        change = " and ".join(reason.remedy for reason in changes_)
        miss = Miss(change, way.name, len(way.fits) + sum(gained[each] for each in helped), enough=bool(nodes))
        rank = _rank(changes_[-1]) + (_TWO if len(changes_) > 1 else 0)
        yield _Candidate(miss, rank, short, _trial(claim, way, changes_, nodes, trials))


def _can_change(reason: Reason) -> bool:
    """Whether somebody can do something; devices of another driver are never what somebody wants."""
    if not reason.remedy or reason.check is Check.ERROR:
        return False
    comparison = compared(reason.details["condition"]) if reason.check in {Check.CLASS, Check.SELECTOR} else None
    return comparison is None or comparison.path != "device.driver"


def _rank(reason: Reason) -> int:
    if reason.remedy == RELEASED:
        return _WAITING
    return _CLASS if reason.check is Check.CLASS else _REQUEST


def _trial(
    claim: ResourceClaim, way: Way, reasons: Sequence[Reason], nodes: Sequence[str], trials: Trials
) -> Callable[[], bool]:
    """Whether the claim gets devices after what reasons suggest; where it cannot be tried, the numbers count."""
    assert way.choice is not None  # noqa: S101 - the caller looked
    changed = claim
    device_class: DeviceClass | None = None
    released = False
    for reason in reasons:
        if reason.remedy == RELEASED:
            released = True
        elif reason.check is Check.CLASS:
            device_class = class_without_condition(device_class or way.choice.device_class, reason.details["condition"])
            if device_class is None:
                return lambda: True
        elif reason.check is Check.SELECTOR:
            relaxed = without_condition(changed, way.name, reason.details["condition"])
            if relaxed is None:
                return lambda: True
            changed = relaxed
        elif reason.check is Check.TAINT:
            changed = tolerating(changed, way.name, reason.details["key"])
        else:
            return lambda: True
    return lambda: trials.fits(changed, nodes, released=released, device_class=device_class)
