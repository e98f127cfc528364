"""A release of Kubernetes: its version and its feature gates.

Source of the gates: Kubernetes 1.37.1, ``pkg/features/kube_features.go``.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from msgspec import Struct

_ON: Final = frozenset({
    "DRAAdminAccess", "DRAConsumableCapacity", "DRADeviceBindingConditions", "DRADeviceTaintRules", "DRADeviceTaints",
    "DRAExtendedResource", "DRAPartitionableDevices", "DRAPrioritizedList", "DRAResourceClaimDeviceStatus",
    "DRAResourceClaimGranularStatusAuthorization", "DynamicResourceAllocation", "NodeDeclaredFeatures",
})  # fmt: skip
_ALPHA: Final = frozenset({
    "DRADerivedAttributes", "DRADeviceCompatibilityGroups", "DRAListTypeAttributes", "DRANodeAllocatableResources",
    "DRAOptionalNodeOperations", "DRAPartitionableDevicesType", "DRAResourcePoolStatus",
    "DRAWorkloadResourceClaims", "GenericWorkload",
})  # fmt: skip
_OTHERS: Final = frozenset({"DRAFractionalCapacityRange"})
_IMPLEMENTED: Final = _ON | _ALPHA | _OTHERS
_INERT: Final = {
    "DeclarativeValidationBeta": "validation has only one implementation here",
    "DRASchedulerFilterTimeout": "the search for devices has no time limit here",
    "KubeletPodResourcesDynamicResources": "the kubelet here does not serve pod resources",
    "PodsAPI": "the kubelet here does not serve pods",
    "ResourceHealthStatus": "the status of pods does not report the health of devices here",
    "ResourceHealthStatusMessage": "the status of pods does not report the health of devices here",
    "SchedulerPreQueueingHints": "it only makes a scheduler faster",
}
"""Gates for DRA in Kubernetes that have no effect here, with the reason."""
_LOCKED: Final = frozenset({
    "DRAAdminAccess", "DRAExtendedResource", "DRAPrioritizedList", "DRAResourceClaimDeviceStatus",
    "DynamicResourceAllocation", "NodeDeclaredFeatures",
})  # fmt: skip
_NEEDS: Final = {
    "DRADeviceTaintRules": ("DRADeviceTaints",),
    "DRADeviceCompatibilityGroups": ("DRAPartitionableDevices",),
    "DRAFractionalCapacityRange": ("DRAConsumableCapacity",),
    "DRAPartitionableDevicesType": ("DRAPartitionableDevices", "DRAResourcePoolStatus"),
    "DRAWorkloadResourceClaims": ("GenericWorkload",),
}
_DECLARED: Final = ("DRANodeAllocatableResources", "DRAOptionalNodeOperations")
_SWITCH: Final = {"true": True, "false": False}


class FeatureGates(Struct, frozen=True):
    """The names of the feature gates that are on."""

    enabled: frozenset[str] = _ON

    @classmethod
    def default(cls) -> Self:
        """Return the gates of an unmodified Kubernetes 1.37."""
        return cls()

    @classmethod
    def alpha(cls) -> Self:
        """Return the default gates, and the implemented ones of alpha features and of PodGroups, which are off."""
        return cls(_ON | _ALPHA)

    def without(self, *names: str) -> FeatureGates:
        """Return these gates with some switched off."""
        return FeatureGates(self.enabled - set(names))

    def switched(self, flags: str) -> FeatureGates:
        """Return these gates with changes in the form of ``--feature-gates``: ``Name=true,Name=false``.

        Raises:
            ValueError: a gate is unknown, not implemented here, locked by Kubernetes 1.37 or depends on another gate
                that is off, or the text is malformed.
        """
        enabled = set(self.enabled)
        for flag in filter(None, (part.strip() for part in flags.split(","))):
            name, _, value = flag.partition("=")
            if name not in _IMPLEMENTED:
                raise ValueError(f"{_unknown(name)}; known gates are {', '.join(sorted(_IMPLEMENTED))}")
            if value.lower() not in _SWITCH:
                raise ValueError(f"{flag!r} is not a feature gate with a value; write {name}=true or {name}=false")
            if not _SWITCH[value.lower()] and name in _LOCKED:
                raise ValueError(f"{name} cannot be switched off: it is generally available in Kubernetes 1.37")
            (enabled.add if _SWITCH[value.lower()] else enabled.discard)(name)
        for name in sorted(enabled):
            for needed in _NEEDS.get(name, ()):
                if needed not in enabled:
                    remedy = f"{name}=false" if needed in self.enabled else f"{needed}=true"
                    raise ValueError(f"{name} is on but needs {needed}, which is off; add {remedy}")
        return FeatureGates(frozenset(enabled))

    @property
    def declared_by_nodes(self) -> tuple[str, ...]:
        """The gates that kubelets declare in ``status.declaredFeatures``."""
        return tuple(name for name in _DECLARED if name in self.enabled)

    def __contains__(self, name: str) -> bool:
        return name in self.enabled


def _unknown(name: str) -> str:
    if name in _INERT:
        return f"{name} is a feature gate of Kubernetes without effect here ({_INERT[name]}); remove it"
    return f"{name} is not a feature gate of resource.k8s.io"


class Release(NamedTuple):
    """A release of Kubernetes, written as ``1.37``."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


OLDEST: Final = Release(1, 34)
"""The first release that serves resource.k8s.io/v1 by default."""
NEWEST: Final = Release(1, 37)
"""The release whose fields, feature gates and rules dra-kit implements; the sandbox simulates it."""
