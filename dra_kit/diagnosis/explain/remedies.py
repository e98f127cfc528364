"""The nearest miss: the one change, or the two, after which a claim gets devices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.explain.changes.changed import (
    class_without_condition,
    tolerating,
    with_constraints,
    with_count,
    without_condition,
)
from dra_kit.explain.changes.trials import Trials
from dra_kit.explain.devices.conditions import compared
from dra_kit.explain.reasons import RELEASED, Check, Reason
from dra_kit.explain.verdicts import JudgedChoice, Miss, Request
from dra_kit.kubernetes.resource.v1 import DeviceClass, ResourceClaim

_SHOWN: Final = 3

_WAITING, _REQUEST, _LESS, _CLASS = range(4)
"""Who has to do something: others, the claim's author, the author who gets less, the author of the class."""

_TWO: Final = _CLASS + 1
"""The rank of changes that help only together with another one is that of theirs which is less welcome, and this."""


class _Candidate(Struct, frozen=True):
    """A change that may help.

    Attributes:
        miss: it; ``enough`` by the numbers of devices.
        rank: who has to do something.
        short: no node has enough devices for the request as things are.
        helps: whether it helps by the allocator's verdict, too.
        fewer: the same with as many devices as there are then, where that helps.
    """

    miss: Miss
    rank: int
    short: bool
    helps: Callable[[], bool]
    fewer: Callable[[], Miss | None] = lambda: None

    @property
    def order(self) -> tuple[bool, int, int, str]:
        """The best first."""
        return not self.miss.enough, self.rank, -(self.miss.devices or 0), self.miss.change


def nearest_misses(claim: ResourceClaim, requests: Sequence[Request], trials: Trials) -> tuple[Miss, ...]:
    """Return changes after which the claim gets devices: first waiting, then what its author can do, then its class.

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


def _candidates(claim: ResourceClaim, requests: Sequence[Request], trials: Trials) -> Iterator[_Candidate]:
    for request in requests:
        for judged in request.choices:
            yield from _of_devices(claim, judged, trials)
            yield from _of_count(claim, judged, trials)
    constraints = claim.spec.devices.constraints
    nodes = trials.promising(requests)
    for constraint in constraints:
        changed = with_constraints(claim, [each for each in constraints if each is not constraint])
        if trials.fits(changed, nodes):
            name = constraint.match_attribute or constraint.distinct_attribute
            rule = "matchAttribute" if constraint.match_attribute is not None else "distinctAttribute"
            miss = Miss(f"without the constraint {rule}: {name}", "", None, enough=True)
            yield _Candidate(miss, _LESS, False, lambda: True)


def _of_count(claim: ResourceClaim, judged: JudgedChoice, trials: Trials) -> Iterator[_Candidate]:
    """Fewer devices, as many as there can be."""
    if judged.choice is None or judged.choice.all_devices or judged.choice.count < 2:
        return
    possible = _most(judged, _Changed(claim), judged.fitting, trials)
    if possible:
        yield _Candidate(Miss(f"with count: {possible}", judged.name, None, enough=True), _LESS, False, lambda: True)


class _Changed(Struct, frozen=True):
    """A claim after changes, and what is different around it."""

    claim: ResourceClaim
    released: bool = False
    device_class: DeviceClass | None = None

    def fits(self, nodes: Sequence[str], trials: Trials) -> bool:
        """Whether one of some nodes has devices for it."""
        return trials.fits(self.claim, nodes, released=self.released, device_class=self.device_class)


def _most(judged: JudgedChoice, changed: _Changed, numbers: Mapping[str, int], trials: Trials) -> int:
    """How many devices can be had, fewer than are asked for.

    Args:
        judged: whose count is lowered.
        changed: the claim, with whatever else is changed.
        numbers: how many devices fit then, by node.
        trials: asks the allocator.
    """
    assert judged.choice is not None  # noqa: S101 - the caller looked
    nodes = [node for node, _ in Counter(numbers).most_common()]
    possible, refused = 0, min(judged.choice.count, max(numbers.values(), default=0) + 1)
    while refused - possible > 1:
        middle = (possible + refused) // 2
        if replace(changed, claim=with_count(changed.claim, judged.name, middle)).fits(nodes, trials):
            possible = middle
        else:
            refused = middle
    return possible


def _of_devices(claim: ResourceClaim, judged: JudgedChoice, trials: Trials) -> Iterator[_Candidate]:
    """Yield the changes that make devices fit which have only one or two things against them."""
    if judged.choice is None or judged.choice.all_devices:
        return
    gained: Counter[frozenset[str]] = Counter()
    reasons: dict[frozenset[str], list[Reason]] = {}
    names: defaultdict[frozenset[str], list[str]] = defaultdict(list)
    known: dict[int, frozenset[str]] = {}  # like devices have their reasons in common
    for verdict in judged.devices:
        remedies = known.get(id(verdict.reasons))
        if remedies is None:
            changes = {reason.remedy: reason for reason in verdict.reasons}
            helps = 1 <= len(changes) <= 2 and all(map(_can_change, verdict.reasons))
            remedies = known[id(verdict.reasons)] = frozenset(changes if helps else ())
            if helps:
                reasons.setdefault(remedies, list(changes.values()))
        if remedies:
            gained[remedies] += 1
            names[remedies] += verdict.nodes
    by_node = {remedies: Counter(trials.allowed(nodes)) for remedies, nodes in names.items()}
    short = judged.choice.count > max((judged.fitting[node] for node in trials.allowed(judged.fitting)), default=0)
    for remedies in gained:
        # with both changes, the devices fit that lack only one of them, too
        helped = [each for each in gained if each <= remedies]
        numbers = Counter(judged.fitting)
        for each in helped:
            numbers.update(by_node[each])
        nodes = [node for node, number in numbers.most_common() if number >= judged.choice.count]
        nodes = list(trials.allowed(nodes))
        changes_ = sorted(reasons[remedies], key=_rank)
        change = " and ".join(reason.remedy for reason in changes_)
        miss = Miss(change, judged.name, len(judged.fits) + sum(gained[each] for each in helped), enough=bool(nodes))
        rank = _rank(changes_[-1]) + (_TWO if len(changes_) > 1 else 0)
        changed = _after(claim, judged, changes_)
        if changed is None:
            yield _Candidate(miss, rank, short, lambda: True)
            continue
        yield _Candidate(
            miss,
            rank,
            short,
            partial(changed.fits, nodes, trials),
            partial(_fewer, judged, miss, changed, numbers, trials),
        )


def _fewer(
    judged: JudgedChoice, miss: Miss, changed: _Changed, numbers: Mapping[str, int], trials: Trials
) -> Miss | None:
    """Return a miss with a lower count beside its change; None where that does not help either."""
    possible = _most(judged, changed, {name: numbers[name] for name in trials.allowed(numbers)}, trials)
    return Miss(f"{miss.change} and with count: {possible}", judged.name, None, enough=True) if possible else None


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


def _after(claim: ResourceClaim, judged: JudgedChoice, reasons: Sequence[Reason]) -> _Changed | None:
    """Return the claim after the changes that reasons suggest; None where these cannot be tried."""
    assert judged.choice is not None  # noqa: S101 - the caller looked
    changed = _Changed(claim)
    for reason in reasons:
        if reason.remedy == RELEASED:
            changed = replace(changed, released=True)
        elif reason.check is Check.CLASS:
            before = changed.device_class or judged.choice.device_class
            device_class = class_without_condition(before, reason.details["condition"])
            if device_class is None:
                return None
            changed = replace(changed, device_class=device_class)
        elif reason.check is Check.SELECTOR:
            relaxed = without_condition(changed.claim, judged.name, reason.details["condition"])
            if relaxed is None:
                return None
            changed = replace(changed, claim=relaxed)
        elif reason.check is Check.TAINT:
            changed = replace(changed, claim=tolerating(changed.claim, judged.name, reason.details["key"]))
        else:
            return None
    return changed
