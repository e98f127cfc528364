"""Differences in allocations by feature gates and release, and the selection of one of Kubernetes' allocators."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.kubernetes.release import Change, KubernetesVersion, Release


class AllocatorVariant(Struct, frozen=True):
    """Differences between Kubernetes' three allocators, except those switched by gates (Kubernetes 1.37).

    Attributes:
        name: ``stable``, ``incubating`` or ``experimental``.
        ordered: pools by driver and name, those with binding conditions last, and slices by name; otherwise pools
            are in no particular order (upstream's is random), slices in the order of the lister, and devices for one
            request are tried in every order instead of that one.
        counters_everywhere: a slice with counter sets concerns all nodes, even if it names one.
        distinct_attribute: the constraint of that name is known.
        binds_to_node: the field of that name pins an allocation to its node.
        knows_sharing: selectors see ``device.allowMultipleAllocations``, which is false otherwise, and without the gate
            requests for capacity are rejected instead of ignored.
        skips_operations: ``skipNodeOperations`` of slices is used.
    """

    name: str
    ordered: bool = False
    counters_everywhere: bool = False
    distinct_attribute: bool = False
    binds_to_node: bool = False
    knows_sharing: bool = False
    skips_operations: bool = False


STABLE: Final = AllocatorVariant("stable", counters_everywhere=True)
INCUBATING: Final = AllocatorVariant(
    "incubating", ordered=True, distinct_attribute=True, binds_to_node=True, knows_sharing=True
)
EXPERIMENTAL: Final = replace(INCUBATING, name="experimental", skips_operations=True)
_EARLY_EXPERIMENTAL: Final = replace(INCUBATING, name="experimental", ordered=False)
_EARLY_INCUBATING: Final = AllocatorVariant("incubating")
_EARLY_STABLE: Final = AllocatorVariant("stable")
"""Before :attr:`~dra_kit.kubernetes.release.Change.ALLOCATORS_PROMOTED`."""
_ALIKE: Final = replace(EXPERIMENTAL, name="incubating")
"""Since :attr:`~dra_kit.kubernetes.release.Change.ALLOCATORS_ALIKE`."""
_STABLE_FEATURES: Final = frozenset({"admin_access", "prioritized_list", "partitionable_devices", "device_taints"})
_INCUBATING_FEATURES: Final = _STABLE_FEATURES | {
    "device_binding_and_status",
    "consumable_capacity",
    "fractional_capacity_range",
}
_KUBERNETES_NAMES: Final = {
    "admin_access": ("DRAAdminAccess",),
    "compatibility_groups": ("DRADeviceCompatibilityGroups",),
    "consumable_capacity": ("DRAConsumableCapacity",),
    "derived_attributes": ("DRADerivedAttributes",),
    "device_binding_and_status": ("DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"),
    "device_status": ("DRAResourceClaimDeviceStatus",),
    "device_taint_rules": ("DRADeviceTaintRules",),
    "device_taints": ("DRADeviceTaints",),
    "fractional_capacity_range": ("DRAFractionalCapacityRange",),
    "list_type_attributes": ("DRAListTypeAttributes",),
    "optional_node_operations": ("DRAOptionalNodeOperations",),
    "partitionable_devices": ("DRAPartitionableDevices",),
    "prioritized_list": ("DRAPrioritizedList",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorRules:
    """The scheduler's feature gates that an allocation depends on; all are off by default.

    ``device_binding_and_status`` stands for DRADeviceBindingConditions and DRAResourceClaimDeviceStatus together; the
    other names are those of the gates without ``DRA``.

    Attributes:
        version: the release of the scheduler.
        device_status: it only chooses the allocator, in Kubernetes 1.34.
        variant: the first of Kubernetes' allocators that supports every feature that is on.
    """

    version: KubernetesVersion
    admin_access: bool = False
    compatibility_groups: bool = False
    consumable_capacity: bool = False
    derived_attributes: bool = False
    device_binding_and_status: bool = False
    device_status: bool = False
    device_taint_rules: bool = False
    device_taints: bool = False
    fractional_capacity_range: bool = False
    list_type_attributes: bool = False
    optional_node_operations: bool = False
    partitionable_devices: bool = False
    prioritized_list: bool = False
    variant: AllocatorVariant = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "variant", self._choose_variant())
        on = tuple(getattr(self, each.name) for each in fields(self) if each.init)
        object.__setattr__(self, "_hash", hash(on))

    def __hash__(self) -> int:  # used for each node of a cluster
        return self._hash

    @classmethod
    def of(cls, release: Release) -> AllocatorRules:
        """Return the gates of a scheduler of a release, which are those of its API server."""
        on: dict[str, Any] = {gate: all(name in release for name in names) for gate, names in _KUBERNETES_NAMES.items()}
        if not release.has(Change.TAINT_RULES_HAVE_A_GATE):
            on["device_taint_rules"] = on["device_taints"]
        return cls(version=release.version, **on)

    def has(self, change: Change) -> bool:
        """Return whether a rule has changed in the scheduler's release or before."""
        return self.version.has(change)

    @property
    def checks_other_capacities(self) -> bool:
        """Whether the capacity of another device of a slice may decide about a device."""
        return self.consumable_capacity and not self.has(Change.OWN_CAPACITY_IS_CHECKED)

    def owner_of_counters(self, driver: str, pool: str) -> tuple[str, str]:
        """Return the driver and pool for whose counters a pool's are taken; an empty driver stands for all drivers."""
        return (driver if self.has(Change.POOLS_HAVE_OWN_COUNTERS) else "", pool)

    @classmethod
    def alpha(cls, version: KubernetesVersion) -> AllocatorRules:
        """Every gate on."""
        on: dict[str, Any] = dict.fromkeys(_KUBERNETES_NAMES, True)
        return cls(version=version, **on)

    def _choose_variant(self) -> AllocatorVariant:
        on = {gate for gate in _KUBERNETES_NAMES if getattr(self, gate)}
        on.discard("device_taint_rules")  # applied before the allocator, so it does not select one
        if self.has(Change.BINDING_NEEDS_STATUS):
            on.discard("device_status")
        if self.has(Change.ALLOCATORS_ALIKE):
            return replace(_ALIKE, name="stable") if on <= _INCUBATING_FEATURES else _ALIKE
        if not self.has(Change.ALLOCATORS_PROMOTED):
            if not on:
                return _EARLY_STABLE
            return _EARLY_INCUBATING if on <= _STABLE_FEATURES else _EARLY_EXPERIMENTAL
        if on <= _STABLE_FEATURES:
            return STABLE
        return INCUBATING if on <= _INCUBATING_FEATURES else EXPERIMENTAL


OPTIONAL_NODE_OPERATIONS = "DRAOptionalNodeOperations"
"""The feature that a node declares if its kubelet can skip calls to a driver (KEP-5945)."""
