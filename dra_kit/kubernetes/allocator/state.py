"""The state of a cluster for allocations: advertised slices, and what allocated claims use of them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, AdvertisedSlice, DeviceID, normalized, to_nano
from dra_kit.kubernetes.allocator.pools import AdvertisedPool, NodePools, PoolID
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.allocator.selectors import CelEvaluator
from dra_kit.kubernetes.release import Change, KubernetesVersion
from dra_kit.kubernetes.resource.matching import Node, has_expressions, taint_rule_covers
from dra_kit.kubernetes.resource.slice_reader import LazySlice
from dra_kit.kubernetes.resource.v1 import (
    AllocationResult,
    DeviceClass,
    DeviceRequestAllocationResult,
    DeviceTaintRule,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceSlice,
)
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.kubernetes.values.quantity import Quantity


class AllocatorState:
    """Slices, classes, taint rules, and the devices that claims hold.

    Args:
        slices: ResourceSlices, in the order of the lister.
        classes: DeviceClasses.
        taint_rules: DeviceTaintRules.
        claims: ResourceClaims; those with an allocation hold its devices.
        version: the release of the scheduler, whose limits the quantities in documents have.

    Raises:
        pydantic.ValidationError: a document does not have the shape of the API.
    """

    def __init__(
        self,
        *,
        version: KubernetesVersion,
        slices: Iterable[LazySlice | ResourceSlice | ObjectView] = (),
        classes: Iterable[DeviceClass | ObjectView] = (),
        taint_rules: Iterable[DeviceTaintRule | ObjectView] = (),
        claims: Iterable[ResourceClaim | ObjectView] = (),
    ) -> None:
        self._version = version
        self.usage: DeviceUsage = DeviceUsage()
        self.classes: dict[str, DeviceClass] = {}
        self._rules = self._taint_rules(taint_rules)
        self._evaluator = CelEvaluator(version)
        self._slices: dict[str, list[AdvertisedSlice]] = {}
        self._members: dict[PoolID, list[AdvertisedSlice]] = {}
        self._pools: dict[PoolID, AdvertisedPool] = {}
        self._by_node: dict[str, dict[PoolID, AdvertisedPool]] = {}
        self._views: dict[str, tuple[AllocatorRules, Hashable, NodePools]] = {}
        self.publish(slices)
        self.define(classes)
        for claim in claims:
            allocation = ResourceClaim.model_validate(claim, context=version).status.allocation
            if allocation is not None:
                self.allocate(allocation)

    def publish(
        self, slices: Iterable[LazySlice | ResourceSlice | ObjectView] = (), *, remove: Iterable[str] = ()
    ) -> None:
        """Add slices, or replace those of the same name, after removing some.

        Devices in use stay in use, whether or not a slice still has them.

        Args:
            slices: the new slices; they come last in the order of the lister.
            remove: names of slices; unknown ones are ignored.
        """
        advertised = [AdvertisedSlice(self._lazy(slice_)) for slice_ in slices]
        for slice_ in advertised if self._rules else ():
            slice_.taint(self._rules, self._selects)
        changed = set()
        for name in (*remove, *(slice_.name for slice_ in advertised)):
            for old in self._slices.pop(name, ()):
                self._members[_pool_of(old)].remove(old)
                changed.add(_pool_of(old))
        for new in advertised:
            self._slices.setdefault(new.name, []).append(new)
            self._members.setdefault(_pool_of(new), []).append(new)
            changed.add(_pool_of(new))
        for pool in changed:
            self._reindex(pool)

    def define(self, classes: Iterable[DeviceClass | ObjectView] = (), *, remove: Iterable[str] = ()) -> None:
        """Add or replace DeviceClasses, after removing some by name."""
        for name in remove:
            self.classes.pop(name, None)
        for document in classes:
            device_class = DeviceClass.model_validate(document, context=self._version)
            self.classes[device_class.metadata.name] = device_class
        if any(has_expressions(rule.spec.device_selector) for rule in self._rules):
            self.taint(self._rules)

    def overlaid(self, *, classes: Iterable[DeviceClass] = (), released: bool = False) -> AllocatorState:
        """Return a modified view of the cluster that shares slices and caches.

        Neither this snapshot nor the overlay may be changed while the overlay is in use.

        Args:
            classes: DeviceClasses to add, or to replace those of the same name.
            released: treat all devices as not held.
        """
        overlay = copy.copy(self)
        overlay.classes = self.classes | {each.metadata.name: each for each in classes}
        if released:
            overlay.usage = DeviceUsage()
        return overlay

    def taint(self, rules: Iterable[DeviceTaintRule | ObjectView]) -> None:
        """Replace all DeviceTaintRules."""
        self._rules = self._taint_rules(rules)
        changed = {
            _pool_of(slice_): None
            for slices in self._slices.values()
            for slice_ in slices
            if slice_.taint(self._rules, self._selects)
        }
        for pool in changed:
            self._reindex(pool)

    def rules_of(self, device: DeviceID) -> Iterator[DeviceTaintRule]:
        """Yield the DeviceTaintRules that taint a device."""
        for rule in self._rules:
            if taint_rule_covers(rule.spec.device_selector, device, partial(self._is_selected, device)):
                yield rule

    def _is_selected(self, device: DeviceID, selector: DeviceTaintSelector) -> bool:
        members = self._members.get(PoolID(device.driver, device.pool), ())
        newest = sorted(members, key=lambda slice_: -slice_.spec.pool.generation)
        found = next((each for slice_ in newest for each in slice_.devices if each.id == device), None)
        return found is not None and self._selects(found, selector)

    def _selects(self, device: AdvertisedDevice, selector: DeviceTaintSelector) -> bool:
        """Whether a device matches the class and the expressions of a DeviceTaintRule; an error does not match."""
        selectors = selector.selectors
        if selector.device_class_name is not None:
            known = self.classes.get(selector.device_class_name)
            if known is None:
                return False
            selectors = (*known.spec.selectors, *selectors)
        try:
            return all(
                self._evaluator.selects(each.cel.expression, device, sees_sharing=False)
                for each in selectors
                if each.cel is not None
            )
        except (CelCompileError, CelRuntimeError):
            return False

    def allocate(self, allocation: AllocationResult | ObjectView) -> None:
        """Record that a claim holds the devices of this allocation from now on."""
        for result in AllocationResult.model_validate(allocation, context=self._version).devices.results:
            self.usage.add(result)

    def deallocate(self, allocation: AllocationResult | ObjectView) -> None:
        """Record that the claim no longer holds the devices of this allocation.

        Raises:
            KeyError: one of them is not held.
        """
        for result in AllocationResult.model_validate(allocation, context=self._version).devices.results:
            self.usage.remove(result)

    def pools(self, node: Node, gates: AllocatorRules) -> NodePools:
        """Return the pools that concern a node.

        Raises:
            AllocationError: ``node-selector-invalid``.
        """
        known = self._views.get(node.name)
        if known is not None and known[0] is gates and known[1] == node.key:
            return known[2]
        # counter sets of one node may concern all nodes; without the gate their slices concern none
        everywhere = gates.variant.counters_everywhere and gates.partitionable_devices
        if everywhere:
            candidates = self._pools
        else:
            candidates, shared = self._by_node.get(node.name, {}), self._by_node.get("")
            candidates = shared | candidates if shared else candidates
        found = [pool.on(node, gates) for pool in candidates.values()]
        view = NodePools(node, [pool for pool in found if pool is not None])
        if everywhere:
            # slices of other nodes may change it, so it cannot be cached by node
            return view
        self._views[node.name] = gates, node.key, view
        return view

    def _reindex(self, pool_id: PoolID) -> None:
        names: set[str] = set()
        old = self._pools.pop(pool_id, None)
        if old is not None:
            names |= old.node_names
            for name in old.node_names:
                del self._by_node[name][pool_id]
        if members := self._members[pool_id]:
            pool = self._pools[pool_id] = AdvertisedPool(pool_id, members)
            names |= pool.node_names
            for name in pool.node_names:
                self._by_node.setdefault(name, {})[pool_id] = pool
        else:
            del self._members[pool_id]
        if "" in names:
            self._views.clear()
        for name in names:
            self._views.pop(name, None)

    def _lazy(self, slice_: LazySlice | ResourceSlice | ObjectView) -> LazySlice:
        if isinstance(slice_, LazySlice):
            return slice_
        return LazySlice.of(ResourceSlice.model_validate(slice_, context=self._version))

    def _taint_rules(self, rules: Iterable[DeviceTaintRule | ObjectView]) -> tuple[DeviceTaintRule, ...]:
        return tuple([DeviceTaintRule.model_validate(rule, context=self._version) for rule in rules])


def _pool_of(slice_: AdvertisedSlice) -> PoolID:
    return PoolID(slice_.spec.driver, slice_.spec.pool.name)


class DeviceUsage:
    """The devices that allocations hold, updated result by result. Results with admin access hold nothing.

    A device can be held both exclusively and by shares if its slice changed in between.
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
            consumed[name] = consumed.get(name, 0) + to_nano(amount)

    def remove(self, result: DeviceRequestAllocationResult) -> None:
        """Record that the claim no longer holds the device.

        Raises:
            KeyError: no such result was added.
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
            consumed[name] -= to_nano(amount)
        if not shares:
            del self._shares[device], self._consumed[device]

    def changes(self, pool: tuple[str, str]) -> int:
        """Return how often a device of a pool, given by driver and name, was allocated or released."""
        return self._changes.get(pool, 0)

    def held(self, device: DeviceID, gates: AllocatorRules) -> Hashable:
        """Return a key for the usage of a device: equal for equal usage, None if it is free."""
        exclusive = device in self._exclusive
        shares = device in self._shares
        if not shares:
            return exclusive or None
        return exclusive, tuple(sorted(self.consumed(device, gates).items()))

    def blocked(self, gates: AllocatorRules) -> AbstractSet[DeviceID]:
        """Return the devices not available to others; shares are exclusive if the scheduler does not know them."""
        held = self._exclusive.keys()
        return held if gates.consumable_capacity else held | self._shares.keys()

    def is_shared(self, device: DeviceID, gates: AllocatorRules) -> bool:
        """Whether a share of it is in use."""
        return device in self._shares and gates.consumable_capacity

    def is_left_to_shares(self, device: AdvertisedDevice, gates: AllocatorRules) -> bool:
        """Whether a device can be held as a whole only, and a share from before is in use."""
        return (
            not device.shareable and gates.has(Change.SHARES_BLOCK_WHOLE_DEVICES) and self.is_shared(device.id, gates)
        )

    def uses_counters(self, device: DeviceID, gates: AllocatorRules) -> bool:
        """Whether the claims that hold it use the counters that it consumes."""
        if device in self._exclusive:
            return True
        return device in self._shares and (not gates.consumable_capacity or gates.has(Change.SHARES_USE_COUNTERS))

    def consumed(self, device: DeviceID, gates: AllocatorRules) -> Mapping[str, int]:
        """How many billionths of each capacity its shares consume, by each name that stands for the capacity."""
        if not gates.has(Change.CAPACITY_NAMES_NORMALIZED):
            return self._consumed.get(device, {})
        total: dict[str, int] = {}
        for share in self._shares.get(device, {}).values():
            for name, amount in normalized(share, device.driver).items():
                total[name] = total.get(name, 0) + to_nano(amount)
        own = f"{device.driver}/"
        return total | {name.removeprefix(own): amount for name, amount in total.items() if name.startswith(own)}

    @property
    def exclusive(self) -> frozenset[DeviceID]:
        """The devices held as a whole."""
        return frozenset(self._exclusive)

    @property
    def shared(self) -> dict[DeviceID, dict[str, Quantity]]:
        """The devices held in shares, and the sum of what these consume of each capacity."""
        sums: dict[DeviceID, dict[str, Quantity]] = {}
        for device, shares in self._shares.items():
            sums[device] = {}
            for share in shares.values():
                for name, amount in share.items():
                    known = sums[device].get(name)
                    sums[device][name] = amount if known is None else known + amount
        return sums
