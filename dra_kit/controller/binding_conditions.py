"""Conditions of the binding of a claim's devices, read and made: ``status.devices[].conditions``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final

from msgspec import Struct
from pydantic import ValidationError

from dra_kit.author.observing.observed import ObservedClaim, ObservedDevice
from dra_kit.controller.claims.lifecycle import our_devices
from dra_kit.controller.claims.observed import observed_claim
from dra_kit.kubernetes.resource import v1

_MESSAGE_MAX: Final = 32768  # of metav1.Condition


class Place(Struct, frozen=True):
    """A device, or the share of one, that a claim has."""

    pool: str
    device: str
    share_id: str | None


class Verdict(Enum):
    """What the conditions of one device mean."""

    UNDECIDED = auto()
    BOUND = auto()
    FAILED = auto()


class Attachment(Struct, frozen=True):
    """A device that a claim has, or had, by one allocation.

    Attributes:
        claim: whose it is.
        device: with binding conditions.
        since: ``allocationTimestamp`` of the allocation.
    """

    claim: ObservedClaim
    device: ObservedDevice
    since: str = ""

    @property
    def place(self) -> Place:
        """Return the device, or the share of it."""
        return Place(self.device.pool, self.device.name, self.device.share_id)

    def is_as(self, other: Attachment) -> bool:
        """Return whether both are of one allocation."""
        return (self.claim.uid, self.place, self.since) == (other.claim.uid, other.place, other.since)


class Read(Struct, frozen=True):
    """A claim as it was just read.

    Attributes:
        attachments: its devices of our driver that have binding conditions.
        entries: ``status.devices`` of our driver, by place.
        resource_version: of the claim.
    """

    attachments: Mapping[Place, Attachment]
    entries: Mapping[Place, Mapping[str, Any]]
    resource_version: str

    def verdict(self, place: Place) -> Verdict:
        """Return what the conditions of a device of :attr:`attachments` mean."""
        device = self.attachments[place].device
        true = {
            item.get("type") for item in self.entries.get(place, {}).get("conditions") or ()
            if item.get("status") == "True"
        }  # fmt: skip
        if true & set(device.binding_failure_conditions):
            return Verdict.FAILED
        return Verdict.BOUND if set(device.binding_conditions) <= true else Verdict.UNDECIDED


def attachments(claim: v1.ResourceClaim, driver: str) -> Iterator[Attachment]:
    """Yield the devices of a claim that must be bound before its pod is."""
    allocation = claim.status.allocation
    since = (allocation.allocation_timestamp if allocation is not None else None) or ""
    found = observed_claim(claim, our_devices(claim, driver))
    yield from (Attachment(found, device, since) for device in found.devices if device.binding_conditions)


def read(raw: Mapping[str, Any], uid: str, driver: str) -> Read | None:
    """Read a claim object; None where its UID is another one, or it is invalid."""
    metadata = raw.get("metadata") or {}
    if metadata.get("uid") != uid:
        return None
    try:
        claim = v1.ResourceClaim.model_validate(raw)
    except ValidationError:
        return None
    entries = {
        Place(entry.get("pool", ""), entry.get("device", ""), entry.get("shareID")): entry
        for entry in (raw.get("status") or {}).get("devices") or ()
        if entry.get("driver") == driver
    }
    found = {item.place: item for item in attachments(claim, driver)}
    return Read(found, entries, str(metadata.get("resourceVersion") or ""))


def device_statuses(known: Read, place: Place, driver: str, *, failure: str | None, now: str) -> list[dict[str, Any]]:
    """Return the controller's entries of ``status.devices`` once one more device is decided; for server-side apply.

    Those of the other devices are applied again: what an apply leaves out is removed.

    Args:
        known: the claim as it is.
        place: of the device.
        driver: its driver.
        failure: why binding has failed; None: it is bound.
        now: time of the transition.
    """
    return [
        _entry(each, driver, conditions)
        for each, attachment in known.attachments.items()
        if (conditions := _decided(attachment.device, failure, now) if each == place else _existing(known, each))
    ]


def _entry(place: Place, driver: str, conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    entry = {"driver": driver, "pool": place.pool, "device": place.device, "conditions": list(conditions)}
    return entry if place.share_id is None else {**entry, "shareID": place.share_id}


def _decided(device: ObservedDevice, failure: str | None, now: str) -> list[dict[str, Any]]:
    types = device.binding_conditions if failure is None else device.binding_failure_conditions
    reason, message = ("Bound", "") if failure is None else ("BindingFailed", failure[:_MESSAGE_MAX])
    return [
        {"type": each, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
        for each in types
    ]


def _existing(known: Read, place: Place) -> list[dict[str, Any]]:
    device = known.attachments[place].device
    ours = {*device.binding_conditions, *device.binding_failure_conditions}
    conditions = known.entries.get(place, {}).get("conditions") or ()
    return [dict(item) for item in conditions if item.get("type") in ours]
