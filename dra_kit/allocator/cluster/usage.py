"""Which devices are in use: what the allocations of all claims hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet

from dra_kit.allocator.cluster.devices import DeviceID, nano
from dra_kit.allocator.gates import Gates
from dra_kit.resource.v1 import DeviceRequestAllocationResult
from dra_kit.values.quantity import Quantity


class Usage:
    """The devices that allocations hold, updated result by result. Results with admin access hold nothing.

    A device can be held both exclusively and by shares, where its slice changed in between.
    """

    def __init__(self, results: Iterable[DeviceRequestAllocationResult] = ()) -> None:
        self._exclusive: Counter[DeviceID] = Counter()
        self._shares: dict[DeviceID, dict[str, Mapping[str, Quantity]]] = {}
        self._consumed: dict[DeviceID, dict[str, int]] = {}
        self._changes: Counter[tuple[str, str]] = Counter()
        for result in results:
            self.add(result)

    def add(self, result: DeviceRequestAllocationResult) -> None:
        """Record that a claim holds this device from now on; one with admin access holds nothing."""
        if result.admin_access:
            return
        device = DeviceID(result.driver, result.pool, result.device)
        self._changes[device.driver, device.pool] += 1
        if result.share_id is None:
            self._exclusive[device] += 1
            return
        self._shares.setdefault(device, {})[result.share_id] = result.consumed_capacity
        consumed = self._consumed.setdefault(device, {})
        for name, amount in result.consumed_capacity.items():
            consumed[name] = consumed.get(name, 0) + nano(amount)

    def remove(self, result: DeviceRequestAllocationResult) -> None:
        """Record that the claim does not hold the device any more.

        Raises:
            KeyError: nothing like it was added.
        """
        if result.admin_access:
            return
        device = DeviceID(result.driver, result.pool, result.device)
        self._changes[device.driver, device.pool] += 1
        if result.share_id is None:
            if not self._exclusive[device]:
                raise KeyError(device)
            self._exclusive[device] -= 1
            if not self._exclusive[device]:
                del self._exclusive[device]
            return
        shares = self._shares[device]
        consumed = self._consumed[device]
        for name, amount in shares.pop(result.share_id).items():
            consumed[name] -= nano(amount)
        if not shares:
            del self._shares[device], self._consumed[device]

    def changes(self, pool: tuple[str, str]) -> int:
        """How often somebody took or gave back a device of a pool, which is named by its driver and its name."""
        return self._changes.get(pool, 0)

    def held(self, device: DeviceID) -> Hashable:
        """Return what others have of a device: equal where they have the same of it, None where they have nothing."""
        exclusive = device in self._exclusive
        shares = device in self._shares
        if not shares:
            return exclusive or None
        return exclusive, tuple(sorted(self._consumed[device].items()))

    def blocked(self, gates: Gates) -> AbstractSet[DeviceID]:
        """Return the devices that nobody else can have; shares are exclusive where the scheduler does not know them."""
        held = self._exclusive.keys()
        return held if gates.consumable_capacity else held | self._shares.keys()

    def is_shared(self, device: DeviceID, gates: Gates) -> bool:
        """Whether somebody has a share of it."""
        return device in self._shares and gates.consumable_capacity

    def is_held(self, device: DeviceID) -> bool:
        """Whether anybody has it."""
        return device in self._exclusive or device in self._shares

    def consumed(self, device: DeviceID) -> Mapping[str, int]:
        """How many billionths of which capacity its shares have taken."""
        return self._consumed.get(device, {})

    @property
    def exclusive(self) -> frozenset[DeviceID]:
        """The devices that are held as a whole."""
        return frozenset(self._exclusive)

    @property
    def shared(self) -> dict[DeviceID, dict[str, Quantity]]:
        """The devices that are held in shares, and the sum of what these consume of each capacity."""
        sums: dict[DeviceID, dict[str, Quantity]] = {}
        for device, shares in self._shares.items():
            sums[device] = {}
            for share in shares.values():
                for name, amount in share.items():
                    known = sums[device].get(name)
                    sums[device][name] = amount if known is None else known + amount
        return sums
