"""Binding conditions (KEP-5007): one device of one claim is bound when it is allocated, and released afterwards.

The conditions, ``status.devices[].conditions``, are read, made and written here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Final, Literal

from msgspec import Struct, field
from pydantic import ValidationError

from dra_kit.author.calls import call, describe_error, error_fields, unexpected_exc_info
from dra_kit.author.controller import DeviceBinder, ObservedClaim, ObservedDevice
from dra_kit.client.api import Client
from dra_kit.client.claim_writes import write_device_statuses
from dra_kit.client.events import EventRecorder
from dra_kit.client.informer import wait_for_event
from dra_kit.client.resources import PODS, RESOURCE_CLAIMS
from dra_kit.controller.announcer import is_pod, reference_to
from dra_kit.controller.claim_follower import ClaimFollower, ClaimSubscription
from dra_kit.controller.claim_transitions import ClaimChange, ClaimTransition, observed_claim, our_devices
from dra_kit.errors import Conflict, KubeError, NotFound, NotYet, PermanentError
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.process.logging import log_context

logger: logging.Logger = logging.getLogger(__name__)
RETRY: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds until a failed call of the author's code or the API server is retried; the last one repeats."""
AT_ONCE: Final = 32
"""Calls of the author's code that are under way at once."""


class DeviceHolders:
    """Which claim holds which device; claims with admin access neither hold nor wait. Belongs to one event loop."""

    def __init__(self) -> None:
        self._holders: dict[DevicePlace, str] = {}
        self._freed = asyncio.Condition()

    def restore(self, attachment: DeviceAttachment) -> None:
        """Note that a claim has the device already."""
        if not attachment.device.admin_access:
            self._holders.setdefault(attachment.place, attachment.claim.uid)

    async def take(self, attachment: DeviceAttachment) -> None:
        """Wait until no other claim holds the device, and take it."""
        if attachment.device.admin_access:
            return
        uid = attachment.claim.uid
        async with self._freed:
            await self._freed.wait_for(lambda: self._holders.get(attachment.place, uid) == uid)
            self._holders[attachment.place] = uid

    async def free(self, attachment: DeviceAttachment) -> None:
        """Note that it was released."""
        async with self._freed:
            if self._holders.get(attachment.place) == attachment.claim.uid:
                del self._holders[attachment.place]
                self._freed.notify_all()


class BindingContext(Struct, frozen=True):
    """What all workers share: ``turns`` limits running calls of the author, ``decided`` gets the failure or None."""

    binder: DeviceBinder[Any]
    conditions: BindingConditionWriter
    decided: Callable[[DeviceAttachment, str | None], None]
    retry: tuple[float, ...]
    holders: DeviceHolders = field(default_factory=DeviceHolders)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))


class BindingWorker:
    """Works on one device of one claim until nothing is left to do."""

    def __init__(self, shared: BindingContext, attachment: DeviceAttachment) -> None:
        self._shared = shared
        self._attachment = attachment
        self._released = False  # whether it was released
        self._gone: DeviceAttachment | None = None
        self._look = True
        self._wake = asyncio.Event()
        self._logged = ""

    def look(self) -> None:
        """Read the claim again: it has changed."""
        self._look = True
        self._wake.set()

    def release(self, gone: DeviceAttachment) -> None:
        """Release a device that was deallocated; the claim may have it again by now."""
        if self._attachment.since <= gone.since:  # else it was seen without a call, and is over
            self._gone = self._gone or gone
        self.look()

    async def run(self) -> None:
        """Bind and release, until nothing is left to do."""
        attempt = 0
        while self._gone is not None or self._look:
            self._wake.clear()
            again = await self._round()
            if again is None:
                attempt = 0
            elif again:
                # nothing has changed; call the author's code less and less often
                delay = self._shared.retry[min(attempt, len(self._shared.retry) - 1)]
                attempt += 1
                self._look = True
                await wait_for_event(self._wake, delay)

    async def _round(self) -> bool | None:
        """Do the next step; return whether to try again later, or None if something was done."""
        if self._gone is not None:
            return await self._release(self._gone)
        self._look = False
        try:
            known = await self._shared.conditions.read(self._attachment.claim)
        except KubeError as error:
            return self._failed("claim not read", error)
        place = self._attachment.place
        if known is None or place not in known.attachments:
            return None  # deallocated: the follower of the claims calls release
        found = known.attachments[place]
        before, self._attachment = self._attachment, found
        verdict = known.verdict(place)
        released, self._released = self._released, False
        if not released and not found.is_as(before):
            self._gone = before  # the deallocation in between was missed
            return None
        if verdict is BindingVerdict.FAILED:
            return True  # it will be deallocated, and may be allocated again before that is noticed
        if verdict is BindingVerdict.BOUND:
            return None
        return await self._bind(found)

    async def _bind(self, attachment: DeviceAttachment) -> bool | None:
        failure: str | None = None
        try:
            await self._unless_gone(asyncio.ensure_future(self._asked(attachment)))
        except NotYet as error:
            return self._failed("device is not bound yet", error)
        except PermanentError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything
            return self._failed("bind failed", error)
        if self._gone is not None:
            return None
        try:
            if await self._shared.conditions.write(attachment, failure=failure):
                self._logged = ""
                self._shared.decided(attachment, failure)
        except KubeError as error:
            return self._failed("binding conditions not written", error)
        self._look = True  # read the current state again before the next step
        return None

    async def _asked(self, attachment: DeviceAttachment) -> None:
        await self._shared.holders.take(attachment)
        await self._call(self._shared.binder.bind, attachment)

    async def _unless_gone(self, task: asyncio.Future[None]) -> None:
        """Wait for ``bind``; cancel it if the device is deallocated meanwhile."""
        try:
            while not task.done() and self._gone is None:
                woken: asyncio.Future[Any] = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait((task, woken), return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                self._wake.clear()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._gone is None:
            task.result()

    async def _release(self, gone: DeviceAttachment) -> bool | None:
        try:
            if await self._is_bound_again(gone):
                self._gone = None
                return None
            await self._call(self._shared.binder.release, gone)
        except NotYet as error:
            return self._failed("device is not released yet", error)
        except PermanentError as error:
            self._failed("release failed, and is not tried again", error)
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything
            return self._failed("release failed", error)
        await self._shared.holders.free(gone)
        self._released = True
        self._gone, self._logged = None, ""
        return None

    async def _is_bound_again(self, gone: DeviceAttachment) -> bool:
        """Return whether the claim has the device by another allocation, and it was released before that was bound."""
        known = await self._shared.conditions.read(gone.claim)
        now = known.attachments.get(gone.place) if known is not None else None
        return (
            known is not None
            and now is not None
            and not now.is_as(gone)
            and known.verdict(gone.place) is BindingVerdict.BOUND
        )

    async def _call(self, method: Callable[..., Awaitable[None] | None], attachment: DeviceAttachment) -> None:
        async with self._shared.turns:
            await call(method, attachment.claim, attachment.device)

    def _failed(self, message: str, error: Exception) -> bool:
        """Log an error; return True: the worker must try again."""
        level = logging.INFO if isinstance(error, NotYet) else logging.ERROR
        self._logged = _log(level, message, error, self._shared.binder, last=self._logged)
        return True


def _log(level: int, message: str, error: Exception, binder: DeviceBinder[Any], *, last: str, **fields: object) -> str:
    """Log an error, at DEBUG if it is the same as the last one; return its description."""
    module, text = type(binder).__module__, describe_error(error)
    known = text == last
    trace = None if known else unexpected_exc_info(error, module)
    extra = {**error_fields(error, module), **fields}
    logger.log(logging.DEBUG if known else level, message, extra=extra, exc_info=trace)
    return text


_OVER: Final = (ClaimChange.DEALLOCATED, ClaimChange.DELETED)


class DeviceBinding:
    """Binds and releases devices; an active part of the controller."""

    name = "binding"

    def __init__(
        self,
        driver: str,
        binder: DeviceBinder[Any],
        client: Client,
        follower: ClaimFollower,
        recorder: EventRecorder,
        *,
        retry: tuple[float, ...] = RETRY,
    ) -> None:
        self._driver = driver
        self._binder = binder
        self._client = client
        self._follower = follower
        self._recorder = recorder
        self._retry = retry

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; each run retries the devices without a verdict."""
        conditions = BindingConditionWriter(self._client, self._driver)
        shared = BindingContext(self._binder, conditions, self._decided, self._retry)
        with self._follower.subscribed() as subscription:
            held = [item for claim in subscription.claims for item in find_attachments(claim, self._driver)]
            await self._resume([(item.claim, item.device) for item in held])
            ready.set()
            async with asyncio.TaskGroup() as group:
                await self._follow(subscription, held, _Workers(group, shared))

    async def _follow(
        self, subscription: ClaimSubscription, held: Iterable[DeviceAttachment], workers: _Workers
    ) -> None:
        for step in subscription.recent:
            if step.change in _OVER:
                self._take(step, workers)  # the result of other changes is in ``held``
        for item in held:
            workers.shared.holders.restore(item)
            workers.of(item).look()
        while True:
            self._take(await subscription.steps.get(), workers)

    def _take(self, step: ClaimTransition, workers: _Workers) -> None:
        for item in find_attachments(step.claim, self._driver):
            if step.change in _OVER:
                workers.of(item).release(item)
            else:
                workers.of(item).look()

    async def _resume(self, held: Sequence[tuple[ObservedClaim, ObservedDevice]]) -> None:
        """Call the binder's ``resume`` with the devices that claims hold, until it succeeds."""
        if type(self._binder).resume is DeviceBinder.resume:
            return
        attempt, logged = 0, ""
        while True:
            try:
                await call(self._binder.resume, held)
            except Exception as error:  # noqa: BLE001 - the author's code may raise anything
                again = self._retry[min(attempt, len(self._retry) - 1)]
                logged = _log(
                    logging.ERROR, "resume failed, no device is bound", error, self._binder, last=logged, again_in=again
                )
                attempt += 1
                await asyncio.sleep(again)
            else:
                return

    def _decided(self, attachment: DeviceAttachment, failure: str | None) -> None:
        claim, device = attachment.claim, attachment.device
        where = f" on node {claim.node}" if claim.node else ""
        what = f"device {device.name} (request {device.request}, pool {device.pool}){where}"
        fields = {"pool": device.pool, "device": device.name, "node": claim.node}
        kind: Literal["Normal", "Warning"]
        if failure is None:
            logger.info("device is bound", extra=fields)
            reason, kind, note = "DeviceBound", "Normal", f"Bound {what} for ResourceClaim {claim.name}"
        else:
            logger.warning("device cannot be bound", extra={**fields, "error": failure})
            reason, kind = "DeviceBindingFailed", "Warning"
            note = f"Cannot bind {what} for ResourceClaim {claim.name}: {failure}"
        identity = f"{reason} {claim.uid} {attachment.place} {attachment.since}"
        pods = (reference_to(PODS, user.name, user.uid, claim.namespace) for user in claim.consumers if is_pod(user))
        for regarding in (reference_to(RESOURCE_CLAIMS, claim.name, claim.uid, claim.namespace), *pods):
            self._recorder.record(regarding, kind, reason=reason, action="Bind", note=note, identity=identity)


class _Workers:
    """A worker for each device of each claim, while it has something to do."""

    def __init__(self, group: asyncio.TaskGroup, shared: BindingContext) -> None:
        self._group = group
        self.shared = shared
        self._workers: dict[tuple[str, DevicePlace], BindingWorker] = {}

    def of(self, attachment: DeviceAttachment) -> BindingWorker:
        """Return the worker of a device, which is started if it does not run."""
        key = (attachment.claim.uid, attachment.place)
        worker = self._workers.get(key)
        if worker is None:
            worker = self._workers[key] = BindingWorker(self.shared, attachment)
            self._group.create_task(self._run(key, worker, attachment), name=f"binding of {attachment.claim}")
        return worker

    async def _run(self, key: tuple[str, DevicePlace], worker: BindingWorker, attachment: DeviceAttachment) -> None:
        claim = attachment.claim
        with log_context(claim=str(claim), claim_uid=claim.uid):
            await worker.run()
        del self._workers[key]


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
