"""A coordination.k8s.io/v1 Lease as the record of an election, with client-go's fields; pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dra_kit.kube.events import micro_time
from dra_kit.kube.resources import LEASES


class Timing(Struct, frozen=True):
    """How long what takes, in seconds; the defaults are those of client-go and of Kubernetes' own controllers.

    Attributes:
        lease: how long a lease that is not renewed is respected by others.
        renew_deadline: how long its holder tries to renew it until it gives up being the active one.
        retry: between two attempts.
    """

    lease: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


def holder_of(lease: Mapping[str, Any]) -> str:
    """Return who holds it; empty when it was given back."""
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def duration_of(lease: Mapping[str, Any], default: float) -> float:
    """Return how long its holder wants it to be respected after a renewal, in seconds."""
    return float((lease.get("spec") or {}).get("leaseDurationSeconds") or default)


def annotations_of(lease: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what its holder says beside that it holds it."""
    return (lease.get("metadata") or {}).get("annotations") or {}


def acquired(
    lease: Mapping[str, Any] | None, identity: str, timing: Timing, now: dt.datetime, *, namespace: str, name: str,
    annotations: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Return the lease as ``identity`` takes it, or renews it where it has it already; what else is in it stays.

    Args:
        lease: as it is stored; None when there is none.
        identity: of the process.
        timing: of the election.
        now: by the process's clock, for people: nobody's decision follows from it.
        namespace: of the lease.
        name: of the lease.
        annotations: that it gets; others that it has stay.
    """
    stored: Mapping[str, Any] = lease or {
        "apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": {"namespace": namespace, "name": name}
    }  # fmt: skip
    spec = dict(stored.get("spec") or {})
    if lease is None:
        spec["leaseTransitions"] = 0
    if holder_of(stored) != identity:
        spec["acquireTime"] = micro_time(now)
        if lease is not None:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
    spec |= {
        "holderIdentity": identity,
        "leaseDurationSeconds": max(1, round(timing.lease)),
        "renewTime": micro_time(now),
    }
    metadata = stored["metadata"] | {"annotations": {**annotations_of(stored), **annotations}}
    return {**stored, "metadata": metadata, "spec": spec}


def released(lease: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    """Return the lease given back: nobody holds it, and whoever comes next need not wait."""
    spec = {
        **(lease.get("spec") or {}),
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": micro_time(now),
        "renewTime": micro_time(now),
    }
    return {**lease, "spec": spec}
