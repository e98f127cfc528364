"""dra-kit: write Kubernetes DRA (Dynamic Resource Allocation) drivers in Python.

A driver is a :class:`DeviceProvider` (which devices exist here), a :class:`Preparer` (what a container gets when one
is allocated) and, where claims may configure it, an :class:`OpaqueConfig`, tied together by :class:`Driver`.

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dra_kit.author.calls import PendingResult
    from dra_kit.author.claim import AllocatedDevice, Claim, ConsumerReference, PreparedDevice
    from dra_kit.author.cluster_object import AppliedObject, ClusterObject
    from dra_kit.author.config import ConfigEntry, NoConfig, OpaqueConfig
    from dra_kit.author.context import (
        Context,
        EffectInForce,
        NodeInfo,
        OtherDevice,
        OtherDriver,
        PreparedClaim,
        Stopping,
    )
    from dra_kit.author.controller import (
        BoundElsewhere,
        ClaimObserver,
        DeviceBinder,
        ObservedClaim,
        ObservedDevice,
        TaintRule,
        TaintRuleSource,
    )
    from dra_kit.author.device import (
        CapacityRequestPolicy,
        CapacityRequestPolicyRange,
        CounterSet,
        Device,
        DeviceCapacity,
        DeviceCounterConsumption,
        DeviceTaint,
        NodeAllocatableResource,
        NodeAllocatableResourceMapping,
        NodeAllocatableResourceOverhead,
        NodeSelector,
        NodeSelectorRequirement,
        NodeSelectorTerm,
        Observed,
        WholeCapacityWarning,
        observed,
        pci_attributes,
    )
    from dra_kit.author.driver import Driver
    from dra_kit.author.effect import ChildProcess, Effect, RunningProcess
    from dra_kit.author.health import HealthRule, HealthSource, HealthUnknown, Healthy, Unhealthy
    from dra_kit.author.inventory import Inventory, Pool
    from dra_kit.author.pod_hooks import (
        ContainerAdjustment,
        ContainerResources,
        ContainerUpdate,
        DeviceFacts,
        HeldDevice,
        PodHooks,
        Runtime,
        RuntimeContainer,
        RuntimePod,
    )
    from dra_kit.author.prepared import (
        Condition,
        ContainerEdits,
        DeviceMetadata,
        DeviceNode,
        DeviceStatus,
        Hook,
        IntelRdt,
        Mount,
        NetDevice,
        NetworkDeviceData,
        Prepared,
    )
    from dra_kit.author.preparer import Preparer
    from dra_kit.author.provider import DevicePolicy, DeviceProvider, WatchedObject
    from dra_kit.author.reads import ClusterApi, ReadApi, Reads
    from dra_kit.errors import (
        ConfigurationError,
        DraKitError,
        HardwareGone,
        InvalidConfig,
        InvalidDevice,
        InvalidPrepared,
        NotYet,
        PermanentError,
        PrepareError,
        TransientError,
    )
    from dra_kit.kubelet.cdi.resolution import edits_from_cdi
    from dra_kit.kubelet.cni import CniNetwork, CniPlugins, CniResult
    from dra_kit.kubernetes.resource.objects import ClaimReference
    from dra_kit.kubernetes.values.quantity import Quantity, QuantityField
    from dra_kit.kubernetes.values.semver import Version


_HOMES = {
    "author.calls": ("PendingResult",),
    "author.claim": ("AllocatedDevice", "Claim", "ConsumerReference", "PreparedDevice"),
    "author.cluster_object": ("AppliedObject", "ClusterObject"),
    "author.config": ("ConfigEntry", "NoConfig", "OpaqueConfig"),
    "author.context": (
        "Context",
        "EffectInForce",
        "NodeInfo",
        "OtherDevice",
        "OtherDriver",
        "PreparedClaim",
        "Stopping",
    ),
    "author.controller": (
        "BoundElsewhere",
        "ClaimObserver",
        "DeviceBinder",
        "ObservedClaim",
        "ObservedDevice",
        "TaintRule",
        "TaintRuleSource",
    ),
    "author.device": (
        "CapacityRequestPolicy",
        "CapacityRequestPolicyRange",
        "CounterSet",
        "Device",
        "DeviceCapacity",
        "DeviceCounterConsumption",
        "DeviceTaint",
        "NodeAllocatableResource",
        "NodeAllocatableResourceMapping",
        "NodeAllocatableResourceOverhead",
        "NodeSelector",
        "NodeSelectorRequirement",
        "NodeSelectorTerm",
        "Observed",
        "WholeCapacityWarning",
        "observed",
        "pci_attributes",
    ),
    "author.driver": ("Driver",),
    "author.effect": ("ChildProcess", "Effect", "RunningProcess"),
    "author.health": ("HealthRule", "HealthSource", "HealthUnknown", "Healthy", "Unhealthy"),
    "author.inventory": ("Inventory", "Pool"),
    "author.pod_hooks": (
        "ContainerAdjustment",
        "ContainerResources",
        "ContainerUpdate",
        "DeviceFacts",
        "HeldDevice",
        "PodHooks",
        "Runtime",
        "RuntimeContainer",
        "RuntimePod",
    ),
    "author.prepared": (
        "Condition",
        "ContainerEdits",
        "DeviceMetadata",
        "DeviceNode",
        "DeviceStatus",
        "Hook",
        "IntelRdt",
        "Mount",
        "NetDevice",
        "NetworkDeviceData",
        "Prepared",
    ),
    "author.preparer": ("Preparer",),
    "author.provider": ("DevicePolicy", "DeviceProvider", "WatchedObject"),
    "author.reads": ("ClusterApi", "ReadApi", "Reads"),
    "errors": (
        "ConfigurationError",
        "DraKitError",
        "HardwareGone",
        "InvalidConfig",
        "InvalidDevice",
        "InvalidPrepared",
        "NotYet",
        "PermanentError",
        "PrepareError",
        "TransientError",
    ),
    "kubelet.cdi.resolution": ("edits_from_cdi",),
    "kubelet.cni": ("CniNetwork", "CniPlugins", "CniResult"),
    "kubernetes.resource.objects": ("ClaimReference",),
    "kubernetes.values.quantity": ("Quantity", "QuantityField"),
    "kubernetes.values.semver": ("Version",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AllocatedDevice",
    "AppliedObject",
    "BoundElsewhere",
    "CapacityRequestPolicy",
    "CapacityRequestPolicyRange",
    "ChildProcess",
    "Claim",
    "ClaimObserver",
    "ClaimReference",
    "ClusterApi",
    "ClusterObject",
    "CniNetwork",
    "CniPlugins",
    "CniResult",
    "Condition",
    "ConfigEntry",
    "ConfigurationError",
    "ConsumerReference",
    "ContainerAdjustment",
    "ContainerEdits",
    "ContainerResources",
    "ContainerUpdate",
    "Context",
    "CounterSet",
    "Device",
    "DeviceBinder",
    "DeviceCapacity",
    "DeviceCounterConsumption",
    "DeviceFacts",
    "DeviceMetadata",
    "DeviceNode",
    "DevicePolicy",
    "DeviceProvider",
    "DeviceStatus",
    "DeviceTaint",
    "DraKitError",
    "Driver",
    "Effect",
    "EffectInForce",
    "HardwareGone",
    "HealthRule",
    "HealthSource",
    "HealthUnknown",
    "Healthy",
    "HeldDevice",
    "Hook",
    "IntelRdt",
    "InvalidConfig",
    "InvalidDevice",
    "InvalidPrepared",
    "Inventory",
    "Mount",
    "NetDevice",
    "NetworkDeviceData",
    "NoConfig",
    "NodeAllocatableResource",
    "NodeAllocatableResourceMapping",
    "NodeAllocatableResourceOverhead",
    "NodeInfo",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "NotYet",
    "Observed",
    "ObservedClaim",
    "ObservedDevice",
    "OpaqueConfig",
    "OtherDevice",
    "OtherDriver",
    "PendingResult",
    "PermanentError",
    "PodHooks",
    "Pool",
    "PrepareError",
    "Prepared",
    "PreparedClaim",
    "PreparedDevice",
    "Preparer",
    "Quantity",
    "QuantityField",
    "ReadApi",
    "Reads",
    "RunningProcess",
    "Runtime",
    "RuntimeContainer",
    "RuntimePod",
    "Stopping",
    "TaintRule",
    "TaintRuleSource",
    "TransientError",
    "Unhealthy",
    "Version",
    "WatchedObject",
    "WholeCapacityWarning",
    "edits_from_cdi",
    "observed",
    "pci_attributes",
]

__version__ = "0.1.0"


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of ours

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'dra_kit' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"dra_kit.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
