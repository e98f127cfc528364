"""Shared counters of a pool and the compatibility groups of the devices that draw on them (KEP-4815, KEP-5963)."""

from __future__ import annotations

from collections.abc import Iterable

from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.allocator.cluster.pools import NodePool


class CounterLedger:
    """What is left of a pool's counter sets while devices are picked and given back.

    Counters may be overdrawn by what is allocated already. As long as any counter of the pool is, no device that
    consumes counters is available, whichever set it draws on.

    Args:
        pool: the pool.
        held: those of its devices, on this node or elsewhere, that are allocated.
        groups: gate CompatibilityGroups.
    """

    def __init__(self, pool: NodePool, held: Iterable[AdvertisedDevice], *, groups: bool) -> None:
        self._left = dict(pool.counters or {})
        self._by_set: dict[str, _CommonGroups] = {}
        self._groups = groups
        self._overdrawn = sum(amount < 0 for amount in self._left.values())
        for device in held:
            self._charge(device, 1)
            self._add_groups(device)

    def take(self, device: AdvertisedDevice) -> bool:
        """Pick a device if enough is left and its groups go with those of its neighbours."""
        self._charge(device, 1)
        if self._overdrawn or not self._has_common_groups(device):
            self._charge(device, -1)
            return False
        self._add_groups(device)
        return True

    def give_back(self, device: AdvertisedDevice) -> None:
        """Undo ``take`` of the device that was picked last."""
        self._charge(device, -1)
        for demand in device.demands:
            if self._groups:
                self._by_set[demand.counter_set].remove_last()

    def _charge(self, device: AdvertisedDevice, sign: int) -> None:
        left = self._left
        for demand in device.demands:
            for name, amount in demand.amounts:
                key = demand.counter_set, name
                before = left[key]
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
    """The groups that all devices on one counter set have in common; devices without groups go only together.

    Devices that are allocated already may contradict each other: the first decides whether there are groups, and
    then groups intersect.
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
