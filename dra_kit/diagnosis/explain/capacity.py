"""Why a device has too little capacity, or its pool too few counters left."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from dra_kit.diagnosis.explain.cluster import ClusterView
from dra_kit.diagnosis.explain.verdicts import RELEASED, Reason, ReasonKind
from dra_kit.kubernetes.allocator.capacity import capacity_share
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice
from dra_kit.kubernetes.allocator.picks import CounterLedger
from dra_kit.kubernetes.allocator.pools import NodePool
from dra_kit.kubernetes.allocator.requests import RequestAlternative
from dra_kit.kubernetes.resource.v1 import CapacityRequestPolicy, DeviceCapacity
from dra_kit.kubernetes.values.amount import NANO
from dra_kit.kubernetes.values.quantity import Quantity


def capacity_reasons(choice: RequestAlternative, device: AdvertisedDevice, cluster: ClusterView) -> Iterator[Reason]:
    """Yield the capacities of a device that are insufficient for a request, or not available in that amount.

    Raises:
        AllocationError: the amounts of the request are invalid.
    """
    if not cluster.gates.consumable_capacity:
        return
    fractional = cluster.gates.fractional_capacity_range
    requested = choice.capacity or {}
    offers = device.device.capacity
    missing = [name for name in requested if name not in offers]
    for name in missing:
        yield Reason(
            ReasonKind.CAPACITY,
            f"has no capacity {name}",
            brief=f"without capacity {name}",
            remedy=f"without a request for capacity {name}",
        )
    if missing:
        return
    share = capacity_share(requested, device, fractional=fractional)
    if share is None:
        refused = [
            name for name in requested if capacity_share({name: requested[name]}, device, fractional=fractional) is None
        ]
        for name in refused:
            allowed = _allowed(offers[name].request_policy)
            yield Reason(
                ReasonKind.CAPACITY,
                f"gives {name} only {allowed}, not {requested[name]}",
                brief=f"{name} not available in this amount",
                found=allowed,
                wanted=f"≠ {requested[name]}",
                remedy=f"with another amount of {name}",
                details={"capacity": name, "requested": str(requested[name]), "allowed": allowed},
            )
        if not refused:
            yield Reason(
                ReasonKind.CAPACITY,
                "has a capacity whose default amount its own policy does not allow",
                brief="with a capacity that must be requested",
                remedy="with an amount of each capacity",
            )
        return
    consumed = cluster.snapshot.usage.consumed(device.id)
    for name, needed in share.nanos.items():
        left = device.capacity[name] - consumed.get(name, 0)
        if needed <= left:
            continue
        whole = offers[name].value
        wanted, short, rest = (_like(whole, nanos) for nanos in (needed, needed - left, left))
        claims = sorted({holder.claim for holder in cluster.holders.get(device.id, ())})
        by = f", the rest went to {', '.join(claims)}" if claims else ""
        untouched = left == device.capacity[name]
        there = f"it has {whole}" if untouched else f"{rest} of {whole} left{by}"
        yield Reason(
            ReasonKind.CAPACITY,
            f"{name} is short by {short}: {_needed(name, wanted, choice, offers[name])}, {there}",
            brief=f"short of {name}",
            found=f"has {rest}" if untouched else f"{rest} left",
            wanted=f"< {wanted}",
            remedy=f"with an amount of {name} in capacity.requests"
            if name not in requested
            else RELEASED
            if needed <= device.capacity[name]
            else f"with a smaller request for {name}",
            details={"capacity": name, "requested": wanted, "left": rest, "short": short, "claims": claims},
        )


class PoolCounters:
    """The counter sets of a pool on one node, and what devices in use consume."""

    def __init__(self, pool: NodePool, cluster: ClusterView) -> None:
        usage = cluster.snapshot.usage
        held = [device for device in (*pool.devices, *pool.elsewhere) if device.demands and usage.is_held(device.id)]
        self._ledger = CounterLedger(pool, held, groups=cluster.gates.compatibility_groups)
        self._whole = dict(pool.counters or {})
        self._left = dict(self._whole)
        self._claims: dict[str, set[str]] = {}
        for device in held:
            holders = {holder.claim for holder in cluster.holders.get(device.id, ())}
            for demand in device.demands:
                self._claims.setdefault(demand.counter_set, set()).update(holders)
                for name, amount in demand.amounts:
                    self._left[demand.counter_set, name] -= amount

    def reasons(self, device: AdvertisedDevice) -> Iterator[Reason]:
        """Yield the counters that do not suffice for a device."""
        if self._ledger.take(device):
            self._ledger.give_back(device)
            return
        found = False
        for demand in device.demands:
            units = {
                name: counter.value
                for consumption_ in device.device.consumes_counters
                if consumption_.counter_set == demand.counter_set
                for name, counter in consumption_.counters.items()
            }
            for name, amount in demand.amounts:
                left = self._left[demand.counter_set, name]
                if amount > left:
                    found = True
                    yield self._short(demand.counter_set, name, units[name], amount - left)
        if not found:
            overdrawn = [f"{name} of {counter_set}" for (counter_set, name), left in self._left.items() if left < 0]
            if overdrawn:
                text = f"counters of its pool are overdrawn: {', '.join(overdrawn)}"
            else:
                text = "devices in use that draw on its counters have no compatibility group in common with it"
            brief = "blocked by devices in use of the same hardware"
            yield Reason(ReasonKind.COUNTERS, text, brief=brief, remedy=RELEASED)

    def _short(self, counter_set: str, name: str, unit: Quantity, short: int) -> Reason:
        whole, left = self._whole[counter_set, name], max(self._left[counter_set, name], 0)
        claims = sorted(self._claims.get(counter_set, ()))
        by = f" (devices of {', '.join(claims)})" if claims else ""
        lacking, rest = _like(unit, short), _like(unit, left)
        return Reason(
            ReasonKind.COUNTERS,
            f"{counter_set} is short of {name} by {lacking}: {unit} needed, {rest} left{by}",
            brief=f"short of {name} in a shared counter",
            found=f"{rest} left",
            wanted=f"< {unit}",
            remedy=RELEASED if claims else "",
            details={"counterSet": counter_set, "counter": name, "needed": str(unit), "left": rest, "short": lacking,
                     "whole": _like(unit, whole), "claims": claims},
        )  # fmt: skip


def _allowed(policy: CapacityRequestPolicy | None) -> str:
    if policy is None:
        return "as published"
    if policy.valid_values:
        return f"in amounts of {', '.join(map(str, policy.valid_values))}"
    valid = policy.valid_range
    if valid is None:
        return "as published"
    bounds = [f"from {valid.min}" if valid.min is not None else "", f"to {valid.max}" if valid.max is not None else ""]
    step = f"in steps of {valid.step}" if valid.step is not None else ""
    return " ".join(filter(None, (*bounds, step))) or "as published"


def _needed(name: str, amount: str, choice: RequestAlternative, offer: DeviceCapacity) -> str:
    """Explain why a claim consumes an amount, which it may not have requested."""
    if name in (choice.capacity or {}):
        return f"{amount} requested"
    if offer.request_policy is not None and offer.request_policy.default is not None:
        return f"the default of {amount} needed, as the request names no amount"
    return "all of it needed, as the request names no amount and the device has no request policy with a default"


def _like(model: Quantity, nanos: int) -> str:
    """Return billionths as a quantity with the suffixes of ``model``."""
    number = Quantity(Decimal(nanos).scaleb(NANO))
    return str(number if not model.sign else model + (number - model))
