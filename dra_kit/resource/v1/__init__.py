"""Models of resource.k8s.io/v1: snake_case attributes, camelCase JSON, unknown fields preserved."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dra_kit.resource.v1.base import APIModel, ObjectMeta, OwnerReference
from dra_kit.resource.v1.claims import (
    AllocationResult,
    CapacityRequirements,
    CELDeviceSelector,
    DerivedAttribute,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from dra_kit.resource.v1.classes import DeviceClass, DeviceClassConfiguration, DeviceClassSpec
from dra_kit.resource.v1.devices import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    NodeAllocatableResource,
    NodeAllocatableResourceMapping,
    NodeAllocatableResourceOverhead,
)
from dra_kit.resource.v1.nodes import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_kit.resource.v1.slices import ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_kit.resource.v1.templates import ResourceClaimTemplate, ResourceClaimTemplateSpec

if TYPE_CHECKING:
    from dra_kit.resource.v1.status import AllocatedDeviceStatus, Condition, NetworkDeviceData
    from dra_kit.resource.v1.taints import DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector

_LATE = {
    "status": ("AllocatedDeviceStatus", "Condition", "NetworkDeviceData"),
    "taints": ("DeviceTaintRule", "DeviceTaintRuleSpec", "DeviceTaintSelector"),
}
"""What few claims and clusters have, by module; loaded when it is first used."""

__all__ = [
    "APIModel",
    "AllocatedDeviceStatus",
    "AllocationResult",
    "CELDeviceSelector",
    "CapacityRequestPolicy",
    "CapacityRequestPolicyRange",
    "CapacityRequirements",
    "Condition",
    "Counter",
    "CounterSet",
    "DerivedAttribute",
    "Device",
    "DeviceAllocationConfiguration",
    "DeviceAllocationResult",
    "DeviceAttribute",
    "DeviceCapacity",
    "DeviceClaim",
    "DeviceClaimConfiguration",
    "DeviceClass",
    "DeviceClassConfiguration",
    "DeviceClassSpec",
    "DeviceConstraint",
    "DeviceCounterConsumption",
    "DeviceRequest",
    "DeviceRequestAllocationResult",
    "DeviceSelector",
    "DeviceSubRequest",
    "DeviceTaint",
    "DeviceTaintRule",
    "DeviceTaintRuleSpec",
    "DeviceTaintSelector",
    "DeviceToleration",
    "ExactDeviceRequest",
    "NetworkDeviceData",
    "NodeAllocatableResource",
    "NodeAllocatableResourceMapping",
    "NodeAllocatableResourceOverhead",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "ObjectMeta",
    "OpaqueDeviceConfiguration",
    "OwnerReference",
    "ResourceClaim",
    "ResourceClaimConsumerReference",
    "ResourceClaimSpec",
    "ResourceClaimStatus",
    "ResourceClaimTemplate",
    "ResourceClaimTemplateSpec",
    "ResourcePool",
    "ResourceSlice",
    "ResourceSliceSpec",
]


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of ours

    def __getattr__(name: str) -> Any:
        for module, names in _LATE.items():
            if name in names:
                value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
