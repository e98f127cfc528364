"""Announces to users, in Events, what becomes of the claims that hold our devices.

The Lease has from the beginning the resource version from which a replica must know what happened to claims.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from dra_kit.author.claim import ConsumerReference
from dra_kit.client.api import Client
from dra_kit.client.events import EventRecorder, ObjectReference
from dra_kit.client.resources import LEASES, PODS, RESOURCE_CLAIMS, Resource
from dra_kit.controller.claim_follower import ClaimFollower
from dra_kit.controller.claim_transitions import (
    ANNOUNCED,
    UNKNOWN,
    AnnouncementProgress,
    ClaimChange,
    ClaimTransition,
    announced_of,
    node_of,
)
from dra_kit.controller.election import annotations_of, empty_lease
from dra_kit.errors import Conflict, Forbidden, Invalid, NotFound
from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult, ResourceClaimConsumerReference
from dra_kit.process.logging import log_context


@dataclass(frozen=True, slots=True)
class Announcement:
    """One Event; ``identity`` is equal in every replica, even if a replica missed states in between."""

    regarding: ObjectReference
    reason: str
    action: str
    note: str
    identity: str = field(default="", compare=False)


_REASONS: Final = {
    ClaimChange.ALLOCATED: ("DeviceAllocated", "Allocate"),
    ClaimChange.RESERVED: ("ClaimReserved", "Reserve"),
    ClaimChange.UNRESERVED: ("ClaimReleased", "Release"),
    ClaimChange.DEALLOCATED: ("ClaimReleased", "Release"),
    ClaimChange.DELETED: ("ClaimReleased", "Release"),
}


def announcements(transition: ClaimTransition) -> tuple[Announcement, ...]:
    """Return the Events of a transition: one on the claim, one on each pod concerned.

    Each consumer that was added or removed is reported separately: another replica may have seen them at different
    times.
    """
    if transition.change in {ClaimChange.RESERVED, ClaimChange.UNRESERVED} and len(transition.consumers) > 1:
        single = (replace(transition, consumers=(consumer,)) for consumer in transition.consumers)
        return tuple(each for step in single for each in announcements(step))
    reason, action = _REASONS[transition.change]
    note, identity = _note(transition), _identity(transition)
    metadata = transition.claim.metadata
    claim = reference_to(RESOURCE_CLAIMS, metadata.name, metadata.uid, metadata.namespace)
    return tuple(Announcement(regarding, reason, action, note, identity) for regarding in (claim, *_pods(transition)))


def _identity(transition: ClaimTransition) -> str:
    """Identify a transition by the claim, its allocation, the change and the consumers."""
    allocation = transition.claim.status.allocation
    change = ClaimChange.DEALLOCATED if transition.change is ClaimChange.DELETED else transition.change
    users = transition.consumers if change in {ClaimChange.RESERVED, ClaimChange.UNRESERVED} else ()
    return "\n".join(
        (
            transition.claim.metadata.uid,
            change,
            (allocation.allocation_timestamp if allocation else None) or "",
            *sorted(f"{each.request}/{each.pool}/{each.device}/{each.share_id or ''}" for each in transition.devices),
            *(each.uid for each in users),
        )
    )


def _pods(transition: ClaimTransition) -> Iterator[ObjectReference]:
    """Yield the pods concerned: who came or went, and, when devices come or go, the owner and all users."""
    claim = transition.claim
    pods: dict[str, str] = {}
    if transition.change not in {ClaimChange.RESERVED, ClaimChange.UNRESERVED}:
        pods |= {
            owner.uid: owner.name
            for owner in claim.metadata.owner_references
            if (owner.api_version, owner.kind) == (PODS.api_version, PODS.kind)
        }
    users = claim.status.reserved_for if transition.change is ClaimChange.ALLOCATED else transition.consumers
    pods |= {user.uid: user.name for user in users if is_pod(user)}
    for uid, name in pods.items():
        yield reference_to(PODS, name, uid, claim.metadata.namespace)


def reference_to(resource: Resource, name: str, uid: str, namespace: str) -> ObjectReference:
    """Return a reference to an object of a resource."""
    return ObjectReference(resource.api_version, resource.kind, name, uid, namespace)


def is_pod(consumer: ConsumerReference | ResourceClaimConsumerReference) -> bool:
    """Return whether a consumer of a claim is a pod."""
    return (consumer.api_group, consumer.resource) == (PODS.group, PODS.plural)


def _note(transition: ClaimTransition) -> str:
    claim = f"ResourceClaim {transition.claim.metadata.name}"
    node = node_of(transition.claim)
    devices = _devices(transition.devices) + (f" on node {node}" if node else "")
    users = _users(transition.consumers)
    match transition.change:
        case ClaimChange.ALLOCATED:
            return f"Allocated {devices} to {claim}"
        case ClaimChange.RESERVED:
            return f"Reserved {claim} with {devices} for {users}"
        case ClaimChange.UNRESERVED:
            return f"{claim} with {devices} is no longer reserved for {users}"
        case ClaimChange.DEALLOCATED:
            return f"{claim} released {devices}" + (f", used by {users}" if users else "")
        case ClaimChange.DELETED:
            return f"{claim} was deleted and released {devices}" + (f", used by {users}" if users else "")


def _devices(devices: Iterable[DeviceRequestAllocationResult]) -> str:
    return ", ".join(f"device {each.device} (request {each.request}, pool {each.pool})" for each in devices)


def _users(consumers: Iterable[ResourceClaimConsumerReference]) -> str:
    return ", ".join(
        f"pod {each.name}" if is_pod(each) else f"{each.resource}.{each.api_group} {each.name}" for each in consumers
    )


logger: logging.Logger = logging.getLogger(__name__)
_Pending: TypeAlias = "asyncio.Queue[tuple[ClaimTransition, bool, Callable[[], None]]]"
"""Transitions, whether they happened now, and what is called when they are announced."""


class ClaimAnnouncer:
    """Writes an Event for each transition; an active part of the controller."""

    name = "announcing"

    def __init__(self, follower: ClaimFollower, recorder: EventRecorder, progress: AnnouncementProgress) -> None:
        self._follower = follower
        self._recorder = recorder
        self._progress = progress

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready when it follows."""
        pending: _Pending = asyncio.Queue()
        with self._follower.subscribed() as claims, self._progress.announcing():
            for step in claims.recent:
                pending.put_nowait((step, False, self._progress.begin(inherited=True)))
            ready.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(claims.steps, pending))
                group.create_task(self._announce_all(pending))

    async def _follow(self, steps: asyncio.Queue[ClaimTransition], pending: _Pending) -> None:
        """Take each transition at once, so that it counts as not announced from the moment it is seen."""
        while True:
            step = await steps.get()
            pending.put_nowait((step, True, self._progress.begin()))

    async def _announce_all(self, pending: _Pending) -> None:
        while True:
            step, now, announced = await pending.get()
            await self._recorder.room()  # one that is pushed out would be lost
            self._announce(step, announced, repeat=now)

    def _announce(self, step: ClaimTransition, announced: Callable[[], None], *, repeat: bool) -> None:
        metadata = step.claim.metadata
        with log_context(claim=f"{metadata.namespace}/{metadata.name}", claim_uid=metadata.uid):
            logger.info(
                "claim changed",
                extra={"change": step.change.value, "devices": [device.device for device in step.devices]},
            )
        events = announcements(step)
        left = len(events)

        def written() -> None:
            nonlocal left
            left -= 1
            if not left:
                announced()

        for each in events:
            self._recorder.record(
                each.regarding, "Normal",
                reason=each.reason, action=each.action, note=each.note, identity=each.identity, repeat=repeat,
                written=written,
            )  # fmt: skip


async def agreed_version(client: Client, lease: str, namespace: str) -> int:
    """Return the version of claims up to which everything is announced, the same one for every replica that starts.

    If the Lease does not contain it, everything up to now counts as announced, and the first replica writes that
    version into the Lease, which it creates if necessary. Otherwise each replica would begin with its own list, and a
    replica that starts later would miss changes before its list that are not announced yet.

    Returns:
        The version; ``UNKNOWN`` where this account may not read or write the Lease, which the elector reports.

    Raises:
        Unavailable: the API server does not answer.
    """
    while True:
        try:
            stored = await _stored(client, lease, namespace)
            newest = int(await client.newest_version(RESOURCE_CLAIMS))
            announced = announced_of(annotations_of(stored or {}))
            # a later version is of another history: the cluster was restored from a backup
            if announced != UNKNOWN and announced <= newest:
                return announced
            await _write(client, stored or empty_lease(lease, namespace), newest, exists=stored is not None)
        except Conflict:
            continue  # another replica was faster, or the holder has renewed it
        except (Forbidden, Invalid, NotFound):
            return UNKNOWN
        return newest


async def _stored(client: Client, lease: str, namespace: str) -> dict[str, Any] | None:
    try:
        return await client.get(LEASES, lease, namespace)
    except NotFound:
        return None


async def _write(client: Client, lease: dict[str, Any], version: int, *, exists: bool) -> None:
    annotations = {**annotations_of(lease), ANNOUNCED: str(version)}
    body = {**lease, "metadata": {**lease["metadata"], "annotations": annotations}}
    await (client.update(LEASES, body) if exists else client.create(LEASES, body))
