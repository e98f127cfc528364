"""Why the scheduler took this device and no other: what there was to choose from on the node. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_kit.allocator import Gates, Node, Snapshot
from dra_kit.allocator.capacity import consumption
from dra_kit.allocator.devices import AdvertisedDevice
from dra_kit.allocator.requests import Choice, choices_of
from dra_kit.allocator.selection import Selection
from dra_kit.errors import AllocationError
from dra_kit.resource.v1 import ResourceClaim
from dra_kit.sandbox.pods import Object


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """One result of an allocation, and what stood beside it.

    Attributes:
        request: name, with the sub-request where there is one.
        pool: of the device.
        device: its name.
        fitting: names of the devices of the node that fit the class and the selectors, in the scheduler's order.
        taken: those of them that another claim holds; of a device for several claims, those that have too little left.
        others: how many devices of the node do not fit.
    """

    request: str
    pool: str
    device: str
    fitting: tuple[str, ...]
    taken: tuple[str, ...]
    others: int

    def __str__(self) -> str:
        """The choice as a sentence, without the request."""
        free = [name for name in self.fitting if name not in self.taken]
        reasons = []
        if len(free) == 1:
            reasons.append("the only one that fits")
        elif free and free[0] == self.device:
            reasons.append(f"the first of {len(free)} that fit")
        else:
            reasons.append(f"one of {len(free)} that fit")
        if self.taken:
            reasons.append(f"{', '.join(self.taken)} {'is' if len(self.taken) == 1 else 'are'} taken")
        if self.others:
            reasons.append(f"{self.others} {'does' if self.others == 1 else 'do'} not fit")
        return f"{self.device} of pool {self.pool}: {'; '.join(reasons)}"


def explain_choices(
    snapshot: Snapshot, gates: Gates, selection: Selection, node: Node, *, allocated: tuple[Object, Sequence[Object]]
) -> tuple[DeviceChoice, ...]:
    """What there was to choose from, for each result of a claim's allocation.

    Args:
        snapshot: as it was when the devices were chosen.
        gates: of the scheduler.
        selection: what fits on the node.
        node: that was chosen.
        allocated: the ResourceClaim and the results of its allocation.
    """
    claim, results = allocated
    devices = snapshot.pools(node, gates).devices
    choices = {choice.name: choice for choice in _choices(snapshot, gates, claim)}
    order = {result["device"]: position for position, result in enumerate(results)}
    counts = Counter(result["request"] for result in results)
    explained = []
    for result in results:
        choice = choices[result["request"]]
        fitting = [device for device in devices if _fits(selection, choice, device)]
        # what this claim took before is taken, too
        earlier = {name for name, position in order.items() if position < order[result["device"]]}
        taken = {
            device.id.device
            for device in fitting
            if not choice.admin_access and _is_taken(snapshot, gates, choice, device)
        } | (earlier if counts[result["request"]] > 1 else set())
        names = tuple(device.id.device for device in fitting)
        explained.append(
            DeviceChoice(
                request=result["request"],
                pool=result["pool"],
                device=result["device"],
                fitting=names,
                taken=tuple(name for name in names if name in taken),
                others=len(devices) - len(fitting),
            )
        )
    return tuple(explained)


def _choices(snapshot: Snapshot, gates: Gates, claim: Object) -> Iterator[Choice]:
    model = ResourceClaim.model_validate(claim)
    for request in model.spec.devices.requests:
        for choice in choices_of(model, request, snapshot.classes, gates):
            if not isinstance(choice, AllocationError):
                yield choice


def _is_taken(snapshot: Snapshot, gates: Gates, choice: Choice, device: AdvertisedDevice) -> bool:
    """Whether nothing, or of a device for several claims too little, is left for one more."""
    if not device.shareable:
        return snapshot.usage.is_held(device.id)
    share = consumption(choice.capacity or {}, device, fractional=gates.fractional_capacity_range)
    return share is not None and not share.fits(device, snapshot.usage.consumed(device.id))


def _fits(selection: Selection, choice: Choice, device: AdvertisedDevice) -> bool:
    try:
        return selection.matches(choice, device)
    except AllocationError:
        return False  # the allocator did not come as far as this device
