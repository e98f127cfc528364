"""The vocabulary of one device in a ResourceSlice (resource.k8s.io/v1, Kubernetes 1.34 to 1.37)."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from typing_extensions import override

from dra_kit.resource.v1.base import APIModel, Bool, Int64, Time
from dra_kit.resource.v1.nodes import NodeSelector
from dra_kit.values.quantity import Quantity


class DeviceAttribute(APIModel, frozen=True):
    """The value of one attribute: exactly one field is set. List values are alpha (DRAListTypeAttributes)."""

    int_: Int64 | None = Field(default=None, alias="int")
    bool_: Bool | None = Field(default=None, alias="bool")
    string: str | None = None
    version: str | None = None
    ints: tuple[Int64, ...] | None = None
    bools: tuple[Bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None

    @override
    def to_json(self) -> dict[str, Any]:
        """See :meth:`APIModel.to_json`; without the cost of it for the usual attribute, since there are so many."""
        usual = (("string", self.string), ("int", self.int_), ("bool", self.bool_), ("version", self.version))
        found: dict[str, Any] = {field: value for field, value in usual if value is not None}
        return found if len(found) == len(self.model_fields_set) == 1 else super().to_json()


class CapacityRequestPolicyRange(APIModel, frozen=True):
    """A request may be anything from ``min`` to ``max``, in multiples of ``step`` above ``min``."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(APIModel, frozen=True):
    """How much of a capacity one claim may take from a device that several claims share (KEP-5075)."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(APIModel, frozen=True):
    """How much of something a device has."""

    value: Quantity = Quantity(0)
    request_policy: CapacityRequestPolicy | None = None


class Counter(APIModel, frozen=True):
    """An amount that several devices draw on."""

    value: Quantity = Quantity(0)


class CounterSet(APIModel, frozen=True):
    """Named amounts that several devices of one pool share (KEP-4815)."""

    name: str = ""
    counters: dict[str, Counter] = {}


class DeviceCounterConsumption(APIModel, frozen=True):
    """What a device takes from a counter set when it is allocated.

    ``compatibility_groups`` (KEP-5963, alpha in 1.37): devices that draw on one set must have a group in common.
    """

    counter_set: str = ""
    counters: dict[str, Counter] = {}
    compatibility_groups: tuple[str, ...] = ()


class DeviceTaint(APIModel, frozen=True):
    """Keeps claims away that do not tolerate it (KEP-5055); ``effect`` is None, NoSchedule or NoExecute."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: Time | None = None


class NodeAllocatableResourceMapping(APIModel, frozen=True):
    """How much of a node resource a device stands for: by consumed capacity or by device."""

    capacity_key: str | None = None
    capacity_multiplier: Quantity | None = None
    device_multiplier: Quantity | None = None


class NodeAllocatableResourceOverhead(APIModel, frozen=True):
    """What a pod, and each container of it that refers to the claim, needs besides."""

    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatableResource(APIModel, frozen=True):
    """How a device counts against cpu, memory or hugepages of its node (KEP-5517, alpha in 1.37)."""

    mapping: NodeAllocatableResourceMapping | None = None
    overhead: NodeAllocatableResourceOverhead | None = None


class Device(APIModel, frozen=True):
    """One device of a ResourceSlice."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: Bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: Bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: Bool | None = None
    node_allocatable_resources: dict[str, NodeAllocatableResource] = {}
