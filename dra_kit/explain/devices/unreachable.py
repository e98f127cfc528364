"""Devices that no node can reach: their pool is incomplete, or they are for nodes that do not exist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from dra_kit.explain.cluster.cluster import Cluster
from dra_kit.explain.reasons import Check, Reason, feature
from dra_kit.explain.verdicts import DeviceVerdict
from dra_kit.kubernetes.allocator.devices import AdvertisedSlice
from dra_kit.kubernetes.resource.slice_reader import LazySlice
from dra_kit.kubernetes.resource.v1 import Device


def unreachable(
    cluster: Cluster, slices: Collection[LazySlice], devices: Collection[tuple[LazySlice, int]]
) -> Iterator[DeviceVerdict]:
    """Devices of the newest generation of each pool that are not among those which nodes reach, and why.

    Args:
        cluster: where they are.
        slices: those all of whose devices are reached.
        devices: others that are reached, by slice and position.
    """
    reached_ids: Collection[tuple[str, str, str]] = ()
    pools: dict[tuple[str, str], list[LazySlice]] = defaultdict(list)
    for slice_ in cluster.slices:
        pools[slice_.spec.driver, slice_.spec.pool.name].append(slice_)
    for pool, published in pools.items():
        newest = max(slice_.spec.pool.generation for slice_ in published)
        current = [slice_ for slice_ in published if slice_.spec.pool.generation == newest]
        for slice_ in current:
            if slice_ in slices:
                continue
            advertised = AdvertisedSlice(slice_, ())
            for position, device in enumerate(slice_.devices):
                if (slice_, position) in devices:
                    continue
                # another slice may have a device of the same name
                reached_ids = reached_ids or {*_ids(slices), *(_id(*place) for place in devices)}
                if (*pool, device.name) not in reached_ids:
                    reason = _reason(cluster, slice_, device, current)
                    scope = slice_.spec.node_name or device.node_name
                    yield DeviceVerdict(advertised, position, (scope,) if scope else (), (reason,))


def _ids(slices: Iterable[LazySlice]) -> Iterator[tuple[str, str, str]]:
    return (_id(slice_, position) for slice_ in slices for position in range(len(slice_)))


def _id(slice_: LazySlice, position: int) -> tuple[str, str, str]:
    return slice_.spec.driver, slice_.spec.pool.name, slice_.name_of(position)


def _reason(cluster: Cluster, slice_: LazySlice, device: Device, current: Sequence[LazySlice]) -> Reason:
    spec = slice_.spec
    announced = spec.pool.resource_slice_count
    if len(current) != announced:
        return Reason(
            Check.POOL,
            f"its pool {spec.pool.name} is incomplete: {len(current)} of {announced} slices are published",
            "in an incomplete pool",
            details={"slices": len(current), "announced": announced},
        )
    if not cluster.gates.partitionable_devices and (spec.shared_counters or spec.per_device_node_selection is not None):
        return feature("shared counters or a node scope of its own", "DRAPartitionableDevices")
    grouped = any(demand.compatibility_groups for each in slice_.devices for demand in each.consumes_counters)
    if grouped and not cluster.gates.compatibility_groups:
        return feature("compatibility groups", "DRADeviceCompatibilityGroups")
    node = spec.node_name or device.node_name
    if node and node not in cluster.node_names:
        return Reason(Check.NODE, f"on node {node}, which does not exist", "on a node that does not exist")
    if spec.node_selector is not None or device.node_selector is not None:
        if not cluster.knows_nodes:
            return Reason(Check.NODE, "for nodes that could not be read", "for unknown nodes")
        return Reason(Check.NODE, "for nodes with labels that no node has", "for no node of the cluster")
    return Reason(Check.NODE, "offered to no node", "for no node of the cluster")
