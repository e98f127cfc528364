"""Conditions of the binding of a claim's devices, ``status.devices[].conditions``: read, made and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Final

from msgspec import Struct
from pydantic import ValidationError

from dra_kit.author.controller import ObservedClaim, ObservedDevice
from dra_kit.client.api import Client
from dra_kit.client.claim_writes import write_device_statuses
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.controller.claim_transitions import observed_claim, our_devices
from dra_kit.errors import Conflict, NotFound
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.objects import ClaimReference

_MESSAGE_MAX: Final = 32768  # of metav1.Condition


class DevicePlace(Struct, frozen=True):
    """A device, or the share of one, that a claim has."""

    pool: str
    device: str
    share_id: str | None


class BindingVerdict(Enum):
    """What the conditions of one device mean."""

    UNDECIDED = auto()
    BOUND = auto()
    FAILED = auto()


class DeviceAttachment(Struct, frozen=True):
    """A device that a claim has or had by one allocation, which ``since``, its ``allocationTimestamp``, identifies."""

    claim: ObservedClaim
    device: ObservedDevice
    since: str = ""

    @property
    def place(self) -> DevicePlace:
        """Return the device, or the share of it."""
        return DevicePlace(self.device.pool, self.device.name, self.device.share_id)

    def is_as(self, other: DeviceAttachment) -> bool:
        """Return whether both are of one allocation."""
        return (self.claim.uid, self.place, self.since) == (other.claim.uid, other.place, other.since)


class BindingState(Struct, frozen=True):
    """A claim that was just read: our devices with binding conditions, and our entries of ``status.devices``."""

    attachments: Mapping[DevicePlace, DeviceAttachment]
    entries: Mapping[DevicePlace, Mapping[str, Any]]
    resource_version: str

    def verdict(self, place: DevicePlace) -> BindingVerdict:
        """Return what the conditions of a device of :attr:`find_attachments` mean."""
        device = self.attachments[place].device
        true = {
            item.get("type") for item in self.entries.get(place, {}).get("conditions") or ()
            if item.get("status") == "True"
        }  # fmt: skip
        if true & set(device.binding_failure_conditions):
            return BindingVerdict.FAILED
        return BindingVerdict.BOUND if set(device.binding_conditions) <= true else BindingVerdict.UNDECIDED


def find_attachments(claim: v1.ResourceClaim, driver: str) -> Iterator[DeviceAttachment]:
    """Yield the devices of a claim that must be bound before its pod is."""
    allocation = claim.status.allocation
    since = (allocation.allocation_timestamp if allocation is not None else None) or ""
    found = observed_claim(claim, our_devices(claim, driver))
    yield from (DeviceAttachment(found, device, since) for device in found.devices if device.binding_conditions)


def read_binding_state(raw: Mapping[str, Any], uid: str, driver: str) -> BindingState | None:
    """Read a claim object; None where its UID is another one, or it is invalid."""
    metadata = raw.get("metadata") or {}
    if metadata.get("uid") != uid:
        return None
    try:
        claim = v1.ResourceClaim.model_validate(raw)
    except ValidationError:
        return None
    entries = {
        DevicePlace(entry.get("pool", ""), entry.get("device", ""), entry.get("shareID")): entry
        for entry in (raw.get("status") or {}).get("devices") or ()
        if entry.get("driver") == driver
    }
    found = {item.place: item for item in find_attachments(claim, driver)}
    return BindingState(found, entries, str(metadata.get("resourceVersion") or ""))


def device_statuses(
    known: BindingState, place: DevicePlace, driver: str, *, failure: str | None, now: str
) -> list[dict[str, Any]]:
    """Return the controller's entries of ``status.devices`` after one more decision, for server-side apply.

    Entries of other devices are included, because an apply removes what it omits. ``failure`` is None for a bound
    device.
    """
    return [
        _entry(each, driver, conditions)
        for each, attachment in known.attachments.items()
        if (conditions := _decided(attachment.device, failure, now) if each == place else _existing(known, each))
    ]


def _entry(place: DevicePlace, driver: str, conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    entry = {"driver": driver, "pool": place.pool, "device": place.device, "conditions": list(conditions)}
    return entry if place.share_id is None else {**entry, "shareID": place.share_id}


def _decided(device: ObservedDevice, failure: str | None, now: str) -> list[dict[str, Any]]:
    types = device.binding_conditions if failure is None else device.binding_failure_conditions
    reason, message = ("Bound", "") if failure is None else ("BindingFailed", failure[:_MESSAGE_MAX])
    return [
        {"type": each, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
        for each in types
    ]


def _existing(known: BindingState, place: DevicePlace) -> list[dict[str, Any]]:
    device = known.attachments[place].device
    ours = {*device.binding_conditions, *device.binding_failure_conditions}
    conditions = known.entries.get(place, {}).get("conditions") or ()
    return [dict(item) for item in conditions if item.get("type") in ours]


_ATTEMPTS: Final = 10


class BindingConditionWriter:
    """Reads and writes the binding conditions of one driver's devices.

    Needs ``get`` on resourceclaims, ``patch`` and ``update`` on resourceclaims/status and, from Kubernetes 1.36 on,
    ``arbitrary-node:patch`` and ``arbitrary-node:update`` on resourceclaims/driver.
    """

    def __init__(self, client: Client, driver: str) -> None:
        self._client = client
        self._driver = driver

    async def read(self, claim: ClaimReference) -> BindingState | None:
        """Return the current claim; None if it is gone."""
        try:
            raw = await self._client.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        except NotFound:
            return None
        return read_binding_state(raw, claim.uid, self._driver)

    async def write(self, attachment: DeviceAttachment, *, failure: str | None) -> bool:
        """Write that a device is bound, or why not; return False if the allocation is gone or already decided.

        Raises:
            KubeError: the API server refuses, or does not answer.
        """
        claim = attachment.claim
        for attempt in range(_ATTEMPTS):
            known = await self.read(claim)
            place = attachment.place
            if known is None or place not in known.attachments or not known.attachments[place].is_as(attachment):
                return False
            if known.verdict(place) is not BindingVerdict.UNDECIDED:
                return False
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            entries = device_statuses(known, place, self._driver, failure=failure, now=now)
            try:
                await write_device_statuses(
                    self._client, claim, entries, self._driver, binding=True, resource_version=known.resource_version
                )
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
            except NotFound:
                return False
            else:
                return True
        raise AssertionError
