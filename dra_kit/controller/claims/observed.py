"""From a claim of the API to what an author's code gets of it."""

from __future__ import annotations

from collections.abc import Iterable

from dra_kit.author.observing.observed import ObservedClaim, ObservedDevice
from dra_kit.author.preparing.claim import ConsumerReference
from dra_kit.controller.claims.announcements import node_of
from dra_kit.kubernetes.resource.v1 import DeviceRequestAllocationResult, ResourceClaim, ResourceClaimConsumerReference


def observed_claim(claim: ResourceClaim, devices: Iterable[DeviceRequestAllocationResult]) -> ObservedClaim:
    """Return a claim with its devices of one driver.

    Args:
        claim: as it is, or was.
        devices: of the driver.
    """
    metadata = claim.metadata
    return ObservedClaim(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        devices=tuple(map(observed_device, devices)),
        consumers=consumers(claim.status.reserved_for),
        node=node_of(claim),
    )


def observed_device(result: DeviceRequestAllocationResult) -> ObservedDevice:
    """Return one allocated device."""
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
    """Return who uses a claim."""
    return tuple(ConsumerReference(each.api_group, each.resource, each.name, each.uid) for each in references)
