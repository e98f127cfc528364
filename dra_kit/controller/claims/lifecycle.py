"""What happened to a claim that holds our devices, from two states of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult, ResourceClaim, ResourceClaimConsumerReference


class Change(StrEnum):
    """What a transition says of the claim."""

    ALLOCATED = "allocated"  # the scheduler chose devices of ours
    RESERVED = "reserved"  # somebody may use them from now on
    UNRESERVED = "unreserved"  # somebody does not use them any more; the claim keeps them
    DEALLOCATED = "deallocated"  # the claim gave them back
    DELETED = "deleted"  # the claim is gone, and with it its hold on them


@dataclass(frozen=True, slots=True)
class Transition:
    """One step in the life of a claim.

    Attributes:
        change: what happened.
        claim: in the state that tells of the devices: the new one, or the old one of devices that were given back.
        devices: the allocation results of our driver that the step is about.
        consumers: who came with RESERVED; who went otherwise; with ALLOCATED nobody.
        version: resource version of claims at which it had happened at the latest; 0 where it is not known.
    """

    change: Change
    claim: ResourceClaim
    devices: tuple[DeviceRequestAllocationResult, ...]
    consumers: tuple[ResourceClaimConsumerReference, ...] = ()
    version: int = field(default=0, compare=False)


def our_devices(claim: ResourceClaim | None, driver: str) -> tuple[DeviceRequestAllocationResult, ...]:
    """Return the allocation results of ``claim`` that name devices of ``driver``; empty when it is not allocated."""
    if claim is None or claim.status.allocation is None:
        return ()
    return tuple(result for result in claim.status.allocation.devices.results if result.driver == driver)


def transitions(previous: ResourceClaim | None, current: ResourceClaim | None, driver: str) -> tuple[Transition, ...]:
    """Return the steps from one state of a claim to a later one, in the order in which they must have happened.

    States in between may have been missed: one that was released and allocated anew meanwhile gives both steps.

    Args:
        previous: the claim as it was; None when it did not exist.
        current: the claim as it is; None when it is gone. Of the same UID.
        driver: whose devices count; allocations of other drivers are nothing to us.
    """
    before, now = our_devices(previous, driver), our_devices(current, driver)
    same = _keys(before) == _keys(now)
    steps: list[Transition] = []
    if previous is not None and before:
        users = previous.status.reserved_for
        if current is None:
            steps.append(Transition(Change.DELETED, previous, before, users))
        elif not same:
            steps.append(Transition(Change.DEALLOCATED, previous, before, users))
        elif gone := _missing(users, current.status.reserved_for):
            steps.append(Transition(Change.UNRESERVED, previous, before, gone))
    if current is not None and now:
        known = previous.status.reserved_for if previous is not None and same else ()
        if not same:
            steps.append(Transition(Change.ALLOCATED, current, now))
        if came := _missing(current.status.reserved_for, known):
            steps.append(Transition(Change.RESERVED, current, now, came))
    return tuple(steps)


def _keys(devices: Iterable[DeviceRequestAllocationResult]) -> set[tuple[str, str, str, str | None]]:
    return {(device.request, device.pool, device.device, device.share_id) for device in devices}


def _missing(
    consumers: Iterable[ResourceClaimConsumerReference], others: Iterable[ResourceClaimConsumerReference]
) -> tuple[ResourceClaimConsumerReference, ...]:
    known = {consumer.uid for consumer in others}
    return tuple(consumer for consumer in consumers if consumer.uid not in known)
