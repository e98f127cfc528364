"""What a publisher wants the API server to hold, and the steps that lead there."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from dra_kit.resource import v1


class SliceFeatures(Protocol):
    """What planning must know about the API server."""

    @property
    def separate_counter_slices(self) -> bool:
        """Whether counter sets go into slices without devices (Kubernetes 1.35 and newer) or must not (1.34)."""
        ...


class DesiredPool(Struct, frozen=True):
    """One pool, however many slices it takes.

    Args:
        name: unique among the pools of the driver; for node-local devices the node's name.
        node_name: the node of all devices. Exactly one of this, ``node_selector``, ``all_nodes`` and
            ``per_device_node_selection`` is set.
        node_selector: the nodes of all devices; exactly one term.
        all_nodes: every node may use the devices.
        devices: in the order in which the scheduler is to try them.
        counter_sets: what devices of this pool draw on (KEP-4815).
        partition_type_attribute: the attribute with the kind of a partition (KEP-5677).
        skip_node_operations: calls to the node plugin that the devices do not need (KEP-5945).
        per_device_node_selection: each device names its nodes itself.
    """

    name: str
    node_name: str | None = None
    node_selector: v1.NodeSelector | None = None
    all_nodes: bool = False
    devices: tuple[v1.Device, ...] = ()
    counter_sets: tuple[v1.CounterSet, ...] = ()
    partition_type_attribute: str | None = None
    skip_node_operations: tuple[str, ...] = ()
    per_device_node_selection: bool = False


class Desired(Struct, frozen=True):
    """All pools that one publisher of one driver is responsible for.

    Args:
        driver: the driver's name.
        owner: whose deletion deletes the slices; the Node for node-local devices.
        pools: a pool that is missing here is withdrawn; one without devices stays, as one empty slice.
    """

    driver: str
    owner: v1.OwnerReference | None = None
    pools: tuple[DesiredPool, ...] = ()


class Accepted(Struct, frozen=True):
    """A slice as it was last written, and as the API server then stored it: the two differ in dropped fields."""

    sent: v1.ResourceSlice
    stored: v1.ResourceSlice


class Plan(Struct, frozen=True):
    """Writes to be made in this order, each tuple from first to last; empty when the API server is up to date.

    Args:
        deletes: slices as they are stored; delete them with their UID and resourceVersion as preconditions.
        updates: whole slices with the name and resourceVersion of the stored one.
        creates: slices with ``generateName``.
    """

    deletes: tuple[v1.ResourceSlice, ...] = ()
    updates: tuple[v1.ResourceSlice, ...] = ()
    creates: tuple[v1.ResourceSlice, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deletes or self.updates or self.creates)
