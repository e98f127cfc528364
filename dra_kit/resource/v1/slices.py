"""``ResourceSlice``: the devices that a driver publishes."""

from __future__ import annotations

from pydantic import Field

from dra_kit.resource.v1.base import APIModel, Bool, Int64, ObjectMeta
from dra_kit.resource.v1.devices import CounterSet, Device
from dra_kit.resource.v1.nodes import NodeSelector


class ResourcePool(APIModel, frozen=True):
    """The pool that a slice belongs to; all slices of a pool carry the same values.

    ``generation`` rises whenever the set of slices changes; readers ignore all but the highest.
    """

    name: str = ""
    generation: Int64 = 0
    resource_slice_count: Int64 = 0


class ResourceSliceSpec(APIModel, frozen=True):
    """Exactly one of ``node_name``, ``node_selector``, ``all_nodes`` and ``per_device_node_selection`` is set."""

    driver: str = ""
    pool: ResourcePool = Field(default_factory=ResourcePool)
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: Bool | None = None
    per_device_node_selection: Bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()
    partition_type_attribute: str | None = None
    skip_node_operations: tuple[str, ...] = ()


class ResourceSlice(APIModel, frozen=True):
    """Part of a pool of devices."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceSlice"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: ResourceSliceSpec = Field(default_factory=ResourceSliceSpec)
