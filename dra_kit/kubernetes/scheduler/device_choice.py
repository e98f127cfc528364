"""Explains the selection of devices: how many others were free, in use, tainted or excluded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.constraints import Constraint, constraints_of
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice
from dra_kit.kubernetes.allocator.picks import PickedDevices
from dra_kit.kubernetes.allocator.requests import RequestAlternative, request_alternatives
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.selectors import DeviceMatcher
from dra_kit.kubernetes.allocator.state import AllocatorState
from dra_kit.kubernetes.resource.matching import Node
from dra_kit.kubernetes.resource.v1 import ResourceClaim
from dra_kit.kubernetes.values.json import ObjectView

_FREE, _TAKEN, _TAINTED, _COUNTERS, _CONSTRAINTS = "free", "taken", "tainted", "counters", "constraints"


class DeviceChoice(Struct, frozen=True):
    """One result of an allocation, with its alternatives.

    Attributes:
        request: name, with the subrequest if there is one.
        pool: of the device.
        device: its name.
        free: names of the devices that fit, including itself, in the scheduler's order; ``pool/name`` for devices of
            other pools.
        taken: matching devices in use by this pod or others, and shareable devices with insufficient capacity.
        tainted: matching devices with a taint that the request does not tolerate.
        counted_out: number of matching devices that consume counters of which too little is left.
        constrained: number of matching devices that violate a constraint of the claim.
        others: number of the node's devices that do not match the class, the selectors or the amounts.
    """

    request: str
    pool: str
    device: str
    free: tuple[str, ...]
    taken: tuple[str, ...]
    tainted: tuple[str, ...]
    counted_out: int
    constrained: int
    others: int

    def __str__(self) -> str:
        """Return the choice as a sentence, without the request."""
        reasons = []
        if len(self.free) == 1:
            reasons.append("the only one that fits")
        elif self.free and self.free[0] == self.device:
            reasons.append(f"the first of {len(self.free)} that fit")
        else:
            reasons.append(f"one of {len(self.free)} that fit")
        for names, what in ((self.taken, "taken"), (self.tainted, "tainted")):
            if names:
                reasons.append(f"{', '.join(names)} {_are(len(names))} {what}")
        if self.counted_out:
            reasons.append(f"{self.counted_out} {_are(self.counted_out)} short of counters")
        if self.constrained:
            reasons.append(f"{self.constrained} {_are(self.constrained)} against the claim's constraints")
        if self.others:
            reasons.append(f"{self.others} {'does' if self.others == 1 else 'do'} not fit")
        return f"{self.device} of pool {self.pool}: {'; '.join(reasons)}"


def explain_choices(
    snapshot: AllocatorState,
    gates: AllocatorRules,
    matcher: DeviceMatcher,
    node: Node,
    allocations: Sequence[tuple[ObjectView, ObjectView]],
) -> Iterator[tuple[ObjectView, DeviceChoice]]:
    """Yield the alternatives for each result of the allocations of a pod.

    Args:
        snapshot: the state when the devices were allocated.
        gates: of the scheduler.
        matcher: what fits on the node.
        node: the selected one.
        allocations: ResourceClaims and their allocations.

    Yields:
        The claim and the choice, in the order in which they were made.
    """
    pools = snapshot.pools(node, gates)
    by_name = {(device.id.driver, device.id.pool, device.id.device): device for device in pools.devices}
    picked = PickedDevices(node, gates, snapshot.usage, pools.ordered)
    counter = _Counter(matcher, picked, pools.devices)
    for number, (claim, allocation) in enumerate(allocations):
        model = ResourceClaim.model_validate(claim)
        choices = {choice.name: choice for choice in _choices(snapshot, gates, model)}
        constraints = constraints_of(model, gates, matcher.attribute)
        for result in allocation.get("devices", {}).get("results", []):
            device = by_name[result["driver"], result["pool"], result["device"]]
            yield claim, counter.count(choices[result["request"]], device, number, constraints)


class _Counter(Struct, frozen=True):
    """Classifies the devices of a node for each result in order, and then takes its device."""

    matcher: DeviceMatcher
    picked: PickedDevices
    devices: Sequence[AdvertisedDevice]

    def count(
        self, choice: RequestAlternative, device_taken: AdvertisedDevice, claim: int, constraints: Sequence[Constraint]
    ) -> DeviceChoice:
        found: Mapping[str, list[str]] = {state: [] for state in (_FREE, _TAKEN, _TAINTED, _COUNTERS, _CONSTRAINTS)}
        for device in self.devices:
            if self._fits(choice, device):
                same_pool = device.id.pool == device_taken.id.pool
                name = device.id.device if same_pool else f"{device.id.pool}/{device.id.device}"
                found[self._state(choice, device, claim, constraints)].append(name)
        self.picked.take(choice, device_taken, claim, constraints, must=False)
        return DeviceChoice(
            request=choice.name,
            pool=device_taken.id.pool,
            device=device_taken.id.device,
            free=tuple(found[_FREE]),
            taken=tuple(found[_TAKEN]),
            tainted=tuple(found[_TAINTED]),
            counted_out=len(found[_COUNTERS]),
            constrained=len(found[_CONSTRAINTS]),
            others=len(self.devices) - sum(map(len, found.values())),
        )

    def _state(
        self, choice: RequestAlternative, device: AdvertisedDevice, claim: int, constraints: Sequence[Constraint]
    ) -> str:
        """Return the first reason that prevents the use of a matching device."""
        if self._is_available(choice, device, claim, constraints):
            return _FREE
        if not self.picked.tolerates(choice, device):
            return _TAINTED
        if not self.picked.is_free(choice, device, claim) or self.picked.is_shareable(device):
            return _TAKEN
        return _CONSTRAINTS if self._is_available(choice, device, claim, ()) else _COUNTERS

    def _is_available(
        self, choice: RequestAlternative, device: AdvertisedDevice, claim: int, constraints: Sequence[Constraint]
    ) -> bool:
        taken = self.picked.take(choice, device, claim, constraints, must=False)
        if taken is not None:
            taken[1]()  # undo
        return taken is not None

    def _fits(self, choice: RequestAlternative, device: AdvertisedDevice) -> bool:
        try:
            return self.matcher.matches(choice, device) and self.picked.could_ever_serve(choice, device)
        except AllocationError:
            return False  # the allocator did not reach this device


def _choices(snapshot: AllocatorState, gates: AllocatorRules, claim: ResourceClaim) -> Iterator[RequestAlternative]:
    for request in claim.spec.devices.requests:
        for choice in request_alternatives(claim, request, snapshot.classes, gates):
            if not isinstance(choice, AllocationError):
                yield choice


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
