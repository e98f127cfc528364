"""``Inventory`` and ``Pool``: all devices of a driver on a node at one time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from operator import is_, itemgetter
from typing import Any, Final, Generic, Literal, Self
from weakref import WeakValueDictionary

from pydantic import field_validator, model_validator
from typing_extensions import TypeVar

from dra_kit.author.device import CounterSet, Device, NodeSelector, counters_v1, is_validated, names_its_nodes
from dra_kit.author.model import AUTHOR_RELEASE, AuthorModel, invalid_device, short_repr
from dra_kit.errors import InvalidDevice
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.names import driver_name
from dra_kit.kubernetes.resource.validation.devices import LIMITS
from dra_kit.kubernetes.resource.validation.slices import split_devices, validate_pool, validate_slice

DeviceT_co = TypeVar("DeviceT_co", bound=Device, default=Device, covariant=True)
_NODE: Final = "node"
"""Placeholder for the name of the node, which is unknown where an author creates a pool."""
SkippableOperation = Literal["NodePrepareResources", "NodeUnprepareResources", "*"]


class Pool(AuthorModel, Generic[DeviceT_co]):
    """Devices that are published and counted together.

    Args:
        name: the pool's name; None means the node's name, which distinguishes the pools of different nodes.
        devices: in the order in which the scheduler prefers them.
        counter_sets: amounts that devices of this pool share.
        node_selector: which nodes may use the pool; without it, and without ``all_nodes``, only this node. Only for a
            provider with ``scope="cluster"``: the node role publishes only the pools of its own node.
        all_nodes: every node may use the pool; like ``node_selector``.
        per_device_node_selection: each device names the nodes that may use it; like ``node_selector``.
        partition_type_attribute: the attribute that holds a partition's type (KEP-5677, alpha in 1.37).
        skip_node_operations: node calls that these devices do not need (KEP-5945, alpha in 1.37).
        may_be_empty: the pool may lose all its devices at once. Without it, a pool that had devices and is found empty
            stays published until ``discover``, which is restarted to check this, finds it empty a second time.

    Raises:
        InvalidDevice: for two devices or counter sets of one name, or a reference to a counter that does not exist.
    """

    name: str | None = None
    devices: Sequence[DeviceT_co] = ()
    counter_sets: Sequence[CounterSet] = ()
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    partition_type_attribute: str | None = None
    skip_node_operations: Sequence[SkippableOperation] = ()
    may_be_empty: bool = False

    @field_validator("devices", mode="before")
    @classmethod
    def _devices_only(cls, value: object) -> object:
        for item in value if isinstance(value, Sequence) else ():
            if not isinstance(item, Device):
                msg = f"{short_repr(item)} is not a dra_kit.Device; write dra_kit.Device(name=…)"
                raise ValueError(msg)  # noqa: TRY004 - pydantic collects ValueErrors only
        return value

    @model_validator(mode="after")
    def _obeys_the_api(self) -> Self:
        key = (self.name, len(self.devices))
        known = _known.get(key)
        if known is None or not is_published_alike(self, known):
            self._check()
            _known[key] = self
        return self

    def _check(self) -> None:
        scopes = [self.node_selector is not None, self.all_nodes, self.per_device_node_selection]
        if sum(scopes) > 1:
            raise InvalidDevice(
                f"Pool {self.name!r}: node_selector, all_nodes and per_device_node_selection exclude each other; "
                "keep one of them"
            )
        slices = self._as_slices()
        scoped = self.per_device_node_selection
        devices_valid = all(is_validated(device) and names_its_nodes(device) == scoped for device in self.devices)
        errors = validate_pool(slices) or [
            replace(error, path=f"slices[{number}].{error.path}")
            for number, item in enumerate(slices)
            for error in validate_slice(item, AUTHOR_RELEASE, devices_valid=devices_valid)
        ]
        if errors:
            what = "Pool" if self.name is None else f"Pool {short_repr(self.name)}"
            of_pool = [replace(error, path=_pool_path(error.path, slices)) for error in errors]
            raise invalid_device(what, of_pool)

    def _as_slices(self) -> list[v1.ResourceSlice]:
        """Return the pool as slices to validate by the API's rules; names and numbers in them are placeholders."""
        devices = [device.to_v1() for device in self.devices]
        counters = self.counter_sets_v1()
        contents: list[dict[str, Any]] = [{"devices": part} for part in split_devices(devices, LIMITS)]
        contents += [{"shared_counters": [item]} for item in counters]
        contents = contents or [{}]
        of_others = self.node_selector is not None or self.all_nodes or self.per_device_node_selection
        selector = self.node_selector_v1()
        name = _NODE if self.name is None else self.name
        pool = v1.ResourcePool(name=name, generation=1, resource_slice_count=len(contents))
        partition = self.partition_type_attribute
        domain = (partition or "").partition("/")[0]
        # a driver's own attributes may be written without a domain; the driver's name is not known here
        driver = "driver" if driver_name(domain, "") else domain
        # slices without such devices are published without it; if no device has any, the first slice reports the error
        partitioned = [any(device.consumes_counters for device in content.get("devices", ())) for content in contents]
        partitioned[0] = partitioned[0] or not any(partitioned)
        return [
            v1.ResourceSlice(
                spec=v1.ResourceSliceSpec(
                    driver=driver,
                    pool=pool,
                    node_name=None if of_others else _NODE,
                    node_selector=selector,
                    all_nodes=self.all_nodes or None,
                    per_device_node_selection=self.per_device_node_selection or None,
                    partition_type_attribute=partition if has_partitions else None,
                    skip_node_operations=tuple(self.skip_node_operations),
                    **content,
                )
            )
            for content, has_partitions in zip(contents, partitioned, strict=True)
        ]

    def counter_sets_v1(self) -> list[v1.CounterSet]:
        """Return the counter sets as published."""
        return [
            v1.CounterSet.model_validate({"name": item.name, "counters": counters_v1(item.counters)})
            for item in self.counter_sets
        ]

    def node_selector_v1(self) -> v1.NodeSelector | None:
        """Return the node selector as published."""
        return v1.NodeSelector.model_validate(self.node_selector.model_dump()) if self.node_selector else None


def is_published_alike(pool: Pool[Any], other: Pool[Any]) -> bool:
    """Return whether two valid pools have the same slices; equal valid devices share their form in the API."""
    return (
        len(pool.devices) == len(other.devices)
        and bool(_beside_devices(pool.__dict__) == _beside_devices(other.__dict__))
        and all(map(is_, map(Device.to_v1, pool.devices), map(Device.to_v1, other.devices)))
    )


_beside_devices = itemgetter(*(field for field in Pool.model_fields if field != "devices"))
_known: WeakValueDictionary[tuple[str | None, int], Pool[Any]] = WeakValueDictionary()
"""Valid pools in use: a pool that publishes the same is not validated again."""


def _pool_path(path: str, slices: Sequence[v1.ResourceSlice]) -> str:
    """Return a path in a pool's slices, of which those with devices come first, as a path in the pool."""
    match = re.fullmatch(r"slices\[(\d+)\]\.spec(?:\.(devices|sharedCounters)\[(\d+)\])?(.*)", path)
    if match is None:
        return path
    number, kind, index, rest = int(match[1]), match[2], int(match[3] or 0), match[4]
    before = slices[:number]
    if kind == "devices":
        return f"devices[{sum(len(item.spec.devices) for item in before) + index}]{rest}"
    if kind == "sharedCounters":
        return f"sharedCounters[{sum(len(item.spec.shared_counters) for item in before) + index}]{rest}"
    return rest.lstrip(".").removeprefix("pool.")


class Inventory(AuthorModel, Generic[DeviceT_co]):
    """Everything a driver has on this node. It is complete: a device missing here does not exist any more.

    Raises:
        InvalidDevice: when two pools have one name.
    """

    pools: Sequence[Pool[DeviceT_co]] = ()

    @model_validator(mode="after")
    def _pool_names_differ(self) -> Self:
        seen: dict[str | None, int] = {}
        for index, pool in enumerate(self.pools):
            first = seen.setdefault(pool.name, index)
            if first != index:
                text = "has no name" if pool.name is None else f"is named {pool.name!r}"
                raise InvalidDevice(
                    f"Inventory: pools[{index}].name: pools[{first}] {text} too; give each pool its own name"
                )
        return self
