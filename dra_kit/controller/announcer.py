"""The Events that tell users of a transition: on the claim, and on the pods it is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from dra_kit.controller.claims.lifecycle import Change, Transition
from dra_kit.kube.events import ObjectReference
from dra_kit.kube.resources import PODS, RESOURCE_CLAIMS
from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult, ResourceClaim, ResourceClaimConsumerReference


@dataclass(frozen=True, slots=True)
class Announcement:
    """One Event.

    Attributes:
        regarding: the object it is shown with.
        reason: CamelCase, for machines.
        action: what was done, CamelCase.
        note: the text for users.
        identity: what it tells of, equal for every replica that sees it, whatever that one missed in between.
    """

    regarding: ObjectReference
    reason: str
    action: str
    note: str
    identity: str = field(default="", compare=False)


_REASONS: Final = {
    Change.ALLOCATED: ("DeviceAllocated", "Allocate"),
    Change.RESERVED: ("ClaimReserved", "Reserve"),
    Change.UNRESERVED: ("ClaimReleased", "Release"),
    Change.DEALLOCATED: ("ClaimReleased", "Release"),
    Change.DELETED: ("ClaimReleased", "Release"),
}


def announcements(transition: Transition) -> tuple[Announcement, ...]:
    """Return the Events of a transition: one on the claim, one on each pod concerned.

    Consumers that came or went are told one by one: another replica may have seen them come at different times.
    """
    if transition.change in {Change.RESERVED, Change.UNRESERVED} and len(transition.consumers) > 1:
        single = (replace(transition, consumers=(consumer,)) for consumer in transition.consumers)
        return tuple(each for step in single for each in announcements(step))
    reason, action = _REASONS[transition.change]
    note, identity = _note(transition), _identity(transition)
    metadata = transition.claim.metadata
    claim = ObjectReference(
        RESOURCE_CLAIMS.api_version, RESOURCE_CLAIMS.kind, metadata.name, metadata.uid, metadata.namespace
    )
    return tuple(Announcement(regarding, reason, action, note, identity) for regarding in (claim, *_pods(transition)))


def _identity(transition: Transition) -> str:
    """Of the claim, this allocation of it, what happened, and to whom."""
    allocation = transition.claim.status.allocation
    change = Change.DEALLOCATED if transition.change is Change.DELETED else transition.change
    users = transition.consumers if change in {Change.RESERVED, Change.UNRESERVED} else ()
    return "\n".join(
        (
            transition.claim.metadata.uid,
            change,
            (allocation.allocation_timestamp if allocation else None) or "",
            *sorted(f"{each.request}/{each.pool}/{each.device}/{each.share_id or ''}" for each in transition.devices),
            *(each.uid for each in users),
        )
    )


def node_of(claim: ResourceClaim) -> str | None:
    """Return the node that an allocation is bound to, None when several may use it (or there is no allocation)."""
    selector = claim.status.allocation.node_selector if claim.status.allocation else None
    if selector is None or len(selector.node_selector_terms) != 1:
        return None
    for each in selector.node_selector_terms[0].match_fields:
        if (each.key, each.operator) == ("metadata.name", "In") and len(each.values) == 1:
            return each.values[0]
    return None


def _pods(transition: Transition) -> Iterator[ObjectReference]:
    """Yield the pods concerned: who came or went, and, when devices come or go, the owner and all users."""
    claim = transition.claim
    pods: dict[str, str] = {}
    if transition.change not in {Change.RESERVED, Change.UNRESERVED}:
        pods |= {
            owner.uid: owner.name
            for owner in claim.metadata.owner_references
            if (owner.api_version, owner.kind) == (PODS.api_version, PODS.kind)
        }
    users = claim.status.reserved_for if transition.change is Change.ALLOCATED else transition.consumers
    pods |= {user.uid: user.name for user in users if _is_pod(user)}
    for uid, name in pods.items():
        yield ObjectReference(PODS.api_version, PODS.kind, name, uid, claim.metadata.namespace)


def _is_pod(consumer: ResourceClaimConsumerReference) -> bool:
    return (consumer.api_group, consumer.resource) == (PODS.group, PODS.plural)


def _note(transition: Transition) -> str:
    claim = f"ResourceClaim {transition.claim.metadata.name}"
    node = node_of(transition.claim)
    devices = _devices(transition.devices) + (f" on node {node}" if node else "")
    users = _users(transition.consumers)
    match transition.change:
        case Change.ALLOCATED:
            return f"Allocated {devices} to {claim}"
        case Change.RESERVED:
            return f"Reserved {claim} with {devices} for {users}"
        case Change.UNRESERVED:
            return f"{claim} with {devices} is no longer reserved for {users}"
        case Change.DEALLOCATED:
            return f"{claim} released {devices}" + (f", used by {users}" if users else "")
        case Change.DELETED:
            return f"{claim} was deleted and released {devices}" + (f", used by {users}" if users else "")


def _devices(devices: Iterable[DeviceRequestAllocationResult]) -> str:
    return ", ".join(f"device {each.device} (request {each.request}, pool {each.pool})" for each in devices)


def _users(consumers: Iterable[ResourceClaimConsumerReference]) -> str:
    return ", ".join(
        f"pod {each.name}" if _is_pod(each) else f"{each.resource}.{each.api_group} {each.name}" for each in consumers
    )
