"""Checks of a pod's claims before a node is selected: PreEnqueue and PreFilter of DynamicResources (1.37). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from dra_kit.resource.pods import pod_claims
from dra_kit.scheduler.pods import Key, is_reserved_for, owns, shown
from dra_kit.values.json import ObjectView


class NotReady(Exception):
    """A claim does not exist yet, or is on its way out; the text is kube-scheduler's.

    A pod that comes to the queue waits, and nothing is written about it.
    """


class Hopeless(Exception):
    """No node can take the pod because of its claims; the text is kube-scheduler's."""


class PodNeeds(Struct, frozen=True):
    """The claims of a pod.

    Attributes:
        allocated: those that have devices already.
        pending: those that need devices, in the order of the pod's spec.
    """

    allocated: tuple[ObjectView, ...] = ()
    pending: tuple[ObjectView, ...] = ()

    def to_reserve(self, pod: ObjectView) -> tuple[ObjectView, ...]:
        """Return the allocated claims that do not name the pod as their consumer yet."""
        return tuple(claim for claim in self.allocated if not is_reserved_for(claim, pod))


def pod_needs(pod: ObjectView, claims: Mapping[Key, ObjectView], classes: Mapping[Key, ObjectView]) -> PodNeeds:
    """Return the pod's claims, sorted by what is to be done with them.

    Args:
        pod: to be scheduled.
        claims: all ResourceClaims, as the scheduler assumes them to be.
        classes: all DeviceClasses.

    Raises:
        NotReady: the pod has to wait for somebody else.
        Hopeless: no node will do.
    """
    namespace = pod["metadata"]["namespace"]
    allocated, pending = [], []
    for entry in pod_claims(pod):
        if not entry.name:
            continue  # of an earlier attempt with extended resources
        claim = claims.get((namespace, entry.claim)) if entry.claim else None
        if claim is None:
            raise NotReady(_missing(pod, entry.claim))
        if "deletionTimestamp" in claim["metadata"]:
            raise NotReady(f'resourceclaim "{entry.claim}" is being deleted')
        if entry.generated and not owns(pod, claim):
            raise NotReady(f"ResourceClaim {shown(claim)} was not created for Pod {shown(pod)} (Pod is not owner)")
        if claim.get("status", {}).get("allocation"):
            allocated.append(claim)
            continue
        for request, device_class in _classes(claim):
            if ("", device_class) not in classes:
                raise Hopeless(f"request {request}: device class {device_class} does not exist")
        pending.append(claim)
    return PodNeeds(tuple(allocated), tuple(pending))


def _missing(pod: ObjectView, claim: str | None) -> str:
    if claim is None:
        return f'pod "{shown(pod)}": ResourceClaim not created yet'
    return f'could not find ResourceClaim "{pod["metadata"]["namespace"]}/{claim}"'


def _classes(claim: ObjectView) -> Iterator[tuple[str, str]]:
    """Each request and sub-request of a claim with the name of its DeviceClass."""
    for request in claim["spec"].get("devices", {}).get("requests", []):
        if "exactly" in request:
            yield request["name"], request["exactly"].get("deviceClassName", "")
        for item in request.get("firstAvailable", []):
            yield f"{request['name']}/{item['name']}", item.get("deviceClassName", "")
