"""What an attempt on one node has picked so far, on top of what is allocated; picks are undone in reverse order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.allocator.cluster.nodes import Node
from dra_kit.allocator.cluster.pools import NodePool, PoolID
from dra_kit.allocator.cluster.taints import tolerated
from dra_kit.allocator.cluster.usage import Usage
from dra_kit.allocator.gates import Gates
from dra_kit.allocator.requests.capacity import NOTHING, Share, consumption
from dra_kit.allocator.requests.constraints import Constraint
from dra_kit.allocator.requests.requests import Choice
from dra_kit.allocator.search.counters import CounterLedger
from dra_kit.errors import AllocationError
from dra_kit.values.quantity import Quantity

OPTIONAL_NODE_OPERATIONS = "DRAOptionalNodeOperations"
"""The feature that a node declares if its kubelet can skip calls to a driver (KEP-5945)."""


class Pick(Struct, frozen=True):
    """One device for one choice.

    Attributes:
        choice: what it is for.
        device: the device.
        amounts: what a share takes of each capacity; None if the device is held as a whole.
    """

    choice: Choice
    device: AdvertisedDevice
    amounts: dict[str, Quantity] | None


class Holding:
    """The devices that the claims of one pod would get on one node.

    Args:
        node: the node.
        gates: of the scheduler.
        usage: what other claims hold.
        pools: of the node.
    """

    def __init__(self, node: Node, gates: Gates, usage: Usage, pools: Sequence[NodePool]) -> None:
        self._gates = gates
        self._usage = usage
        self._blocked = usage.blocked(gates)
        self._skipping_works = gates.optional_node_operations and OPTIONAL_NODE_OPERATIONS in node.declared_features
        self._pools = {pool.id: pool for pool in pools}
        self._ledgers: dict[PoolID, CounterLedger] = {}
        self._holders: dict[AdvertisedDevice, list[int]] = {}
        self._taken: dict[AdvertisedDevice, dict[str, int]] = {}
        self._shares: dict[AdvertisedDevice, int] = {}
        self._consumptions: dict[tuple[Choice, AdvertisedDevice], Share | None] = {}

    def is_free(self, choice: Choice, device: AdvertisedDevice, claim: int) -> bool:
        """Whether a choice of this claim may have the device, as far as exclusive holders go."""
        holders = self._holders.get(device)
        if choice.admin_access:
            return not holders or claim not in holders
        return not holders and device.id not in self._blocked

    def could_ever_serve(self, choice: Choice, device: AdvertisedDevice) -> bool:
        """Whether the capacity of the device is enough while nobody uses it.

        Raises:
            AllocationError: the request cannot be computed with.
        """
        if not self._gates.consumable_capacity:
            return True
        share = self._consumption(choice, device)
        return share is not None and share.fits(device)

    def is_shareable(self, device: AdvertisedDevice) -> bool:
        """Whether several choices can have it at once."""
        return device.shareable and self._gates.consumable_capacity

    def is_obtainable(self, choice: Choice, device: AdvertisedDevice) -> bool:
        """Whether a device that matches the choice could be had if nothing were picked; the answer never changes.

        Raises:
            AllocationError: the request cannot be computed with.
        """
        if self._gates.consumable_capacity:
            share = self._consumption(choice, device)
            if share is None or not share.fits(device, self._usage.consumed(device.id)):
                return False
        return (
            (choice.admin_access or device.id not in self._blocked)
            and self._is_usable(device)
            and self._tolerates(choice, device)
        )

    def take(
        self, choice: Choice, device: AdvertisedDevice, claim: int, constraints: Sequence[Constraint], *, must: bool
    ) -> tuple[Pick, Callable[[], None]] | None:
        """Pick a device that matches the choice, unless something speaks against it.

        Args:
            choice: what it is for.
            device: the device.
            claim: index of the claim.
            constraints: of the claim.
            must: there is no other device to turn to, so that a constraint in the way is an error.

        Returns:
            The pick and what undoes it.

        Raises:
            AllocationError: the request cannot be computed with, or ``all-constraint``.
        """
        if not self.is_free(choice, device, claim) or not self._is_usable(device):
            return None
        share = self._share_left(choice, device)
        if share is None:
            return None
        ledger = self._ledger_to_charge(device)
        if ledger is not None and not ledger.take(device):
            return None
        if not self._tolerates(choice, device) or not self._add(choice, device, constraints, must=must):
            if ledger is not None:
                ledger.give_back(device)
            return None

        shared = self.is_shareable(device)
        if shared:
            self._count_share(device, share, 1)
        else:
            self._holders.setdefault(device, []).append(claim)

        def undo() -> None:
            for constraint in constraints:
                if constraint.covers(choice):
                    constraint.remove_last()
            if shared:
                self._count_share(device, share, -1)
            else:
                self._holders[device].pop()
            if ledger is not None:
                ledger.give_back(device)

        return Pick(choice, device, share.amounts if shared else None), undo

    def _is_usable(self, device: AdvertisedDevice) -> bool:
        """Whether gates and node allow it: for counters, and for a kubelet that must skip calls to the driver."""
        if device.demands and not self._gates.partitionable_devices:
            return False
        skips = device.spec.skip_node_operations and self._gates.variant.skips_operations
        return self._skipping_works or not skips

    def _tolerates(self, choice: Choice, device: AdvertisedDevice) -> bool:
        if not self._gates.device_taints:
            return True
        taints = (*device.taints, *device.rule_taints) if self._gates.device_taint_rules else device.taints
        return tolerated(taints, choice.tolerations)

    def _consumption(self, choice: Choice, device: AdvertisedDevice) -> Share | None:
        key = choice, device
        if key not in self._consumptions:
            try:
                self._consumptions[key] = consumption(
                    choice.capacity, device, fractional=self._gates.fractional_capacity_range
                )
            except AllocationError as error:
                text = f"checking capacity for device {device.id}: {error}"
                raise choice.error(text, kind=error.kind, device=str(device.id)) from error
        return self._consumptions[key]

    def _share_left(self, choice: Choice, device: AdvertisedDevice) -> Share | None:
        if not self._gates.consumable_capacity:
            return NOTHING
        share = self._consumption(choice, device)
        if share is None or not share.fits(device, self._usage.consumed(device.id), self._taken.get(device, {})):
            return None
        return share

    def _ledger_to_charge(self, device: AdvertisedDevice) -> CounterLedger | None:
        """Return the counters to charge for a device; None if it consumes none or another share is charged already."""
        if not device.demands:
            return None
        if self.is_shareable(device) and (self._shares.get(device) or self._usage.is_shared(device.id, self._gates)):
            return None
        pool_id = PoolID(device.id.driver, device.id.pool)
        ledger = self._ledgers.get(pool_id)
        if ledger is None:
            pool = self._pools[pool_id]
            held = [
                other for other in (*pool.devices, *pool.elsewhere) if other.demands and self._usage.is_held(other.id)
            ]
            ledger = CounterLedger(pool, held, groups=self._gates.compatibility_groups)
            self._ledgers[pool_id] = ledger
        return ledger

    def _add(self, choice: Choice, device: AdvertisedDevice, constraints: Sequence[Constraint], *, must: bool) -> bool:
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

    def _count_share(self, device: AdvertisedDevice, share: Share, sign: int) -> None:
        self._shares[device] = self._shares.get(device, 0) + sign
        taken = self._taken.setdefault(device, {})
        for name, amount in share.nanos.items():
            taken[name] = taken.get(name, 0) + sign * amount
