"""The search for devices: depth first in Kubernetes' order, up to the first complete solution.

Unless a device that was tried has an effect on what follows, as in older releases, the search is shorter than that.
A search that cannot succeed is stopped, and the lists of candidates are shortened. Kubernetes first tries all
combinations for the earlier requests. The result is the same, unless one of those combinations meets an error.
Therefore nothing is concluded if an error is possible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from enum import Enum, auto
from typing import Final, TypeAlias

from msgspec import Struct

from dra_kit.errors import AllocationError, Unsupported
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, Scalar
from dra_kit.kubernetes.allocator.picks import Pick, PickedDevices
from dra_kit.kubernetes.allocator.requests import Constraint, DevicesByValue, RequestAlternative
from dra_kit.kubernetes.allocator.selectors import DeviceMatcher
from dra_kit.kubernetes.values.quantity import Quantity

MAX_RESULTS: Final = 32
"""Devices that one claim can get (resource.k8s.io/v1 AllocationResultsMaxSize)."""
_STEPS_BETWEEN_CHECKS: Final = 1024
"""Steps between two checks for an abort."""


class SearchOutcome(Enum):
    """The outcome of the search below a position."""

    FOUND = auto()
    FAILED = auto()
    TOO_MANY = auto()
    """The claim would get more than 32 devices, regardless of earlier picks."""


_Step: TypeAlias = "Generator[_Step, SearchOutcome, SearchOutcome]"


class SearchLimits(Struct, frozen=True):
    """Limits that abort a search."""

    steps: int
    is_aborted: Callable[[], bool] = lambda: False


class PickPosition(Struct, frozen=True):
    """One device for one choice, by their positions.

    Attributes:
        request: position in the claim.
        choice: position in the request.
        device: position in the devices of the node.
        amounts: see :class:`~dra_kit.kubernetes.allocator.picks.Pick`.
    """

    request: int
    choice: int
    device: int
    amounts: dict[str, Quantity] | None


class Solution(Struct, frozen=True):
    """The result of a search, independent of its claims and devices.

    Attributes:
        picks: for each claim, in the order of its requests.
        selected: for each claim, the position of the choice of each request.
    """

    picks: tuple[tuple[PickPosition, ...], ...]
    selected: tuple[tuple[int, ...], ...]


class _DeadEnd(Exception):
    """No combination of devices can succeed."""


class DeviceSearch:
    """One attempt to find devices for all claims of a pod on one node.

    Args:
        claims: in the order of the pod.
        devices: the devices that ExactCount requests may have, in the order of preference.
        matcher: which devices match.
        picked: which devices are in use.
        limits: the limits that abort the search.
    """

    def __init__(
        self,
        claims: Sequence[ClaimSearch],
        devices: Sequence[AdvertisedDevice],
        matcher: DeviceMatcher,
        picked: PickedDevices,
        limits: SearchLimits,
    ) -> None:
        self._claims = claims
        self._devices = devices
        self._matcher = matcher
        self._picked = picked
        self._feasibility = FeasibilityCheck(claims, devices, matcher, picked)
        self._candidate_lists = CandidateLists(claims, devices, self._feasibility)
        self._is_exhaustive = picked.leaves_traces([each for claim in claims for each in claim.constraints])
        self._limits = limits
        self._steps = 0
        self._failed_tries = 0
        self._matches: defaultdict[RequestAlternative, list[bool | None]] = defaultdict(lambda: [None] * len(devices))
        self.picks: list[list[Pick]] = [[] for _ in claims]
        self.selected: list[list[RequestAlternative]] = [
            [requests[0].choice for requests in claim.requests] for claim in claims
        ]

    def run(self) -> bool:
        """Search; ``picks`` and ``selected`` have the solution if there is one.

        Raises:
            AllocationError: an error occurs before a solution is found, or the search takes too long.
        """
        stack = [self._request(0, 0)]
        outcome: SearchOutcome | None = None
        while stack:
            try:
                step = next(stack[-1]) if outcome is None else stack[-1].send(outcome)
            except StopIteration as end:
                outcome = end.value
                stack.pop()
            except _DeadEnd:
                return False
            else:
                stack.append(step)
                outcome = None
        return outcome is SearchOutcome.FOUND

    def solution(self) -> Solution:
        """Return the result, for other claims with the same requests on a node with the same devices."""
        places = {device: place for place, device in enumerate(self._devices)}
        numbers = {
            choice.choice: (number, place)
            for asked in self._claims
            for number, choices in enumerate(asked.requests)
            for place, choice in enumerate(choices)
        }
        return Solution(
            tuple(
                tuple(PickPosition(*numbers[pick.choice], places[pick.device], pick.amounts) for pick in picks)
                for picks in self.picks
            ),
            tuple(tuple(numbers[choice][1] for choice in selected) for selected in self.selected),
        )

    def _request(self, claim: int, request: int) -> _Step:
        if claim == len(self._claims):
            return SearchOutcome.FOUND
        choices = self._claims[claim].requests
        if request == len(choices):
            outcome = yield self._request(claim + 1, 0)
            # other choices in this claim do not reduce the number of devices of the next claim
            return SearchOutcome.FAILED if outcome is SearchOutcome.TOO_MANY else outcome
        outcomes = set()
        for choice in choices[request]:
            self.selected[claim][request] = choice.choice
            outcome = yield self._pick(claim, request, choice, 0, 0)
            if outcome is SearchOutcome.FOUND:
                return outcome
            outcomes.add(outcome)
        if not self._is_exhaustive and (claim, request) != (0, 0) and self._feasibility.is_dead_end(claim, request):
            raise _DeadEnd
        return SearchOutcome.TOO_MANY if outcomes == {SearchOutcome.TOO_MANY} else SearchOutcome.FAILED

    def _pick(self, claim: int, request: int, choice: NodeAlternative, picked: int, start: int) -> _Step:
        needed = choice.count - picked
        if choice.everything is not None and not choice.everything:
            return SearchOutcome.FAILED
        if needed <= 0:
            return (yield self._request(claim, request + 1))
        if len(self.picks[claim]) + needed > MAX_RESULTS:
            return SearchOutcome.TOO_MANY
        # too few devices are left to succeed, but errors of the remaining devices must still be found
        hopeless = (
            not self._is_exhaustive
            and choice.everything is None
            and needed > 1
            and self._left(choice.choice, start) < needed
        )
        constraints = self._claims[claim].constraints
        for index, device in self._tries(claim, choice, picked, start):
            must = choice.everything is not None
            taken = self._picked.take(choice.choice, device, claim, constraints, must=must, position=picked)
            if taken is None:
                continue
            pick, undo = taken
            if not hopeless:
                self.picks[claim].append(pick)
                outcome = yield self._pick(
                    claim, request, choice.rest or choice, picked + 1, 0 if choice.rest else index + 1
                )
                if outcome is SearchOutcome.FOUND:
                    return outcome
                self.picks[claim].pop()
                if outcome is SearchOutcome.TOO_MANY:
                    undo()
                    return outcome
            undo()
        return SearchOutcome.FAILED

    def _tries(
        self, claim: int, choice: NodeAlternative, picked: int, start: int
    ) -> Iterator[tuple[int, AdvertisedDevice]]:
        """Yield candidate devices for one position; a caller that requests the next had no success with the last."""
        if choice.everything is not None:
            self._count_step(choice.choice)
            yield picked, choice.everything[picked]
            return
        if self._is_exhaustive:
            for index in range(0 if self._picked.tries_every_order else start, len(self._devices)):
                self._count_step(choice.choice)
                if self._is_candidate(choice.choice, index, claim):
                    yield index, self._devices[index]
            return
        shortlist = self._candidate_lists.of(claim, choice) if self._is_long() else None
        everywhere = range(start, len(self._devices))
        failed: set[Hashable] = set()
        for index in everywhere if shortlist is None else shortlist.positions(start, choice.count - picked):
            self._count_step(choice.choice)
            if not self._is_candidate(choice.choice, index, claim):
                continue
            if failed and self._candidate_lists.likeness(index) in failed:
                continue
            yield index, self._devices[index]
            self._failed_tries += 1
            if self._is_long():
                failed.add(self._candidate_lists.likeness(index))

    def _is_long(self) -> bool:
        """Whether the search is so long that checking all devices once saves time."""
        return self._failed_tries > len(self._devices)

    def _is_candidate(self, choice: RequestAlternative, index: int, claim: int) -> bool:
        device = self._devices[index]
        if not self._picked.is_free(choice, device, claim):
            return False
        known = self._matches[choice]
        match = known[index]
        if match is None:
            match = known[index] = self._matcher.matches(choice, device)
        return match

    def _left(self, choice: RequestAlternative, start: int) -> int:
        """Return an upper bound of the available devices from ``start`` on."""
        known = self._matches.get(choice)
        left = len(self._devices) - start
        return left if known is None else left - known[start:].count(False)

    def _count_step(self, choice: RequestAlternative) -> None:
        self._steps += 1
        if self._steps > self._limits.steps:
            raise choice.error(
                f"the search for devices exceeded {self._limits.steps:,} steps; kube-scheduler, which searches for ten "
                "seconds, may time out as well: request fewer devices, or give the requests different selectors",
                kind="search-limit",
            )
        if self._steps % _STEPS_BETWEEN_CHECKS == 0 and self._limits.is_aborted():
            raise AllocationError("filter operation aborted", kind="aborted")


def check_result_count(claim: str, request: str, minimum: int, counted: int) -> None:
    """Reject a claim whose requests need more devices than a claim can have.

    Raises:
        AllocationError: ``too-many-devices``.
    """
    if counted + minimum > MAX_RESULTS:
        raise AllocationError(
            f"claim {claim}, request {request}: adding {minimum} devices exceeds the claim limit of {MAX_RESULTS}, "
            f"with {counted} already accounted for",
            kind="too-many-devices",
            claim=claim,
            request=request,
        )


class NodeAlternative(Struct, frozen=True):
    """A choice on one node.

    Attributes:
        choice: the choice.
        everything: for mode All the devices that it requests, else None.
        rest: what all devices but the first are for instead, see
            :attr:`~dra_kit.kubernetes.release.Change.ALTERNATIVES_HAVE_OWN_DEVICES`.
    """

    choice: RequestAlternative
    everything: tuple[AdvertisedDevice, ...] | None
    rest: NodeAlternative | None = None

    @property
    def count(self) -> int:
        """The number of devices it needs."""
        return self.choice.count if self.everything is None else len(self.everything)


class ClaimSearch(Struct, frozen=True):
    """One claim on one node."""

    requests: Sequence[Sequence[NodeAlternative]]
    constraints: Sequence[Constraint]


class FeasibilityCheck:
    """Determines which requests can never be satisfied, before any device is picked.

    Args:
        claims: of the pod.
        devices: the devices that ExactCount requests may have.
        matcher: which devices match.
        picked: which devices other claims hold.
    """

    def __init__(
        self,
        claims: Sequence[ClaimSearch],
        devices: Sequence[AdvertisedDevice],
        matcher: DeviceMatcher,
        picked: PickedDevices,
    ) -> None:
        self._claims = claims
        self._devices = devices
        self._matcher = matcher
        self._picked = picked
        self._available: dict[RequestAlternative, frozenset[AdvertisedDevice]] = {}
        self._verdicts: dict[tuple[int, int], bool] = {}

    def is_dead_end(self, claim: int, request: int) -> bool:
        """Whether a request can never be satisfied and no error can occur before it."""
        key = claim, request
        if key not in self._verdicts:
            try:
                self._verdicts[key] = self._meets_no_error(claim, request) and all(
                    self._is_impossible(choice, claim, request) for choice in self._claims[claim].requests[request]
                )
            except (AllocationError, Unsupported):
                # only the search can find whether this error occurs
                self._verdicts[key] = False
        return self._verdicts[key]

    def _meets_no_error(self, claim: int, request: int) -> bool:
        """Whether no choice up to this request can fail because of earlier picks; raises other errors."""
        for choice, constrained in self._choices_up_to(claim, request):
            if choice.choice.derived or (constrained and choice.everything is not None):
                return False
            self.available_to(choice)
        return True

    def _is_impossible(self, choice: NodeAlternative, claim: int, request: int) -> bool:
        if choice.rest is not None:
            return False
        available = self.available_to(choice)
        if len(available) < choice.count or (choice.everything is not None and not choice.everything):
            return True
        if choice.choice.admin_access or any(self._picked.is_shareable(device) for device in available):
            return False
        # earlier exact requests that can only have the same devices leave too few
        rivals = (
            rival.count
            for number, asked in enumerate(self._claims[: claim + 1])
            for choices in (asked.requests if number < claim else asked.requests[:request])
            for rival in choices
            if len(choices) == 1 and not rival.choice.admin_access and self.available_to(rival) <= available
        )
        return sum(rivals) + choice.count > len(available)

    def available_to(self, choice: NodeAlternative) -> frozenset[AdvertisedDevice]:
        """Return the devices for a choice if it were the first.

        Raises:
            AllocationError: a selector or capacity request fails for some device.
        """
        known = self._available.get(choice.choice)
        if known is None:
            candidates = self._devices if choice.everything is None else choice.everything
            known = self._available[choice.choice] = frozenset(
                [
                    device
                    for device in candidates
                    if self._matcher.matches(choice.choice, device)
                    and self._picked.is_obtainable(choice.choice, device)
                ]
            )
        return known

    def _choices_up_to(self, claim: int, request: int) -> Iterator[tuple[NodeAlternative, bool]]:
        for number, asked in enumerate(self._claims[: claim + 1]):
            for choices in asked.requests if number < claim else asked.requests[: request + 1]:
                for choice in choices:
                    yield choice, bool(asked.constraints)


class CandidateList:
    """The devices that one choice may have.

    Args:
        devices: all, in the order of preference.
        available: devices for the choice if it were the first.
        constraints: constraints of the claim for the choice.
        choice: the choice.

    Raises:
        AllocationError: a derived attribute fails for some device.
    """

    def __init__(
        self,
        devices: Sequence[AdvertisedDevice],
        available: frozenset[AdvertisedDevice],
        constraints: Sequence[Constraint],
        choice: NodeAlternative,
    ) -> None:
        self._positions = [index for index, device in enumerate(devices) if device in available]
        self._by_value: list[tuple[Constraint, DevicesByValue]] = []
        for constraint in constraints:
            groups: dict[Scalar, list[int]] = {}
            for index in self._positions:
                for value in constraint.values(choice.choice, devices[index]) or ():
                    groups.setdefault(value, []).append(index)
            self._by_value.append((constraint, DevicesByValue(groups)))

    def positions(self, start: int, needed: int) -> Sequence[int]:
        """Return the positions from ``start`` on of candidates for the next device; none if fewer than ``needed``."""
        best: Sequence[int] = self._positions
        for constraint, by_value in self._by_value:
            found = constraint.candidates(by_value, needed)
            if found is not None and len(found) < len(best):
                best = found
        first = bisect_left(best, start)
        return best[first:] if len(best) - first >= needed else ()


class CandidateLists:
    """The candidate lists of all choices: a hard ``matchAttribute`` search takes a fourth to a twelfth of the time.

    Args:
        claims: of the pod.
        devices: the devices that ExactCount requests may have.
        feasibility: what is known about the requests before any device is picked.
    """

    def __init__(
        self, claims: Sequence[ClaimSearch], devices: Sequence[AdvertisedDevice], feasibility: FeasibilityCheck
    ) -> None:
        self._claims = claims
        self._devices = devices
        self._feasibility = feasibility
        self._known: dict[NodeAlternative, CandidateList | None] = {}
        self._likenesses: dict[int, Hashable] = {}
        # with admin access a device can be picked twice; mode All takes devices in order, up to an error
        self._are_comparable = not any(
            choice.choice.admin_access or (choice.everything is not None and asked.constraints)
            for asked, choice in self._choices()
        )

    def of(self, claim: int, choice: NodeAlternative) -> CandidateList | None:
        """Return the candidates for a choice; None if evaluating a device may fail."""
        if choice not in self._known:
            try:
                self._known[choice] = CandidateList(
                    self._devices,
                    self._feasibility.available_to(choice),
                    [item for item in self._claims[claim].constraints if item.covers(choice.choice)],
                    choice,
                )
            except (AllocationError, Unsupported):
                self._known[choice] = None
        return self._known[choice]

    def likeness(self, index: int) -> Hashable:
        """Return a key that is equal for devices that are interchangeable in every request."""
        if self._are_comparable and index not in self._likenesses:
            try:
                self._likenesses[index] = self._likeness_of(self._devices[index])
            except (AllocationError, Unsupported):
                self._are_comparable = False
        return self._likenesses[index] if self._are_comparable else index

    def _likeness_of(self, device: AdvertisedDevice) -> Hashable:
        if device.shareable:
            return device.id  # its remaining capacity depends on earlier picks
        own = device.slice_name if device.spec.shared_counters else ""  # before Kubernetes 1.35: it consumes those
        seen: list[Hashable] = [device.demands, (device.id[:2], own) if device.demands else None]
        for asked, choice in self._choices():
            available = device in self._feasibility.available_to(choice)
            seen.append(available)
            for constraint in asked.constraints if available else ():
                if constraint.covers(choice.choice):
                    values = constraint.values(choice.choice, device)
                    if values is not None and not values:
                        return device.id  # a list is only accepted for the first device: the order matters
                    seen.append(values)
        return tuple(seen)

    def _choices(self) -> list[tuple[ClaimSearch, NodeAlternative]]:
        return [(asked, choice) for asked in self._claims for choices in asked.requests for choice in choices]
