"""The status of a ResourceClaim as schedulers, controllers and drivers write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_kit.resource import v1
from dra_kit.resource.fielderror import FieldError, declarative, forbidden, invalid, required
from dra_kit.resource.validation.claims.allocation import validate_allocation
from dra_kit.resource.validation.claims.device_status import validate_device_statuses
from dra_kit.resource.validation.claims.requests import request_names
from dra_kit.resource.validation.fields.lists import limited, over_limit, repeated

CONSUMERS_MAX: Final = 256


def validate_claim_status(
    claim: v1.ResourceClaim, devices: Sequence[v1.AllocatedDeviceStatus], old: v1.ResourceClaimStatus
) -> list[FieldError]:
    """Check all rules of the API server (Kubernetes 1.37) for a write of the status of a claim.

    An allocation is looked at only when it is new: afterwards it does not change until it is removed.

    Args:
        claim: with the new status.
        devices: ``status.devices``, which the model of the status leaves as it came.
        old: the status before.
    """
    status = claim.status
    errors = _validate_consumers(status.reserved_for, "status.reservedFor")
    results = status.allocation.devices.results if status.allocation else ()
    errors += validate_device_statuses(devices, results)
    if status.reserved_for and status.allocation is None:
        errors.append(forbidden("status.reservedFor", "may not be specified when `allocated` is not set"))
    elif claim.metadata.deletion_timestamp is not None:
        known = {consumer.uid for consumer in old.reserved_for}
        if any(consumer.uid not in known for consumer in status.reserved_for):
            detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
            errors.append(forbidden("status.reservedFor", detail))
    if status.allocation is not None and old.allocation is None:
        errors += validate_allocation(status.allocation, request_names(claim.spec.devices.requests))
    elif status.allocation is not None and status.allocation != old.allocation:
        errors += declarative([invalid("status.allocation", None, "field cannot be modified once set")])
    return errors


def _validate_consumers(consumers: Sequence[v1.ResourceClaimConsumerReference], path: str) -> list[FieldError]:
    errors = over_limit(consumers, CONSUMERS_MAX, path)
    errors += repeated(consumers, lambda consumer: consumer.uid, path) if not errors else []
    for where, consumer in limited(consumers, CONSUMERS_MAX, path):
        needed = {"resource": consumer.resource, "name": consumer.name, "uid": consumer.uid}
        errors += [required(f"{where}.{name}") for name, value in needed.items() if not value]
    return errors
