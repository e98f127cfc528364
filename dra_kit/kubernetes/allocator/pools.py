"""Pools of devices: newest generation, completeness, validity, and the part that a node sees."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from dra_kit.errors import AllocationError
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, AdvertisedSlice, to_nano
from dra_kit.kubernetes.allocator.rules import AllocatorRules
from dra_kit.kubernetes.release import Change
from dra_kit.kubernetes.resource.matching import Node, node_matches


class PoolID(NamedTuple):
    """Pools are distinguished by driver and name."""

    driver: str
    name: str

    def __str__(self) -> str:
        return "/".join(self)


class NodePool:
    """The part of a pool that concerns a node; shared by nodes with equal parts. Immutable, compared by identity.

    Args:
        pool_id: driver and name.
        slices: the slices with devices for the node, in the order of preference.
        others: further slices of the pool, whose devices count only for counter sets.
        counters: by (counter set, counter) in billionths, under ``""``; or by the name of the slice whose devices
            consume them.
        incomplete: the generation has fewer or more slices than announced: only the devices of ``slices`` can be
            allocated, and not all devices of the pool.
        invalid: the problem of the pool, of which no device can be allocated; empty if it is valid.

    Attributes:
        binding: a device has binding conditions.
        size: number of devices that can be allocated.
        is_usual: all slices have plain devices for the node that they name, no rule taints them, and the pool has no
            counters.
    """

    def __init__(
        self,
        pool_id: PoolID,
        slices: Sequence[AdvertisedSlice] = (),
        others: Sequence[AdvertisedSlice] = (),
        *,
        counters: Mapping[str, Mapping[tuple[str, str], int]] | None = None,
        incomplete: bool = False,
        invalid: str = "",
    ) -> None:
        self.id = pool_id
        self.slices: tuple[AdvertisedSlice, ...] = tuple(slices)
        self._others = tuple(others)
        self.counters: Mapping[str, Mapping[tuple[str, str], int]] = counters or {}
        self.incomplete = incomplete
        self.invalid = invalid
        self.binding: bool = any(slice_.binding for slice_ in slices)
        self.size: int = 0 if invalid else sum(map(len, self.slices))
        self.is_usual: bool = not (incomplete or invalid or others or counters) and all(
            slice_.is_usual for slice_ in slices
        )

    @cached_property
    def devices(self) -> tuple[AdvertisedDevice, ...]:
        """Devices of the slices that concern the node, in order of preference."""
        return tuple([device for slice_ in self.slices for device in slice_.devices])

    @cached_property
    def elsewhere(self) -> tuple[AdvertisedDevice, ...]:
        """Other devices of the pool, which count only for counter sets."""
        return tuple([device for slice_ in self._others for device in slice_.devices])

    def counter_scope(self, device: AdvertisedDevice) -> str:
        """Return the key in ``counters`` of what a device consumes."""
        return device.slice_name if device.slice_name in self.counters else ""

    def drawing(self, scope: str) -> list[AdvertisedDevice]:
        """Return the devices on this node and elsewhere that consume these ``counters``."""
        return [
            device
            for device in (*self.devices, *self.elsewhere)
            if device.demands and self.counter_scope(device) == scope
        ]

    @property
    def usable(self) -> tuple[AdvertisedDevice, ...]:
        """The devices that may be allocated: none if the pool is invalid."""
        return () if self.invalid else self.devices

    @property
    def drawing_elsewhere(self) -> tuple[AdvertisedDevice, ...]:
        """Devices in ``elsewhere`` that consume counters."""
        return tuple([device for slice_ in self._others for device in slice_.drawing])


class AdvertisedPool:
    """All slices of a pool in the order of the lister; replaced when a slice changes."""

    def __init__(self, pool_id: PoolID, slices: Iterable[AdvertisedSlice]) -> None:
        self.id = pool_id
        self.slices: tuple[AdvertisedSlice, ...] = tuple(slices)
        self._views: dict[tuple[str, AllocatorRules], tuple[Hashable, NodePool | None]] = {}
        self._gathered: dict[tuple[AllocatorRules, tuple[AdvertisedSlice, ...]], NodePool | None] = {}
        self.node_names: frozenset[str] = frozenset(slice_.spec.node_name or "" for slice_ in self.slices)
        """Nodes named by slices; ``""`` if a slice names none."""

    def on(self, node: Node, gates: AllocatorRules) -> NodePool | None:
        """Return the part for ``node``; None if no slice concerns it, or only an incomplete older generation.

        Raises:
            AllocationError: ``node-selector-invalid``.
        """
        key = (node.name, gates)
        known = self._views.get(key)
        if known is not None and known[0] == node.key:
            return known[1]
        known_slices = [slice_ for slice_ in self.slices if gates.compatibility_groups or not slice_.grouped]
        concerned = tuple(
            [slice_ for slice_ in known_slices if _is_usable(slice_, gates) and _concerns(slice_, node, gates)]
        )
        seen = gates, concerned
        if seen not in self._gathered:
            self._gathered[seen] = self._gather(known_slices, concerned, gates)
        view = self._gathered[seen]
        self._views[key] = (node.key, view)
        return view

    def _gather(
        self, known: Sequence[AdvertisedSlice], concerned: Sequence[AdvertisedSlice], gates: AllocatorRules
    ) -> NodePool | None:
        if not concerned:
            return None
        generation = max([slice_.spec.pool.generation for slice_ in concerned])
        members = [slice_ for slice_ in concerned if slice_.spec.pool.generation == generation]
        everything: Sequence[AdvertisedSlice] = members
        announced = members[0].spec.pool.resource_slice_count
        if len(members) != announced:
            if not gates.has(Change.INCOMPLETE_POOLS_SKIPPED):
                return self._build(members, (), gates, incomplete=True)
            if any(slice_.spec.pool.generation > generation for slice_ in known):
                return None
            everything = [slice_ for slice_ in known if slice_.spec.pool.generation == generation]
            if len(everything) != announced:
                return NodePool(self.id, incomplete=True)
        if gates.variant.ordered:
            members = sorted(members, key=lambda slice_: slice_.name)
        return self._build(members, [slice_ for slice_ in everything if slice_ not in members], gates)

    def _build(
        self,
        members: Sequence[AdvertisedSlice],
        others: Sequence[AdvertisedSlice],
        gates: AllocatorRules,
        *,
        incomplete: bool = False,
    ) -> NodePool:
        partitions = gates.partitionable_devices
        apart = _counters_have_own_slices(gates)
        device_slices = members
        if partitions and apart:
            device_slices = [slice_ for slice_ in members if not slice_.spec.shared_counters]
        problem = _duplicate_name(device_slices)
        if problem or not partitions:
            return NodePool(self.id, device_slices, invalid=problem, incomplete=incomplete)
        if not apart:  # the API server has checked that devices consume counters of their own slice
            by_slice = {slice_.name: _counter_sets([slice_])[0] for slice_ in members if slice_.spec.shared_counters}
            return NodePool(self.id, members, counters=by_slice, incomplete=incomplete)
        counters, problem = _counter_sets((*members, *others))
        problem = problem or _unknown_counter((*members, *others), counters)
        return NodePool(self.id, device_slices, others, counters={"": counters} if counters else {}, invalid=problem)


class NodePools:
    """The pools that concern one node, ``ordered`` by driver and name, those with binding conditions last.

    Kubernetes' stable allocator uses a random order, so that any order is valid there.
    """

    def __init__(self, node: Node, pools: Iterable[NodePool]) -> None:
        self._node = node
        self.ordered: list[NodePool] = sorted(pools, key=lambda pool: (pool.binding and not pool.invalid, pool.id))

    @cached_property
    def devices(self) -> list[AdvertisedDevice]:
        """Devices of complete and valid pools."""
        return [device for pool in self.ordered for device in pool.usable]

    @cached_property
    def reach(self) -> bytes | None:
        """Whether each device with its own node selection is for the node; None if a selector is invalid."""
        try:
            return bytes(
                node_matches(self._node, *device.node_scope)
                for pool in self.ordered
                if not pool.is_usual
                for device in pool.usable
                if device.spec.per_device_node_selection
            )
        except ValueError:
            return None


def _is_usable(slice_: AdvertisedSlice, gates: AllocatorRules) -> bool:
    return gates.partitionable_devices or not (
        slice_.spec.shared_counters or slice_.spec.per_device_node_selection is not None
    )


def _counters_have_own_slices(gates: AllocatorRules) -> bool:
    return gates.has(Change.SLICES_HAVE_DEVICES_OR_COUNTERS)


def _concerns(slice_: AdvertisedSlice, node: Node, gates: AllocatorRules) -> bool:
    try:
        apart = _counters_have_own_slices(gates)
        return slice_.concerns(node, counters_apart=apart, counters_everywhere=gates.variant.counters_everywhere)
    except ValueError as error:
        raise AllocationError(
            f"gather pool information: failed to perform node selection for slice {slice_.name}: {error}",
            kind="node-selector-invalid",
        ) from error


def _duplicate_name(slices: Iterable[AdvertisedSlice]) -> str:
    names: list[str] = []
    for slice_ in slices:
        names += slice_.published.names
    if len(set(names)) == len(names):
        return ""
    duplicate = next(name for position, name in enumerate(names) if name in names[:position])
    return f"duplicate device name {duplicate}"


def _counter_sets(slices: Iterable[AdvertisedSlice]) -> tuple[dict[tuple[str, str], int], str]:
    counters: dict[tuple[str, str], int] = {}
    names: set[str] = set()
    for slice_ in slices:
        for counter_set in slice_.spec.shared_counters:
            if counter_set.name in names:
                return counters, f"duplicate counter set name {counter_set.name}"
            names.add(counter_set.name)
            for name, counter in counter_set.counters.items():
                counters[counter_set.name, name] = to_nano(counter.value)
    return counters, ""


def _unknown_counter(slices: Iterable[AdvertisedSlice], counters: dict[tuple[str, str], int]) -> str:
    sets = {counter_set for counter_set, _ in counters}
    for device in (device for slice_ in slices for device in slice_.drawing):
        for demand in device.demands:
            if demand.counter_set not in sets:
                return f"counter set {demand.counter_set} not found"
            for name, _ in demand.amounts:
                if (demand.counter_set, name) not in counters:
                    return f"counter {name} not found in counter set {demand.counter_set}"
    return ""
