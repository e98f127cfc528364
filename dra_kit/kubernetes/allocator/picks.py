"""Devices that an attempt on one node has picked, in addition to allocated ones; undone in reverse order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.devices import NOTHING, AdvertisedDevice, CapacityShare, capacity_share
from dra_kit.kubernetes.allocator.pools import NodePool, PoolID
from dra_kit.kubernetes.allocator.requests import Constraint, RequestAlternative
from dra_kit.kubernetes.allocator.rules import OPTIONAL_NODE_OPERATIONS, AllocatorRules
from dra_kit.kubernetes.allocator.state import DeviceUsage
from dra_kit.kubernetes.release import Change
from dra_kit.kubernetes.resource.matching import Node, all_tolerated
from dra_kit.kubernetes.values.quantity import Quantity
from dra_kit.text import counted


class Pick(Struct, frozen=True):
    """One device for one choice.

    Attributes:
        choice: the choice it is for.
        device: the device.
        amounts: what a share consumes of each capacity; None if the whole device is held.
    """

    choice: RequestAlternative
    device: AdvertisedDevice
    amounts: dict[str, Quantity] | None


class PickedDevices:
    """The devices that the claims of one pod would get on one node.

    Args:
        node: the node.
        gates: of the scheduler.
        usage: what other claims hold.
        pools: of the node.
        as_tried: reject also what an older scheduler rejects because of devices that it tried before, or by mistake.
    """

    def __init__(
        self,
        node: Node,
        gates: AllocatorRules,
        usage: DeviceUsage,
        pools: Sequence[NodePool],
        *,
        as_tried: bool = False,
    ) -> None:
        self._gates = gates
        self._keeps_counters = as_tried and not gates.has(Change.COUNTERS_ARE_GIVEN_BACK)
        self._checks_others = as_tried and gates.checks_other_capacities
        self._usage = usage
        self._blocked = usage.blocked(gates)
        self._skipping_works = gates.optional_node_operations and OPTIONAL_NODE_OPERATIONS in node.declared_features
        self._pools = {pool.id: pool for pool in pools}
        self._ledgers: dict[tuple[tuple[str, str], str], CounterLedger] = {}
        self._holders: dict[AdvertisedDevice, list[int]] = {}
        self._taken: dict[AdvertisedDevice, dict[str, int]] = {}
        self._shares: dict[AdvertisedDevice, int] = {}
        self._consumptions: dict[tuple[RequestAlternative, AdvertisedDevice], CapacityShare | None] = {}

    def is_free(self, choice: RequestAlternative, device: AdvertisedDevice, claim: int) -> bool:
        """Whether a choice of this claim may have the device, considering exclusive holders only."""
        holders = self._holders.get(device)
        if choice.admin_access:
            return not holders or claim not in holders
        return not holders and device.id not in self._blocked and not self._usage.is_left_to_shares(device, self._gates)

    def could_ever_serve(self, choice: RequestAlternative, device: AdvertisedDevice) -> bool:
        """Return whether the capacity of the device suffices without the picks.

        Raises:
            AllocationError: the request cannot be computed.
        """
        if not self._gates.consumable_capacity:
            return True
        share = self._consumption(choice, device)
        taken = {} if self._gates.has(Change.ALL_COUNTS_FULL) else self._usage.consumed(device.id, self._gates)
        return share is not None and share.fits(device, taken)

    def is_shareable(self, device: AdvertisedDevice) -> bool:
        """Whether several choices can have it at the same time."""
        return device.shareable and self._gates.consumable_capacity

    def is_obtainable(self, choice: RequestAlternative, device: AdvertisedDevice) -> bool:
        """Whether a matching device is available regardless of picks.

        Raises:
            AllocationError: the request cannot be computed.
        """
        if self._gates.consumable_capacity:
            share = self._consumption(choice, device)
            if share is None or not share.fits(device, self._usage.consumed(device.id, self._gates)):
                return False
        return (
            (choice.admin_access or device.id not in self._blocked)
            and self._is_usable(device)
            and self.tolerates(choice, device)
        )

    def tolerates(self, choice: RequestAlternative, device: AdvertisedDevice) -> bool:
        """Whether a choice tolerates the taints of the device."""
        if not self._gates.device_taints:
            return True
        taints = (*device.taints, *device.rule_taints) if self._gates.device_taint_rules else device.taints
        return all_tolerated(taints, choice.tolerations)

    def take(
        self,
        choice: RequestAlternative,
        device: AdvertisedDevice,
        claim: int,
        constraints: Sequence[Constraint],
        *,
        must: bool,
        position: int = 0,
    ) -> tuple[Pick, Callable[[], None]] | None:
        """Pick a device that matches the choice, unless a check rejects it.

        Args:
            choice: the choice.
            device: the device.
            claim: index of the claim.
            constraints: constraints of the claim.
            must: no other device is possible, so that a violated constraint is an error.
            position: how many devices the request has.

        Returns:
            The pick and a function that undoes it.

        Raises:
            AllocationError: the request cannot be computed, ``all-constraint``, or ``scheduler-stops``.
        """
        if not self.is_free(choice, device, claim) or not self._is_usable(device):
            return None
        # what mode All takes has been checked before any device was picked
        unchecked = must and self._checks_others
        share = self._consumption(choice, device) if unchecked else self._share_left(choice, device)
        if share is None:
            return None
        ledger = self._ledger_to_charge(device)
        if ledger is not None and not ledger.take(device):
            return None
        if not self.tolerates(choice, device) or not self._add(choice, device, constraints, must=must):
            if not self._keeps_counters:
                _give_back(ledger, device)
            return None

        shared = self.is_shareable(device)
        if not shared:
            self._holders.setdefault(device, []).append(claim)
        if self._checks_others and not self._has_room_at(position, choice, device):
            return None  # it stays in use, and in the constraints
        if shared:
            self._count_share(device, share, 1)
        covering = [constraint for constraint in constraints if constraint.covers(choice)]
        undo = partial(self._undo, device, covering, share if shared else None, ledger)
        return Pick(choice, device, share.amounts if shared else None), undo

    def _undo(
        self,
        device: AdvertisedDevice,
        constraints: Sequence[Constraint],
        share: CapacityShare | None,
        ledger: CounterLedger | None,
    ) -> None:
        for constraint in constraints:
            constraint.remove_last()
        if share is not None:
            self._count_share(device, share, -1)
        else:
            self._holders[device].pop()
        if share is None or not self._keeps_counters:
            _give_back(ledger, device)

    def _is_usable(self, device: AdvertisedDevice) -> bool:
        """Whether gates and node support the device's counters and skipped node operations."""
        if device.demands and not self._gates.partitionable_devices:
            return False
        skips = device.spec.skip_node_operations and self._gates.variant.skips_operations
        return self._skipping_works or not skips

    def _consumption(self, choice: RequestAlternative, device: AdvertisedDevice) -> CapacityShare | None:
        key = choice, device
        if key not in self._consumptions:
            try:
                self._consumptions[key] = capacity_share(choice.capacity, device, self._gates)
            except AllocationError as error:
                text = f"checking capacity for device {device.id}: {error}"
                raise choice.error(text, kind=error.kind, device=str(device.id)) from error
        return self._consumptions[key]

    def _share_left(self, choice: RequestAlternative, device: AdvertisedDevice) -> CapacityShare | None:
        if not self._gates.consumable_capacity:
            return NOTHING
        share = self._consumption(choice, device)
        consumed = self._usage.consumed(device.id, self._gates)
        return share if share is not None and share.fits(device, consumed, self._taken.get(device, {})) else None

    def _has_room_at(self, position: int, choice: RequestAlternative, device: AdvertisedDevice) -> bool:
        """Whether the device at a position in the slice of another one has the capacity that is asked of that.

        Raises:
            AllocationError: ``scheduler-stops``.
        """
        pool = self._pools[PoolID(device.id.driver, device.id.pool)]
        devices = next(slice_ for slice_ in pool.slices if slice_.name == device.slice_name).devices
        if position < len(devices):
            return self._share_left(choice, devices[position]) is not None
        there = f"slice {device.slice_name}, which has {counted(len(devices), 'device')}"
        raise choice.error(
            f"kube-scheduler {self._gates.version} ends with a panic: for device #{position} of the request it takes "
            f"{device.id}, and looks for that number in {there}",
            kind="scheduler-stops",
            device=str(device.id),
        )

    def leaves_traces(self, constraints: Collection[Constraint]) -> bool:
        """Whether a device that was tried may change what is possible later, with constraints of the claims."""
        constrained = bool(constraints)
        return (
            self._checks_others
            or any(each.depends_on_order for each in constraints)
            or (
                self._keeps_counters
                and self._gates.partitionable_devices
                and any(
                    device.demands and (constrained or device.taints or device.rule_taints or self.is_shareable(device))
                    for pool in self._pools.values()
                    for device in pool.usable
                    if not pool.is_usual
                )
            )
        )

    @property
    def tries_every_order(self) -> bool:
        """Whether devices of one request are tried in every order."""
        return not self._gates.variant.ordered

    def _ledger_to_charge(self, device: AdvertisedDevice) -> CounterLedger | None:
        """Return the counters to charge for a device; None if it consumes none or a share is already charged."""
        if not device.demands:
            return None
        if (
            self._gates.has(Change.SHARES_USE_COUNTERS_ONCE)
            and self.is_shareable(device)
            and (self._shares.get(device) or self._usage.is_shared(device.id, self._gates))
        ):
            return None
        pool = self._pools[PoolID(device.id.driver, device.id.pool)]
        scope = pool.counter_scope(device)
        key = self._gates.owner_of_counters(*pool.id), scope
        ledger = self._ledgers.get(key)
        if ledger is None:
            held = [other for other in pool.drawing(scope) if self._usage.uses_counters(other.id, self._gates)]
            ledger = CounterLedger(pool.counters.get(scope, {}), held, groups=self._gates.compatibility_groups)
            self._ledgers[key] = ledger
        return ledger

    def _add(
        self, choice: RequestAlternative, device: AdvertisedDevice, constraints: Sequence[Constraint], *, must: bool
    ) -> bool:
        added: list[Constraint] = []
        for constraint in constraints:
            if not constraint.covers(choice):
                continue
            if constraint.add(choice, device):
                added.append(constraint)
                continue
            if must:
                text = f"cannot add device {device.id} because a claim constraint would not be satisfied"
                raise choice.error(text, kind="all-constraint", device=str(device.id))
            for other in added:
                other.remove_last()
            return False
        return True

    def _count_share(self, device: AdvertisedDevice, share: CapacityShare, sign: int) -> None:
        self._shares[device] = self._shares.get(device, 0) + sign
        taken = self._taken.setdefault(device, {})
        for name, amount in share.nanos.items():
            taken[name] = taken.get(name, 0) + sign * amount


def _give_back(ledger: CounterLedger | None, device: AdvertisedDevice) -> None:
    if ledger is not None:
        ledger.give_back(device)


class CounterLedger:
    """The remaining amounts of a pool's counter sets while devices are picked and released.

    Existing allocations may overdraw counters. While any of the counters is overdrawn, no device that consumes some is
    available, even from other sets. Demands for unknown counters, which no API server accepts, are passed over.

    Args:
        counters: those of the pool or, before Kubernetes 1.35, of a slice, in billionths.
        held: the devices with demands for them, on this node or elsewhere, that are allocated.
        groups: gate CompatibilityGroups.
    """

    def __init__(
        self, counters: Mapping[tuple[str, str], int], held: Iterable[AdvertisedDevice], *, groups: bool
    ) -> None:
        self._left = dict(counters)
        self._by_set: dict[str, _CommonGroups] = {}
        self._groups = groups
        self._overdrawn = sum(amount < 0 for amount in self._left.values())
        for device in held:
            self._charge(device, 1)
            self._add_groups(device)

    def take(self, device: AdvertisedDevice) -> bool:
        """Pick a device if enough is left and its groups are compatible with those of its neighbours."""
        self._charge(device, 1)
        if self._overdrawn or not self._has_common_groups(device):
            self._charge(device, -1)
            return False
        self._add_groups(device)
        return True

    def give_back(self, device: AdvertisedDevice) -> None:
        """Undo ``take`` of the last picked device."""
        self._charge(device, -1)
        for demand in device.demands:
            if self._groups:
                self._by_set[demand.counter_set].remove_last()

    def _charge(self, device: AdvertisedDevice, sign: int) -> None:
        left = self._left
        for demand in device.demands:
            for name, amount in demand.amounts:
                key = demand.counter_set, name
                before = left.get(key)
                if before is None:
                    continue
                left[key] = after = before - sign * amount
                self._overdrawn += (after < 0) - (before < 0)

    def _add_groups(self, device: AdvertisedDevice) -> None:
        for demand in device.demands:
            if self._groups:
                self._by_set.setdefault(demand.counter_set, _CommonGroups()).add(demand.groups)

    def _has_common_groups(self, device: AdvertisedDevice) -> bool:
        return not self._groups or all(
            self._by_set[demand.counter_set].admits(demand.groups)
            for demand in device.demands
            if demand.counter_set in self._by_set
        )


class _CommonGroups:
    """The common groups of all devices on one counter set; devices without groups fit only each other.

    Allocated devices may contradict each other: the first decides whether there are groups, and then groups are
    intersected.
    """

    def __init__(self) -> None:
        self._stack: list[frozenset[str] | None] = []  # None: devices without groups

    def admits(self, groups: frozenset[str]) -> bool:
        if not self._stack:
            return True
        common = self._stack[-1]
        if common is None or not groups:
            return common is None and not groups
        return not common.isdisjoint(groups)

    def add(self, groups: frozenset[str]) -> None:
        if not self._stack:
            self._stack.append(groups or None)
        else:
            common = self._stack[-1]
            self._stack.append(common if common is None or not groups else common & groups)

    def remove_last(self) -> None:
        self._stack.pop()
