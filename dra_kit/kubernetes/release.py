"""A release of Kubernetes: its version and its feature gates.

Sources: ``pkg/features/kube_features.go`` of Kubernetes 1.37.1 and 1.38.0-beta.0.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from msgspec import Struct


class KubernetesVersion(NamedTuple):
    """The version of a release, written as ``1.37``."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the version of ``1.37``, ``v1.37.1`` or ``1.38.0-beta.0``; it may be newer than :data:`NEWEST`.

        Raises:
            ValueError: it is not the version of a release with resource.k8s.io/v1.
        """
        found = _VERSION.match(text)
        if found is None:
            raise ValueError(f"{text!r} is not a Kubernetes release; write for example {NEWEST}")
        version = cls(1, int(found["minor"]))
        if version < OLDEST:
            raise ValueError(f"Kubernetes {version} has no resource.k8s.io/v1; use {OLDEST} to {NEWEST}")
        return version

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


OLDEST: Final = KubernetesVersion(1, 34)
"""The first release that serves resource.k8s.io/v1 by default."""
NEWEST: Final = KubernetesVersion(1, 37)
"""The newest release whose fields, feature gates and rules dra-kit implements; what the sandbox simulates."""


_VERSION: Final = re.compile(r"v?1\.(?P<minor>[0-9]{1,3})(?![0-9])")


class GateHistory(NamedTuple):
    """What became of a feature gate, by minor releases.

    Attributes:
        known: the first release that has it.
        on: the first release in which it is on by default; None for none yet.
        locked: the first release in which it cannot be switched off; None for none yet.
        removed: the first release in which it cannot be named any more; None for none yet.
        needs: gates that must be on with it.
    """

    known: int
    on: int | None = None
    locked: int | None = None
    removed: int | None = None
    needs: tuple[str, ...] = ()


GATES: Final = {
    "DRAAdminAccess": GateHistory(32, on=34, locked=36),
    "DRAConsumableCapacity": GateHistory(34, on=36, locked=39),
    "DRADerivedAttributes": GateHistory(37),
    "DRADeviceBindingConditions": GateHistory(34, on=36, locked=38, needs=("DRAResourceClaimDeviceStatus",)),
    "DRADeviceCompatibilityGroups": GateHistory(37, needs=("DRAPartitionableDevices",)),
    "DRADeviceTaintRules": GateHistory(35, on=37, locked=38, needs=("DRADeviceTaints",)),
    "DRADeviceTaints": GateHistory(33, on=36, locked=38),
    "DRAExtendedResource": GateHistory(34, on=36, locked=37),
    "DRAFractionalCapacityRange": GateHistory(37, on=38, locked=39, needs=("DRAConsumableCapacity",)),
    "DRAListTypeAttributes": GateHistory(36),
    "DRANodeAllocatableResources": GateHistory(36),
    "DRAOptionalNodeOperations": GateHistory(37),
    "DRAPartitionableDevices": GateHistory(33, on=36, locked=38),
    "DRAPartitionableDevicesType": GateHistory(37, needs=("DRAPartitionableDevices", "DRAResourcePoolStatus")),
    "DRAPrioritizedList": GateHistory(33, on=34, locked=37),
    "DRAResourceClaimDeviceStatus": GateHistory(32, on=33, locked=37),
    "DRAResourceClaimGranularStatusAuthorization": GateHistory(36, on=36),
    "DRAResourcePoolStatus": GateHistory(36),
    "DRAWorkloadResourceClaims": GateHistory(36, needs=("GenericWorkload",)),
    "DynamicResourceAllocation": GateHistory(26, on=34, locked=35, removed=38),
    "GenericWorkload": GateHistory(35),
    "NodeDeclaredFeatures": GateHistory(35, on=36, locked=37),
}
"""The gates that have an effect here."""
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
_NOT_ALPHA: Final = "DRAFractionalCapacityRange"
"""Beta from its first release on, and off for the sake of the release before."""
_DECLARED: Final = ("DRANodeAllocatableResources", "DRAOptionalNodeOperations")
_SWITCH: Final = {"true": True, "false": False}


class Release(Struct, frozen=True):
    """A release of Kubernetes with its feature gates: ``"DRADeviceTaints" in release``.

    Attributes:
        version: its version.
        enabled: the names of the feature gates that are on.
    """

    version: KubernetesVersion
    enabled: frozenset[str]

    @classmethod
    def of(cls, version: KubernetesVersion = NEWEST) -> Self:
        """Return an unmodified release; of one that is newer than :data:`NEWEST` what is known of it."""
        on = {name for name, gate in GATES.items() if gate.on is not None and version.minor >= gate.on}
        return cls(version, frozenset(on))

    @classmethod
    def parse(cls, version: str) -> Self:
        """Return an unmodified release by its version as text.

        Raises:
            ValueError: see :meth:`KubernetesVersion.parse`.
        """
        return cls.of(KubernetesVersion.parse(version))

    @classmethod
    def alpha(cls, version: KubernetesVersion = NEWEST) -> Self:
        """Return a release with the default gates and those of alpha features and of PodGroups, which are off."""
        release = cls.of(version)
        off = {name for name, gate in GATES.items() if version.minor >= gate.known and name != _NOT_ALPHA}
        return cls(version, release.enabled | off)

    def also(self, *names: str) -> Release:
        """Return this release with further gates switched on."""
        return Release(self.version, self.enabled | set(names))

    def without(self, *names: str) -> Release:
        """Return this release with some gates switched off."""
        return Release(self.version, self.enabled - set(names))

    def switched(self, flags: str) -> Release:
        """Return this release with changes in the form of ``--feature-gates``: ``Name=true,Name=false``.

        Raises:
            ValueError: a gate is unknown to the release, not implemented here, locked or depends on another gate that
                is off, or the text is malformed.
        """
        enabled = set(self.enabled)
        for flag in filter(None, (part.strip() for part in flags.split(","))):
            name, _, value = flag.partition("=")
            gate = self._gate(name)
            if value.lower() not in _SWITCH:
                raise ValueError(f"{flag!r} is not a feature gate with a value; write {name}=true or {name}=false")
            if not _SWITCH[value.lower()] and gate.locked is not None and self.version.minor >= gate.locked:
                raise ValueError(f"{name} cannot be switched off: it is generally available in {self.version}")
            (enabled.add if _SWITCH[value.lower()] else enabled.discard)(name)
        for name in sorted(enabled):
            for needed in GATES[name].needs:
                if needed not in enabled:
                    remedy = f"{name}=false" if needed in self.enabled else f"{needed}=true"
                    raise ValueError(f"{name} is on but needs {needed}, which is off; add {remedy}")
        return Release(self.version, frozenset(enabled))

    @property
    def declared_by_nodes(self) -> tuple[str, ...]:
        """The gates that kubelets declare in ``status.declaredFeatures``."""
        return tuple(name for name in _DECLARED if name in self.enabled)

    def __contains__(self, name: str) -> bool:
        return name in self.enabled

    def _gate(self, name: str) -> GateHistory:
        """Return the history of a gate that a user names.

        Raises:
            ValueError: the release does not have it, or it has no effect here.
        """
        if name in _INERT:
            raise ValueError(
                f"{name} is a feature gate of Kubernetes without effect here ({_INERT[name]}); remove it; "
                f"known gates are {', '.join(self._known())}"
            )
        gate = GATES.get(name)
        if gate is None:
            raise ValueError(
                f"{name} is not a feature gate of resource.k8s.io; known gates are {', '.join(self._known())}"
            )
        if self.version.minor < gate.known:
            raise ValueError(f"{name} is not a feature gate of Kubernetes {self.version}: it came with 1.{gate.known}")
        if gate.removed is not None and self.version.minor >= gate.removed:
            raise ValueError(
                f"{name} is not a feature gate of Kubernetes {self.version}: what it switched is always on since "
                f"1.{gate.removed}; remove it"
            )
        return gate

    def _known(self) -> list[str]:
        minor = self.version.minor
        return sorted(
            name for name, gate in GATES.items()
            if gate.known <= minor and (gate.removed is None or minor < gate.removed)
        )  # fmt: skip
