"""What helps a pod that no node takes: a claim of its own that holds devices where the pod cannot go is freed.

That is the PostFilter step of kube-scheduler's plugin DynamicResources (1.37); the next attempt finds the claim without
devices.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dra_kit.values.json import ObjectView


class Remedy(Struct, frozen=True):
    """What to do with one claim.

    Attributes:
        claim: the claim.
        delete: it goes, rather than lose its devices.
    """

    claim: ObjectView
    delete: bool = False

    @property
    def text(self) -> str:
        """What kube-scheduler reports when it is done."""
        return f"{'deletion' if self.delete else 'deallocation'} of ResourceClaim completed"


def remedy_for(pod: ObjectView, unavailable: Iterable[ObjectView], stale: ObjectView | None) -> Remedy | None:
    """Return what may help the pod; None if nothing may.

    Args:
        pod: that no node takes.
        unavailable: its claims that have devices which it cannot use on some node that would take it otherwise.
        stale: a claim that was made for its extended resources in an earlier attempt.
    """
    for claim in unavailable:
        consumers = claim.get("status", {}).get("reservedFor", [])
        if all(item.get("uid") == pod["metadata"]["uid"] for item in consumers):
            return Remedy(claim)
    return Remedy(stale, delete=True) if stale is not None else None
