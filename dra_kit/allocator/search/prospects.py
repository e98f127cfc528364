"""Ends a search that cannot succeed: some request can never be satisfied, whatever the others pick.

Kubernetes tries all combinations for the earlier requests first. The verdict is the same, unless one of those
combinations met an error; so nothing is concluded where an error is possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.allocator.requests.constraints import Constraint
from dra_kit.allocator.requests.requests import Choice
from dra_kit.allocator.search.holding import Holding
from dra_kit.allocator.selectors.selection import Selection
from dra_kit.errors import AllocationError, Unsupported


class NodeChoice(Struct, frozen=True):
    """A choice on one node.

    Attributes:
        choice: the choice.
        everything: in mode All the devices that it means, else None.
    """

    choice: Choice
    everything: tuple[AdvertisedDevice, ...] | None

    @property
    def count(self) -> int:
        """How many devices it needs."""
        return self.choice.count if self.everything is None else len(self.everything)


class ClaimSearch(Struct, frozen=True):
    """One claim on one node.

    Attributes:
        requests: the choices of each request.
        constraints: of the claim.
    """

    requests: Sequence[Sequence[NodeChoice]]
    constraints: Sequence[Constraint]


class Prospects:
    """What can be known of requests without picking anything.

    Args:
        claims: of the pod.
        devices: those that ExactCount requests may have.
        selection: which devices match.
        holding: which devices other claims hold.
    """

    def __init__(
        self,
        claims: Sequence[ClaimSearch],
        devices: Sequence[AdvertisedDevice],
        selection: Selection,
        holding: Holding,
    ) -> None:
        self._claims = claims
        self._devices = devices
        self._selection = selection
        self._holding = holding
        self._available: dict[Choice, frozenset[AdvertisedDevice]] = {}
        self._verdicts: dict[tuple[int, int], bool] = {}

    def is_dead_end(self, claim: int, request: int) -> bool:
        """Whether a request can never be satisfied, and no error can be met on the way to it."""
        key = claim, request
        if key not in self._verdicts:
            try:
                self._verdicts[key] = self._meets_no_error(claim, request) and all(
                    self._is_hopeless(choice, claim, request) for choice in self._claims[claim].requests[request]
                )
            except (AllocationError, Unsupported):
                # the search may meet it as well, or not: only a search finds out
                self._verdicts[key] = False
        return self._verdicts[key]

    def _meets_no_error(self, claim: int, request: int) -> bool:
        """Whether no choice up to this request can fail depending on what is picked; others fail when looked at."""
        for choice, constrained in self._choices_up_to(claim, request):
            if choice.choice.derived or (constrained and choice.everything is not None):
                return False
            self.available_to(choice)
        return True

    def _is_hopeless(self, choice: NodeChoice, claim: int, request: int) -> bool:
        available = self.available_to(choice)
        if len(available) < choice.count or (choice.everything is not None and not choice.everything):
            return True
        if choice.choice.admin_access or any(self._holding.is_shareable(device) for device in available):
            return False
        # exact requests before it that can only have the same devices leave too few
        rivals = (
            rival.count
            for number, asked in enumerate(self._claims[: claim + 1])
            for choices in (asked.requests if number < claim else asked.requests[:request])
            for rival in choices
            if len(choices) == 1 and not rival.choice.admin_access and self.available_to(rival) <= available
        )
        return sum(rivals) + choice.count > len(available)

    def available_to(self, choice: NodeChoice) -> frozenset[AdvertisedDevice]:
        """Return the devices that a choice could have if it came first.

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
                    if self._selection.matches(choice.choice, device)
                    and self._holding.is_obtainable(choice.choice, device)
                ]
            )
        return known

    def _choices_up_to(self, claim: int, request: int) -> Iterator[tuple[NodeChoice, bool]]:
        for number, asked in enumerate(self._claims[: claim + 1]):
            for choices in asked.requests if number < claim else asked.requests[: request + 1]:
                for choice in choices:
                    yield choice, bool(asked.constraints)
