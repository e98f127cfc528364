"""Which devices are worth a visit, once a search has looked at all of them and still goes on.

Kubernetes visits every device at every position. Leaving out those that would be refused anyway, or that look the same
as one which has led nowhere, changes neither the solution nor the verdict; it is done only where no visit can end in
an error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence

from dra_kit.allocator.cluster.attributes import Scalar
from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.allocator.requests.constraints import Constraint, DevicesByValue
from dra_kit.allocator.search.prospects import ClaimSearch, NodeChoice, Prospects
from dra_kit.errors import AllocationError, Unsupported


class Shortlist:
    """The devices that one choice may have.

    Args:
        devices: all, in the order of preference.
        available: those that the choice could have if it came first.
        constraints: of the claim, that cover the choice.
        choice: the choice.

    Raises:
        AllocationError: a derived attribute fails for some device.
    """

    def __init__(
        self,
        devices: Sequence[AdvertisedDevice],
        available: frozenset[AdvertisedDevice],
        constraints: Sequence[Constraint],
        choice: NodeChoice,
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
        """Where to look for the next of several devices; nowhere if there cannot be enough.

        Args:
            start: the first position.
            needed: how many are to be picked.
        """
        best: Sequence[int] = self._positions
        for constraint, by_value in self._by_value:
            found = constraint.candidates(by_value, needed)
            if found is not None and len(found) < len(best):
                best = found
        first = bisect_left(best, start)
        return best[first:] if len(best) - first >= needed else ()


class Shortlists:
    """Those of all choices.

    Args:
        claims: of the pod.
        devices: those that ExactCount requests may have.
        prospects: what can be known of requests without picking anything.
    """

    def __init__(
        self, claims: Sequence[ClaimSearch], devices: Sequence[AdvertisedDevice], prospects: Prospects
    ) -> None:
        self._claims = claims
        self._devices = devices
        self._prospects = prospects
        self._known: dict[NodeChoice, Shortlist | None] = {}
        self._likenesses: dict[int, Hashable] = {}
        # with administrators' access a device may be picked twice; all devices are taken in order, up to an error
        self._are_comparable = not any(
            choice.choice.admin_access or (choice.everything is not None and asked.constraints)
            for asked, choice in self._choices()
        )

    def of(self, claim: int, choice: NodeChoice) -> Shortlist | None:
        """Return the shortlist of a choice; None where some visit would end in an error."""
        if choice not in self._known:
            try:
                self._known[choice] = Shortlist(
                    self._devices,
                    self._prospects.available_to(choice),
                    [item for item in self._claims[claim].constraints if item.covers(choice.choice)],
                    choice,
                )
            except (AllocationError, Unsupported):
                self._known[choice] = None
        return self._known[choice]

    def likeness(self, index: int) -> Hashable:
        """Equal for devices that can take each other's place in every request."""
        if self._are_comparable and index not in self._likenesses:
            try:
                self._likenesses[index] = self._look_at(self._devices[index])
            except (AllocationError, Unsupported):
                self._are_comparable = False
        return self._likenesses[index] if self._are_comparable else index

    def _look_at(self, device: AdvertisedDevice) -> Hashable:
        if device.shareable:
            return device.id  # what is left of it depends on what was picked before
        seen: list[Hashable] = [device.demands, device.id[:2] if device.demands else None]
        for asked, choice in self._choices():
            available = device in self._prospects.available_to(choice)
            seen.append(available)
            for constraint in asked.constraints if available else ():
                if constraint.covers(choice.choice):
                    values = constraint.values(choice.choice, device)
                    if values is not None and not values:
                        return device.id  # a list, which only the first device may have: the order matters
                    seen.append(values)
        return tuple(seen)

    def _choices(self) -> list[tuple[ClaimSearch, NodeChoice]]:
        return [(asked, choice) for asked in self._claims for choices in asked.requests for choice in choices]
