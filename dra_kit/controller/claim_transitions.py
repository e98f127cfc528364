"""What happened to a claim that holds our devices, from two states of it, and what of that is announced; pure."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from dra_kit.author.claim import ConsumerReference
from dra_kit.author.controller import ObservedClaim, ObservedDevice
from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult, ResourceClaim, ResourceClaimConsumerReference

ANNOUNCED: Final = "dra-kit/announced-up-to"
"""Annotation of the Lease: the resource version of claims up to which all that happened to them is announced."""
UNKNOWN: Final = -1
"""In place of a resource version: before all of them."""
MARGIN: Final = 30.0
"""Seconds in which whatever a watch has brought is followed: objects are followed side by side, so that a later change
of one may come before an earlier one of another, and several changes of one come as one.
"""


def announced_of(annotations: Mapping[str, str]) -> int:
    """Return the version up to which a Lease says all is announced; ``UNKNOWN`` if it is missing or invalid."""
    text = annotations.get(ANNOUNCED, "")
    return int(text) if text.isdecimal() else UNKNOWN


class FollowedVersions:
    """The resource versions that a replica has seen, and up to which of them it has certainly processed all changes."""

    def __init__(self, clock: Callable[[], float], seen: Callable[[], int]) -> None:
        self.now: Callable[[], float] = clock
        self._seen = seen
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self) -> None:
        """Record the latest version seen; called every few seconds."""
        self._samples.append((self.now(), self._seen()))
        before = self.now() - MARGIN
        while len(self._samples) > 1 and self._samples[1][0] <= before:
            self._samples.popleft()

    def complete(self) -> int:
        """Return a version up to which all changes are processed; ``UNKNOWN`` if there is none."""
        before = self.now() - MARGIN
        return next((version for at, version in reversed(self._samples) if at <= before), UNKNOWN)


class AnnouncementProgress:
    """Which transitions the active replica has not announced yet, by Events and hooks; belongs to one event loop.

    ``inherited`` returns the version up to which former active replicas have announced everything.
    """

    def __init__(self, followed: FollowedVersions, inherited: Callable[[], int]) -> None:
        self._followed = followed
        self._inherited = inherited
        self._announcing = False
        self._numbers = itertools.count()
        # versions before which they cannot have happened, and until when that counts
        self._pending: dict[int, tuple[int, float]] = {}

    @contextmanager
    def announcing(self) -> Iterator[None]:
        """Mark this replica as announcing; otherwise only the announcements of other replicas count."""
        self._announcing = True
        try:
            yield
        finally:
            self._announcing = False
            self._pending.clear()

    def begin(self, *, inherited: bool = False, seconds: float = math.inf) -> Callable[[], None]:
        """Record a transition as not announced until the returned function is called, or ``seconds`` have passed.

        ``inherited``: it was seen before this replica became active; otherwise it was seen just now.
        """
        number = next(self._numbers)
        version = self._inherited() if inherited else self._followed.complete()
        self._pending[number] = version, self._followed.now() + seconds

        def announced() -> None:
            self._pending.pop(number, None)

        return announced

    def announced(self) -> int:
        """Return the resource version up to which all that happened is announced; ``UNKNOWN`` for nothing."""
        if not self._announcing:
            return self._inherited()
        now = self._followed.now()
        return min([self._followed.complete(), *(version for version, until in self._pending.values() if now < until)])

    def annotations(self) -> dict[str, str]:
        """Return the annotations to write to the Lease."""
        announced = self.announced()
        return {} if announced == UNKNOWN else {ANNOUNCED: str(announced)}


class ClaimChange(StrEnum):
    """What a transition says of the claim."""

    ALLOCATED = "allocated"  # the scheduler chose devices of ours
    RESERVED = "reserved"  # consumers may use them from now on
    UNRESERVED = "unreserved"  # consumers no longer use them; the claim keeps them
    DEALLOCATED = "deallocated"  # the claim gave them back
    DELETED = "deleted"  # the claim is gone, and with it its hold on them


@dataclass(frozen=True, slots=True)
class ClaimTransition:
    """One step in the life of a claim.

    Attributes:
        claim: the state of the claim that has the devices: the new state, or the old state if they were deallocated.
        devices: the allocation results of our driver that the step is about.
        consumers: the consumers that were added (RESERVED) or removed (other changes); empty for ALLOCATED.
        version: the resource version of claims by which it had happened; 0 if unknown.
    """

    change: ClaimChange
    claim: ResourceClaim
    devices: tuple[DeviceRequestAllocationResult, ...]
    consumers: tuple[ResourceClaimConsumerReference, ...] = ()
    version: int = field(default=0, compare=False)


def our_devices(claim: ResourceClaim | None, driver: str) -> tuple[DeviceRequestAllocationResult, ...]:
    """Return the allocation results of ``claim`` that name devices of ``driver``; empty when it is not allocated."""
    if claim is None or claim.status.allocation is None:
        return ()
    return tuple(result for result in claim.status.allocation.devices.results if result.driver == driver)


def transitions(
    previous: ResourceClaim | None, current: ResourceClaim | None, driver: str
) -> tuple[ClaimTransition, ...]:
    """Return the steps from one state of a claim to a later one, in the order in which they must have happened.

    A state is None if the claim did not exist. States in between may have been missed: a claim that was deallocated and
    reallocated results in both steps.
    """
    before, now = our_devices(previous, driver), our_devices(current, driver)
    same = _keys(before) == _keys(now)
    steps: list[ClaimTransition] = []
    if previous is not None and before:
        users = previous.status.reserved_for
        if current is None:
            steps.append(ClaimTransition(ClaimChange.DELETED, previous, before, users))
        elif not same:
            steps.append(ClaimTransition(ClaimChange.DEALLOCATED, previous, before, users))
        elif gone := _missing(users, current.status.reserved_for):
            steps.append(ClaimTransition(ClaimChange.UNRESERVED, previous, before, gone))
    if current is not None and now:
        known = previous.status.reserved_for if previous is not None and same else ()
        if not same:
            steps.append(ClaimTransition(ClaimChange.ALLOCATED, current, now))
        if came := _missing(current.status.reserved_for, known):
            steps.append(ClaimTransition(ClaimChange.RESERVED, current, now, came))
    return tuple(steps)


def _keys(devices: Iterable[DeviceRequestAllocationResult]) -> set[tuple[str, str, str, str | None]]:
    return {(device.request, device.pool, device.device, device.share_id) for device in devices}


def _missing(
    consumers: Iterable[ResourceClaimConsumerReference], others: Iterable[ResourceClaimConsumerReference]
) -> tuple[ResourceClaimConsumerReference, ...]:
    known = {consumer.uid for consumer in others}
    return tuple(consumer for consumer in consumers if consumer.uid not in known)


def observed_claim(claim: ResourceClaim, devices: Iterable[DeviceRequestAllocationResult]) -> ObservedClaim:
    """Return a claim with the given devices of one driver."""
    metadata = claim.metadata
    return ObservedClaim(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        devices=tuple(map(_observed_device, devices)),
        consumers=consumers(claim.status.reserved_for),
        node=node_of(claim),
    )


def _observed_device(result: DeviceRequestAllocationResult) -> ObservedDevice:
    return ObservedDevice(
        name=result.device,
        pool=result.pool,
        request=result.request,
        share_id=result.share_id,
        consumed_capacity=result.consumed_capacity,
        admin_access=bool(result.admin_access),
        binding_conditions=result.binding_conditions,
        binding_failure_conditions=result.binding_failure_conditions,
    )


def consumers(references: Iterable[ResourceClaimConsumerReference]) -> tuple[ConsumerReference, ...]:
    """Return the consumers of a claim."""
    return tuple(ConsumerReference(each.api_group, each.resource, each.name, each.uid) for each in references)


CAPACITY: Final = 50_000
"""Transitions that are kept; beyond that the oldest are lost."""


class AnnouncementBacklog:
    """Transitions that the active replica may not have announced when it last renewed its lease.

    Some may be announced twice: names of Events make a second creation a conflict, and hooks may be repeated.
    ``announced`` is the version up to which everything is announced; it rises with the renewals of the active replica.
    """

    def __init__(self, announced: int = UNKNOWN) -> None:
        self.announced: int = announced
        self._steps: deque[ClaimTransition] = deque(maxlen=CAPACITY)

    def add(self, step: ClaimTransition) -> None:
        """Append a transition that was just seen."""
        self._steps.append(step)

    def renewed(self, announced: int) -> None:
        """Drop transitions up to the version that the active replica announced when it renewed its lease."""
        self.announced = max(self.announced, announced)
        while self._steps and self._steps[0].version <= self.announced:
            self._steps.popleft()

    def steps(self) -> tuple[ClaimTransition, ...]:
        """Return the transitions that may not be announced, in order."""
        return tuple(self._steps)


def node_of(claim: ResourceClaim) -> str | None:
    """Return the node that an allocation is bound to; None if several nodes may use it, or without an allocation."""
    selector = claim.status.allocation.node_selector if claim.status.allocation else None
    if selector is None or len(selector.node_selector_terms) != 1:
        return None
    for each in selector.node_selector_terms[0].match_fields:
        if (each.key, each.operator) == ("metadata.name", "In") and len(each.values) == 1:
            return each.values[0]
    return None
