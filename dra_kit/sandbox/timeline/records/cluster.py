"""Records of the cluster and of a run in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import field

from dra_kit.sandbox.timeline.records.base import TimelineRecord


class ClusterStarted(TimelineRecord, frozen=True, kw_only=True):
    """API server, controllers and scheduler run; the nodes come next.

    Attributes:
        version: of Kubernetes that the API server names, such as ``v1.37.1``.
        kubeconfig: path of it.
        drivers: names of the drivers that run in it.
    """

    version: str
    kubeconfig: str
    drivers: tuple[str, ...] = ()


class ClusterEnding(TimelineRecord, frozen=True, kw_only=True):
    """Everything is taken down from now on.

    Attributes:
        calls: of the drivers' code that have not returned, a sentence each.
    """

    calls: tuple[str, ...] = ()


class ObjectChanged(TimelineRecord, frozen=True, kw_only=True):
    """An object of the API server was created, changed or deleted.

    Attributes:
        change: what became of it.
        resource: its resource, such as ``pods`` or ``resourceclaims.resource.k8s.io``.
        object: as it is now; the last known state of one that is deleted. It may have no ``apiVersion`` and ``kind``.
    """

    change: Literal["ADDED", "MODIFIED", "DELETED"]
    resource: str
    object: Mapping[str, Any]


class ManifestsApplied(TimelineRecord, frozen=True, kw_only=True):
    """Manifests that are followed were applied.

    Attributes:
        message: what was done; empty when everything was as they say.
    """

    message: str


class ManifestsRefused(TimelineRecord, frozen=True, kw_only=True):
    """Manifests that are followed could not be applied.

    Attributes:
        message: why.
    """

    message: str


class RunEnded(TimelineRecord, frozen=True, kw_only=True):
    """The end of a run of files or stories.

    Attributes:
        drivers: names of the drivers that ran.
        passed: everything was as it should be.
        duration: seconds of the whole run.
        failures: what was not as it should be.
        leftovers: what remained of the pods and claims.
        api_writes: writing requests to the API server, by user agent.
    """

    drivers: tuple[str, ...] = ()
    passed: bool
    duration: float
    failures: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    api_writes: Mapping[str, int] = field(default_factory=dict)


class RecordsLost(TimelineRecord, frozen=True, kw_only=True):
    """Records that a file does not have: it was full or slow, or older ones had to make room.

    Attributes:
        lost: how many.
    """

    lost: int
