"""dra-kit: write Kubernetes DRA (Dynamic Resource Allocation) drivers in Python.

A driver is a :class:`DeviceProvider` (which devices exist here), a :class:`Preparer` (what a container gets when one
is allocated) and, where claims may configure it, an :class:`OpaqueConfig`, tied together by :class:`Driver`.

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dra_kit.author.cluster.binder import DeviceBinder
    from dra_kit.author.cluster.taint_rules import TaintRule, TaintRuleSource
    from dra_kit.author.cluster_api import ClusterApi
    from dra_kit.author.config.opaque import ConfigEntry, NoConfig, OpaqueConfig
    from dra_kit.author.context import Context, EffectInForce, NodeInfo, PreparedClaim
    from dra_kit.author.devices.device import Device, WholeCapacityWarning
    from dra_kit.author.devices.health import HealthRule, HealthSource, HealthUnknown, Healthy, Unhealthy
    from dra_kit.author.devices.identity import Observed, observed
    from dra_kit.author.devices.inventory import Inventory, Pool
    from dra_kit.author.devices.policy import DevicePolicy, WatchedObject
    from dra_kit.author.devices.provider import DeviceProvider
    from dra_kit.author.devices.vocabulary import (
        CapacityRequestPolicy,
        CapacityRequestPolicyRange,
        CounterSet,
        DeviceCapacity,
        DeviceCounterConsumption,
        DeviceTaint,
        NodeAllocatableResource,
        NodeAllocatableResourceMapping,
        NodeAllocatableResourceOverhead,
        NodeSelector,
        NodeSelectorRequirement,
        NodeSelectorTerm,
    )
    from dra_kit.author.driver import Driver
    from dra_kit.author.effects.child_process import ChildProcess, RunningProcess
    from dra_kit.author.effects.cluster_object import AppliedObject, ClusterObject
    from dra_kit.author.effects.effect import Effect
    from dra_kit.author.observing.observed import ObservedClaim, ObservedDevice
    from dra_kit.author.observing.observer import ClaimObserver
    from dra_kit.author.preparing.claim import AllocatedDevice, Claim, ConsumerReference, PreparedDevice
    from dra_kit.author.preparing.prepared import (
        Condition,
        ContainerEdits,
        DeviceMetadata,
        DeviceNode,
        DeviceStatus,
        Hook,
        Mount,
        NetDevice,
        NetworkDeviceData,
        Prepared,
    )
    from dra_kit.author.preparing.preparer import Preparer
    from dra_kit.author.stopping import Stopping
    from dra_kit.cdi.edits import edits_from_cdi
    from dra_kit.errors import (
        ConfigurationError,
        DraKitError,
        InvalidConfig,
        InvalidDevice,
        InvalidPrepared,
        NotYet,
        PermanentError,
        PrepareError,
        TransientError,
    )
    from dra_kit.kubernetes.resource.objects import ClaimReference
    from dra_kit.kubernetes.values.quantity import Quantity, QuantityField
    from dra_kit.kubernetes.values.semver import Version


_HOMES = {
    "author.effects.child_process": ("ChildProcess", "RunningProcess"),
    "author.preparing.claim": ("AllocatedDevice", "Claim", "ConsumerReference", "PreparedDevice"),
    "author.effects.cluster_object": ("AppliedObject", "ClusterObject"),
    "author.cluster.binder": ("DeviceBinder",),
    "author.cluster.taint_rules": ("TaintRule", "TaintRuleSource"),
    "author.cluster_api": ("ClusterApi",),
    "author.config.opaque": ("ConfigEntry", "NoConfig", "OpaqueConfig"),
    "author.context": ("Context", "EffectInForce", "NodeInfo", "PreparedClaim"),
    "author.devices.device": ("Device", "WholeCapacityWarning"),
    "author.driver": ("Driver",),
    "author.effects.effect": ("Effect",),
    "author.devices.health": ("HealthRule", "HealthSource", "HealthUnknown", "Healthy", "Unhealthy"),
    "author.devices.identity": ("Observed", "observed"),
    "author.devices.inventory": ("Inventory", "Pool"),
    "author.observing.observed": ("ObservedClaim", "ObservedDevice"),
    "author.observing.observer": ("ClaimObserver",),
    "author.preparing.prepared": (
        "Condition",
        "ContainerEdits",
        "DeviceMetadata",
        "DeviceNode",
        "DeviceStatus",
        "Hook",
        "Mount",
        "NetDevice",
        "NetworkDeviceData",
        "Prepared",
    ),
    "author.preparing.preparer": ("Preparer",),
    "author.devices.policy": ("DevicePolicy", "WatchedObject"),
    "author.devices.provider": ("DeviceProvider",),
    "author.stopping": ("Stopping",),
    "author.devices.vocabulary": (
        "CapacityRequestPolicy",
        "CapacityRequestPolicyRange",
        "CounterSet",
        "DeviceCapacity",
        "DeviceCounterConsumption",
        "DeviceTaint",
        "NodeAllocatableResource",
        "NodeAllocatableResourceMapping",
        "NodeAllocatableResourceOverhead",
        "NodeSelector",
        "NodeSelectorRequirement",
        "NodeSelectorTerm",
    ),
    "cdi.edits": ("edits_from_cdi",),
    "errors": (
        "ConfigurationError",
        "DraKitError",
        "InvalidConfig",
        "InvalidDevice",
        "InvalidPrepared",
        "NotYet",
        "PermanentError",
        "PrepareError",
        "TransientError",
    ),
    "kubernetes.resource.objects": ("ClaimReference",),
    "kubernetes.values.quantity": ("Quantity", "QuantityField"),
    "kubernetes.values.semver": ("Version",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AllocatedDevice",
    "AppliedObject",
    "CapacityRequestPolicy",
    "CapacityRequestPolicyRange",
    "ChildProcess",
    "Claim",
    "ClaimObserver",
    "ClaimReference",
    "ClusterApi",
    "ClusterObject",
    "Condition",
    "ConfigEntry",
    "ConfigurationError",
    "ConsumerReference",
    "ContainerEdits",
    "Context",
    "CounterSet",
    "Device",
    "DeviceBinder",
    "DeviceCapacity",
    "DeviceCounterConsumption",
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
    "HealthRule",
    "HealthSource",
    "HealthUnknown",
    "Healthy",
    "Hook",
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
    "PermanentError",
    "Pool",
    "PrepareError",
    "Prepared",
    "PreparedClaim",
    "PreparedDevice",
    "Preparer",
    "Quantity",
    "QuantityField",
    "RunningProcess",
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
