"""The objects of a cluster that allocation depends on, indexed once and updated piece by piece."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from dra_kit.allocator.cluster.devices import AdvertisedSlice
from dra_kit.allocator.cluster.nodes import Node
from dra_kit.allocator.cluster.pools import NodePools, Pool, PoolID
from dra_kit.allocator.cluster.usage import Usage
from dra_kit.allocator.gates import Gates
from dra_kit.resource.slices.lazy import LazySlice
from dra_kit.resource.v1 import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from dra_kit.values.json import ObjectView

if TYPE_CHECKING:
    from dra_kit.resource.v1 import DeviceTaintRule


class Snapshot:
    """Slices, classes, taint rules, and the devices that claims hold.

    Args:
        slices: ResourceSlices, in the order of the lister.
        classes: DeviceClasses.
        taint_rules: DeviceTaintRules.
        claims: ResourceClaims; those with an allocation hold its devices.

    Attributes:
        usage: the devices in use.
        classes: DeviceClasses by name.

    Raises:
        pydantic.ValidationError: a document does not have the shape of the API.
    """

    def __init__(
        self,
        *,
        slices: Iterable[LazySlice | ResourceSlice | ObjectView] = (),
        classes: Iterable[DeviceClass | ObjectView] = (),
        taint_rules: Iterable[DeviceTaintRule | ObjectView] = (),
        claims: Iterable[ResourceClaim | ObjectView] = (),
    ) -> None:
        self.usage: Usage = Usage()
        self.classes: dict[str, DeviceClass] = {}
        self._rules = _taint_rules(taint_rules)
        self._slices: dict[str, list[AdvertisedSlice]] = {}
        self._members: dict[PoolID, list[AdvertisedSlice]] = {}
        self._pools: dict[PoolID, Pool] = {}
        self._by_node: dict[str, dict[PoolID, Pool]] = {}
        self._views: dict[str, tuple[Gates, Hashable, NodePools]] = {}
        self.publish(slices)
        self.define(classes)
        for claim in claims:
            allocation = ResourceClaim.model_validate(claim).status.allocation
            if allocation is not None:
                self.allocate(allocation)

    def publish(
        self, slices: Iterable[LazySlice | ResourceSlice | ObjectView] = (), *, remove: Iterable[str] = ()
    ) -> None:
        """Add slices, or replace those of the same name, after removing some.

        Devices in use stay in use, whether or not a slice still has them.

        Args:
            slices: what is new; it comes last in the order of the lister.
            remove: names of slices; unknown ones are ignored.
        """
        advertised = [AdvertisedSlice(_lazy(slice_), self._rules) for slice_ in slices]
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
            device_class = DeviceClass.model_validate(document)
            self.classes[device_class.metadata.name] = device_class

    def overlaid(self, *, classes: Iterable[DeviceClass] = (), released: bool = False) -> Snapshot:
        """Return the same cluster with a difference, at no cost: slices and what is known of them are shared.

        Neither this snapshot nor the overlay may be changed while the overlay is in use.

        Args:
            classes: DeviceClasses, added or instead of those of the same name.
            released: no claim holds anything.
        """
        overlay = copy.copy(self)
        overlay.classes = self.classes | {each.metadata.name: each for each in classes}
        if released:
            overlay.usage = Usage()
        return overlay

    def taint(self, rules: Iterable[DeviceTaintRule | ObjectView]) -> None:
        """Replace all DeviceTaintRules."""
        self._rules = _taint_rules(rules)
        changed = {
            _pool_of(slice_): None for slices in self._slices.values() for slice_ in slices if slice_.taint(self._rules)
        }
        for pool in changed:
            self._reindex(pool)

    def allocate(self, allocation: AllocationResult | ObjectView) -> None:
        """Record that a claim holds the devices of this allocation from now on."""
        for result in AllocationResult.model_validate(allocation).devices.results:
            self.usage.add(result)

    def deallocate(self, allocation: AllocationResult | ObjectView) -> None:
        """Record that the claim does not hold the devices of this allocation any more.

        Raises:
            KeyError: nobody holds one of them.
        """
        for result in AllocationResult.model_validate(allocation).devices.results:
            self.usage.remove(result)

    def pools(self, node: Node, gates: Gates) -> NodePools:
        """Return the pools that concern a node.

        Raises:
            AllocationError: ``node-selector-invalid``.
        """
        known = self._views.get(node.name)
        if known is not None and known[0] is gates and known[1] == node.key:
            return known[2]
        # counter sets of one node may concern all; without the gate their slices concern none
        everywhere = gates.variant.counters_everywhere and gates.partitionable_devices
        if everywhere:
            candidates = self._pools
        else:
            candidates, shared = self._by_node.get(node.name, {}), self._by_node.get("")
            candidates = shared | candidates if shared else candidates
        found = [pool.on(node, gates) for pool in candidates.values()]
        view = NodePools(node, [pool for pool in found if pool is not None])
        if everywhere:
            # a slice of another node may have changed it: nothing can be cached by node
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
            pool = self._pools[pool_id] = Pool(pool_id, members)
            names |= pool.node_names
            for name in pool.node_names:
                self._by_node.setdefault(name, {})[pool_id] = pool
        else:
            del self._members[pool_id]
        if "" in names:
            self._views.clear()
        for name in names:
            self._views.pop(name, None)


def _lazy(slice_: LazySlice | ResourceSlice | ObjectView) -> LazySlice:
    return slice_ if isinstance(slice_, LazySlice) else LazySlice.of(ResourceSlice.model_validate(slice_))


def _pool_of(slice_: AdvertisedSlice) -> PoolID:
    return PoolID(slice_.spec.driver, slice_.spec.pool.name)


def _taint_rules(rules: Iterable[DeviceTaintRule | ObjectView]) -> tuple[DeviceTaintRule, ...]:
    if not (found := tuple(rules)):
        return ()
    from dra_kit.resource.v1 import DeviceTaintRule  # few clusters have one

    return tuple(map(DeviceTaintRule.model_validate, found))
