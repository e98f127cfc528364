"""The search for devices: depth first in Kubernetes' order, up to the first complete solution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from enum import Enum, auto
from typing import Final, TypeAlias

from msgspec import Struct

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice
from dra_kit.kubernetes.allocator.picks import Pick, PickedDevices
from dra_kit.kubernetes.allocator.pruning import CandidateLists, ClaimSearch, FeasibilityCheck, NodeAlternative
from dra_kit.kubernetes.allocator.requests import RequestAlternative
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
        if (claim, request) != (0, 0) and self._feasibility.is_dead_end(claim, request):
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
        hopeless = choice.everything is None and needed > 1 and self._left(choice.choice, start) < needed
        constraints = self._claims[claim].constraints
        for index, device in self._tries(claim, choice, picked, start):
            taken = self._picked.take(choice.choice, device, claim, constraints, must=choice.everything is not None)
            if taken is None:
                continue
            pick, undo = taken
            if not hopeless:
                self.picks[claim].append(pick)
                outcome = yield self._pick(claim, request, choice, picked + 1, index + 1)
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
