"""A device as it is advertised: what its slice says of it, prepared for being looked at many times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import MAX_PREC, Context
from functools import lru_cache
from typing import Final, NamedTuple

from dra_kit.allocator.cluster.nodes import Node, node_matches
from dra_kit.allocator.cluster.taints import covers
from dra_kit.resource.plain_attributes import has_plain_attributes
from dra_kit.resource.v1 import (
    Device,
    DeviceCounterConsumption,
    DeviceTaint,
    DeviceTaintRule,
    NodeSelector,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_kit.values.amount import Amount
from dra_kit.values.quantity import Quantity

_BLOCKING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
_NANO_EXPONENT: Final = 9
_EXACT: Final = Context(prec=MAX_PREC)
_AMOUNTS: Final = 4096


def nano(quantity: Quantity) -> int:
    """A quantity in billionths, the finest unit there is; exact, so that amounts are added and compared as integers."""
    return _nano(quantity.amount)


@lru_cache(maxsize=_AMOUNTS)
def _nano(amount: Amount) -> int:
    return int(amount.as_decimal().scaleb(_NANO_EXPONENT, _EXACT))


class DeviceID(NamedTuple):
    """A device of the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class CounterDemand(NamedTuple):
    """What a device takes from one counter set.

    Attributes:
        counter_set: its name.
        amounts: (counter, billionths).
        groups: compatibility groups; empty is "no groups".
    """

    counter_set: str
    amounts: tuple[tuple[str, int], ...]
    groups: frozenset[str]


class AdvertisedDevice:
    """One device of one slice. Compared by identity: a device that is published again is another one.

    Attributes:
        id: driver, pool and name.
        device: what is published.
        spec: the slice's part that concerns its devices.
        shareable: it can be allocated several times (DRAConsumableCapacity).
        taints: the device's own, without effects that block nothing.
        rule_taints: likewise those of DeviceTaintRules.
        demands: what it takes from counter sets.
        capacity: (name, billionths) of its whole capacity.
        whole: that a share takes all of the capacity unless it asks for less: there is no policy that says otherwise.
    """

    __slots__ = (
        "__weakref__", "_plain", "capacity", "demands", "device", "id", "rule_taints", "shareable", "spec", "taints",
        "whole",
    )  # fmt: skip

    def __init__(self, slice_: ResourceSlice, device: Device) -> None:
        self.spec: ResourceSliceSpec = slice_.spec
        self.device: Device = device
        self._plain: bool | None = None
        self.id: DeviceID = DeviceID(self.spec.driver, self.spec.pool.name, device.name)
        self.shareable: bool = bool(device.allow_multiple_allocations)
        self.taints: tuple[DeviceTaint, ...] = _blocking(device.taints) if device.taints else ()
        self.rule_taints: tuple[DeviceTaint, ...] = ()
        self.demands: tuple[CounterDemand, ...] = tuple([_demand(demand) for demand in device.consumes_counters])
        self.capacity: dict[str, int] = {}
        self.whole: bool = True
        for name, capacity in device.capacity.items():
            self.capacity[name] = amount = _nano(capacity.value.amount)
            self.whole = self.whole and capacity.request_policy is None and amount >= 0

    @property
    def has_plain_attributes(self) -> bool:
        """Whether there surely is no attribute that all expressions stumble over, whatever they read."""
        if self._plain is None:
            self._plain = has_plain_attributes(self.device)
        return self._plain

    @property
    def node_scope(self) -> tuple[str | None, bool | None, NodeSelector | None]:
        """``nodeName``, ``allNodes`` and ``nodeSelector``, of the device or its slice, whichever decides."""
        source = self.device if self.spec.per_device_node_selection else self.spec
        return source.node_name, source.all_nodes, source.node_selector


class AdvertisedSlice:
    """A slice with its devices.

    Attributes:
        name: of the ResourceSlice.
        spec: as published.
        devices: in the driver's order.
        grouped: a device of it has compatibility groups.
        binding: a device of it has binding conditions.
    """

    __slots__ = ("binding", "devices", "grouped", "name", "spec")

    def __init__(self, slice_: ResourceSlice, rules: Sequence[DeviceTaintRule]) -> None:
        self.name: str = slice_.metadata.name
        self.spec: ResourceSliceSpec = slice_.spec
        self.devices: tuple[AdvertisedDevice, ...] = tuple(
            [AdvertisedDevice(slice_, device) for device in slice_.spec.devices]
        )
        self.grouped: bool = any(demand.groups for device in self.devices for demand in device.demands)
        self.binding: bool = any(device.device.binding_conditions for device in self.devices)

        if rules:
            self.taint(rules)

    def taint(self, rules: Sequence[DeviceTaintRule]) -> bool:
        """Apply DeviceTaintRules to the devices, instead of those before; tell whether that changed any device."""
        before = [device.rule_taints for device in self.devices]
        for device in self.devices:
            device.rule_taints = _blocking(
                rule.spec.taint for rule in rules if covers(rule.spec.device_selector, device.id)
            )
        return before != [device.rule_taints for device in self.devices]

    def concerns(self, node: Node, *, counters_everywhere: bool) -> bool:
        """Whether a device may be for ``node``; counter sets concern all nodes.

        Args:
            node: the node.
            counters_everywhere: also where they name another node.

        Raises:
            ValueError: a node selector that is looked at is not valid.
        """
        spec = self.spec
        if spec.shared_counters:
            return counters_everywhere or spec.node_name in {None, "", node.name}
        if spec.node_name or spec.all_nodes or spec.node_selector is not None:
            return node_matches(node, spec.node_name, spec.all_nodes, spec.node_selector)
        if spec.per_device_node_selection:
            return any(node_matches(node, *device.node_scope) for device in self.devices)
        return False


def _demand(consumption: DeviceCounterConsumption) -> CounterDemand:
    return CounterDemand(
        consumption.counter_set,
        tuple((name, nano(counter.value)) for name, counter in consumption.counters.items()),
        frozenset(consumption.compatibility_groups),
    )


def _blocking(taints: Iterable[DeviceTaint]) -> tuple[DeviceTaint, ...]:
    return tuple(taint for taint in taints if taint.effect in _BLOCKING_EFFECTS)
