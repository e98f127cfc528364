"""What the driver reports about its devices in ``status.devices`` of a claim (KEP-4817), written in the background."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from dra_kit.author.model import AUTHOR_RELEASE
from dra_kit.author.prepared import DeviceStatus, Prepared
from dra_kit.client.api import Client
from dra_kit.client.claim_writes import write_device_statuses
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.errors import Conflict, Forbidden, KubeError, NotFound, PermanentError, StoreError, Unavailable
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.kubernetes.resource.validation.claim_status import validate_device_statuses
from dra_kit.node.claims.metadata import network_json
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.state.records import ClaimRecord, DeviceRecord
from dra_kit.node.state.store import StateStore

logger: logging.Logger = logging.getLogger(__name__)
RETRY: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
_LAST_WRITES: Final = 2.0  # seconds for pending writes when the process stops


class ClaimStatusWriter:
    """A part of the node process that writes the status of claims; the latest state of each claim wins.

    Entries of other drivers on the same claim stay unchanged. It needs ``patch`` and ``update`` on
    ``resourceclaims/status``, and since Kubernetes 1.36 also ``associated-node:patch`` and ``associated-node:update``
    on ``resourceclaims/driver``.

    The records are read again before a write: the driver's other process may have changed them meanwhile.
    """

    name = "status"

    def __init__(self, client: Client, driver: str, store: StateStore) -> None:
        self._client = client
        self._driver = driver
        self._store = store
        self._waiting: OrderedDict[str, ClaimRecord] = OrderedDict()
        self._resumed: dict[str, ClaimRecord] = {}
        self._wake = asyncio.Event()
        self._logged = ""

    def submit(self, record: ClaimRecord) -> None:
        """Write what the record contains about its devices; a claim without any status is never written."""
        if _has_status(record):
            self._waiting[record.uid] = record
            self._wake.set()

    def resume(self, record: ClaimRecord) -> None:
        """Write the status too, unless the claim already has it: it was prepared before."""
        if record.uid not in self._waiting:
            self.submit(record)
            if record.uid in self._waiting:
                self._resumed[record.uid] = record

    def forget(self, claim: ClaimReference) -> None:
        """Forget a released claim: nothing is reported about it any more."""
        self._waiting.pop(claim.uid, None)
        self._resumed.pop(claim.uid, None)

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; on shutdown, pending writes are tried for a short time."""
        ready.set()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._write_all()
        finally:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._write_all(), _LAST_WRITES)

    async def _write_all(self) -> None:
        failures = 0
        while self._waiting:
            uid, record = next(iter(self._waiting.items()))
            try:
                await self._write(record)
            except (Unavailable, Forbidden, Conflict):
                if uid in self._waiting:
                    self._waiting.move_to_end(uid)  # the problem may be this claim: try the others first
                failures += 1
                rounds, rest = divmod(failures, max(1, len(self._waiting)))
                if not rest:
                    await asyncio.sleep(RETRY[min(rounds, len(RETRY)) - 1])
                continue
            failures = 0
            if self._waiting.get(uid) is record:
                del self._waiting[uid]
            if self._resumed.get(uid) is record:
                del self._resumed[uid]

    async def _write(self, record: ClaimRecord) -> None:
        current = self._current(record)
        if self._resumed.get(record.uid) is record and (current is None or await self._is_reported(current)):
            return
        current = self._current(record)  # the latest record, since the last write wins
        if current is not None:
            await self._apply(current)

    def _current(self, record: ClaimRecord) -> ClaimRecord | None:
        """Return the current record; None if the claim is released or its devices have nothing more to report."""
        try:
            stored = self._store.claim(record.uid)
        except StoreError:  # unknown at the moment
            return record
        if stored is None or stored.phase != "prepared" or not _has_status(stored):
            return None
        return stored

    async def _is_reported(self, record: ClaimRecord) -> bool:
        """Return whether the claim has the status of the record or is gone; a write finds any other problem."""
        try:
            raw = await self._client.get(RESOURCE_CLAIMS, record.name, record.namespace)
        except NotFound:
            return True
        except Unavailable:
            raise
        except KubeError:
            return False
        # the API server returns unset conditions as null
        there = [
            {name: value for name, value in entry.items() if value is not None}
            for entry in raw.get("status", {}).get("devices") or ()
        ]
        return all(self._entry(device) in there for device in record.devices if device.status is not None)

    async def _apply(self, record: ClaimRecord) -> None:
        entries = [self._entry(device) for device in record.devices if device.status is not None]
        try:
            await write_device_statuses(
                self._client, ClaimReference(record.namespace, record.name, record.uid), entries, self._driver
            )
            hit(Failpoint.STATUS_WRITTEN)
        except Unavailable:
            raise
        except Conflict:
            if not await self._is_replaced(record):
                raise
        except NotFound:
            pass  # its status is not needed any more
        except KubeError as error:
            level = logging.DEBUG if str(error) == self._logged else logging.ERROR
            self._logged = str(error)
            logger.log(level, "device status not written", extra={"error": str(error), "code": error.code})
            if isinstance(error, Forbidden):  # the RBAC rules may be created a moment later, during an installation
                raise

    async def _is_replaced(self, record: ClaimRecord) -> bool:
        """Return whether the claim was deleted, or replaced by another one of the same name."""
        try:
            raw = await self._client.get(RESOURCE_CLAIMS, record.name, record.namespace)
        except NotFound:
            return True
        return bool(raw["metadata"]["uid"] != record.uid)

    def _entry(self, device: DeviceRecord) -> dict[str, Any]:
        entry: dict[str, Any] = {"driver": self._driver, "pool": device.pool, "device": device.device}
        if device.share_id is not None:
            entry["shareID"] = device.share_id
        return entry | (device.status or {})


def _has_status(record: ClaimRecord) -> bool:
    return any(device.status is not None for device in record.devices)


def status_json(status: DeviceStatus | None, before: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return a status as it is stored and sent; an unchanged condition retains the time of its last transition."""
    if status is None:
        return None
    known = {item["type"]: item for item in (before or {}).get("conditions", ())}
    result: dict[str, Any] = {}
    if status.conditions:
        result["conditions"] = []
    for condition in status.conditions:
        old = known.get(condition.type)
        now = (condition.last_transition_time or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        stays = old is not None and old["status"] == condition.status and condition.last_transition_time is None
        item: dict[str, Any] = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": old["lastTransitionTime"] if old is not None and stays else now,
        }
        if condition.observed_generation is not None:
            item["observedGeneration"] = condition.observed_generation
        result["conditions"].append(item)
    if status.data is not None:
        result["data"] = status.data
    if status.network_data is not None:
        result["networkData"] = network_json(status.network_data.model_dump())
    return result


def device_statuses(
    driver: str,
    items: Sequence[tuple[v1.DeviceRequestAllocationResult, Prepared]],
    before: Sequence[DeviceRecord | None],
) -> list[dict[str, Any] | None]:
    """Return the status that a preparer returned for each device, in the API's form; ``before`` are former records.

    Raises:
        PermanentError: it violates a rule of the API; names field, value and rule (code ``invalid-status``).
    """
    statuses = [
        status_json(prepared.status, former.status if former is not None else None)
        for (_, prepared), former in zip(items, before, strict=True)
    ]
    _check("prepare returned", driver, [(result.pool, result.device, result.share_id) for result, _ in items], statuses)
    return statuses


def has_statuses(raw: Mapping[str, Any], driver: str, record: ClaimRecord) -> bool:
    """Return whether a claim object has an entry for each device with a status in the record."""
    entries = {
        (entry.get("pool"), entry.get("device"), entry.get("shareID"))
        for entry in raw.get("status", {}).get("devices") or ()
        if entry.get("driver") == driver
    }
    return all((item.pool, item.device, item.share_id) in entries for item in record.devices if item.status is not None)


def checked_status(device: DeviceRecord, status: dict[str, Any] | None, who: str) -> dict[str, Any] | None:
    """Return a status that was reported later, after checking it; ``who`` begins the error's text.

    Raises:
        PermanentError: it violates a rule of the API.
    """
    _check(who, "driver", [(device.pool, device.device, device.share_id)], [status])
    return status


def _check(
    who: str, driver: str, devices: Sequence[tuple[str, str, str | None]], statuses: Sequence[dict[str, Any] | None]
) -> None:
    entries, results = [], []
    for (pool, device, share_id), status in zip(devices, statuses, strict=True):
        if status is not None:
            identity = {"driver": driver, "pool": pool, "device": device, "shareID": share_id}
            entries.append(v1.AllocatedDeviceStatus.model_validate(identity | status))
            results.append(v1.DeviceRequestAllocationResult.model_validate({"request": "", **identity}))
    problems = validate_device_statuses(entries, results, AUTHOR_RELEASE)
    if problems:
        raise PermanentError(
            f"{who} a status that the API rejects: {'; '.join(str(problem) for problem in problems)}",
            code="invalid-status",
        )
