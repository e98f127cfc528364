"""Whether a claim may have a device now: device reservations, and claims that were reallocated."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.errors import DraKitError, KubeError, NotFound, TransientError
from dra_kit.kubelet.device_use import KubeletCheckpoint
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.reader import AllocatedClaim, ClaimApi, still_holds
from dra_kit.node.locks import HeldLock, NamedLocks
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.schema import CorruptRow
from dra_kit.node.state.store import StateStore

logger: logging.Logger = logging.getLogger(__name__)
RELEASE_WAIT: Final = 5.0
"""Seconds that a claim waits for a device that another claim is releasing."""
Device = tuple[str, str]


class NodeDeviceReservations:
    """Tracks which claim has which device, from the records and the work in progress.

    When a pod is force-deleted, the pod and its claim disappear from the API server at once, while its containers may
    run for a long time. That they have stopped is known only from the kubelet's unprepare, from a reboot of the node
    or, if the kubelet has forgotten the claim, from :class:`dra_kit.node.claims.recovery.OrphanReleaser`.

    ``release`` releases a claim whose lock is held.
    """

    def __init__(
        self,
        driver: str,
        *,
        api: ClaimApi,
        store: StateStore,
        boot_id: str,
        claims: NamedLocks,
        devices: NamedLocks,
        release: Callable[[ClaimRecord], Awaitable[None]],
    ) -> None:
        self._driver = driver
        self._api = api
        self._store = store
        self._boot_id = boot_id
        self._claims = claims
        self._devices = devices
        self._release = release
        self._taken: dict[Device, ClaimReference] = {}

    def hold(self, claim: AllocatedClaim) -> ReservedDevices:
        """Hold the devices of the claim while it is being prepared; the caller holds the claim's lock.

        Raises:
            TransientError: another claim has one of them; names both claims.
        """
        return ReservedDevices(self, claim)

    async def take(self, device: Device, claim: ClaimReference) -> HeldLock:
        """Hold one device exclusively; the caller returns the lock to :meth:`give_up`.

        Raises:
            TransientError: another claim has it; names both claims.
        """
        holding = self._devices.try_hold("/".join(device))
        if not await holding.take():
            raise _double_allocation(device, claim, "being prepared", self._taken.get(device))
        self._taken[device] = claim
        try:
            holders = self._store.holders(*device)  # first: reading is what finds corrupt rows
            for row in self._store.corrupt_claims():
                await self._check_corrupt(device, row, claim)
            for holder in holders:
                if holder.uid != claim.uid:
                    await self._free(device, holder, claim)
        except BaseException:
            self.give_up(device, holding)
            raise
        return holding

    def give_up(self, device: Device, holding: HeldLock) -> None:
        """Release the lock of a device."""
        del self._taken[device]
        holding.give_up()

    async def _free(self, device: Device, holder: ClaimRecord, claim: ClaimReference) -> None:
        if holder.phase != "releasing" and await self._is_live(holder.reference, device, claim):
            raise _double_allocation(device, claim, "prepared", holder.reference)
        async with self._released_alone(holder.reference, device, claim):
            record = self._store.claim(holder.uid)
            if record is None or not record.has(*device):
                return
            if record.phase != "releasing":  # otherwise the release was begun, and is finished here
                # it may have been allocated again while this waited for its lock
                if await self._is_live(record.reference, device, claim):
                    raise _double_allocation(device, claim, "prepared", holder.reference)
                if record.boot_id == self._boot_id:
                    raise _in_use(device, claim, holder.reference)
                logger.warning("stale claim released", extra={"stale": str(holder.reference), "device": device[1]})
            try:
                await self._release(record)
            except DraKitError as error:
                if record.reference.namespace != claim.namespace:
                    error.public = (
                        f"device {'/'.join(device)} of claim {claim} cannot be released for another claim yet; the "
                        "driver's log has the reason, and the kubelet tries again"
                    )
                raise

    @asynccontextmanager
    async def _released_alone(
        self, holder: ClaimReference, device: Device, claim: ClaimReference
    ) -> AsyncIterator[None]:
        """Hold the lock of a claim that is over.

        Raises:
            TransientError: another task or process holds it for too long.
        """
        lock = self._claims.hold(holder.uid)
        try:
            try:
                async with asyncio.timeout(RELEASE_WAIT):  # its holder may be waiting for the lock of this claim
                    await lock.take()
            except TimeoutError:
                raise _about_holder(
                    device,
                    claim,
                    holder,
                    "is still being released for {holder}, which no longer needs it; the kubelet tries again",
                    code="device-in-release",
                ) from None
            yield
        finally:
            lock.give_up()

    async def _check_corrupt(self, device: Device, row: CorruptRow, claim: ClaimReference) -> None:
        """Reject the devices of a claim with a corrupt record: its boot and its devices are unknown."""
        holder, names = row.claim, {row.claim, row.named} - {None}
        if holder is None or claim in names:  # its own record, which is rewritten
            return
        for name in sorted(filter(None, names), key=str):
            if await self._is_live(name, device, claim):
                raise _double_allocation(device, claim, "prepared", name)
        if self._store.held(holder.uid, *device):
            text = f"device {'/'.join(device)} of claim {claim} was prepared for a claim with a corrupt record"
            remedy = "delete that claim's pod: the device is free when the kubelet has released the claim"
            raise TransientError(
                f"{text}, its readable part names {holder} with UID {holder.uid}; {remedy}",
                code="corrupt-record",
                public=f"{text}; the driver's log names it: {remedy}",
            )

    async def _is_live(self, holder: ClaimReference, device: Device, claim: ClaimReference) -> bool:
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, holder.name, holder.namespace)
        except NotFound:
            return False
        except KubeError as error:
            raise _about_holder(
                device,
                claim,
                holder,
                "is prepared for {holder}, and the API server does not answer whether that claim still exists",
                code=error.code,
                reason=f": {error}",
            ) from error
        return still_holds(raw, holder.uid, self._driver, [device])


class ReservedDevices:
    """The devices that a claim has exclusively, held as a context manager; a class, not a generator, for speed."""

    __slots__ = ("_claim", "_exclusive", "_held")

    def __init__(self, exclusive: NodeDeviceReservations, claim: AllocatedClaim) -> None:
        self._exclusive = exclusive
        self._claim = claim
        self._held: list[tuple[Device, HeldLock]] = []

    async def __aenter__(self) -> None:
        results = self._claim.results
        devices = {(item.pool, item.device) for item in results if not item.admin_access and not item.share_id}
        try:
            for device in sorted(devices):
                self._held.append((device, await self._exclusive.take(device, self._claim.reference)))
        except BaseException:
            self._give_up()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._give_up()

    def _give_up(self) -> None:
        for device, holding in self._held:
            self._exclusive.give_up(device, holding)


def _double_allocation(
    device: Device, claim: ClaimReference, state: str, holder: ClaimReference | None
) -> TransientError:
    return _about_holder(
        device,
        claim,
        holder,
        f"is still {state} for {{holder}}, to which it is allocated too; delete the pods of one of the two claims",
        code="double-allocation",
    )


def _in_use(device: Device, claim: ClaimReference, holder: ClaimReference) -> TransientError:
    return _about_holder(
        device,
        claim,
        holder,
        "is still prepared for {holder}, which was deleted or reallocated and whose container may still run; it is "
        "free when the kubelet has released that claim, after a reboot, or when the claim has been gone for "
        "--orphan-after",
        code="device-in-use",
    )


def _about_holder(
    device: Device, claim: ClaimReference, holder: ClaimReference | None, text: str, *, code: str, reason: str = ""
) -> TransientError:
    """Return an error that names the holder of a device; in another namespace the holder is only "another claim".

    Args:
        device: the device that ``claim`` needs.
        claim: the claim that needs it.
        holder: None if only the driver's other process on this node knows it.
        text: the message, with ``{holder}``.
        code: of the error.
        reason: details that users in another namespace do not read.
    """
    subject = f"device {'/'.join(device)} of claim {claim} "
    name = f"claim {holder}" if holder is not None else "a claim by the driver's other process on this node"
    full = f"{subject}{text.format(holder=name)}{reason}"
    near = holder is None or holder.namespace == claim.namespace
    return TransientError(full, code=code, public=full if near else f"{subject}{text.format(holder='another claim')}")


class ReallocationGuard:
    """Protects what a claim was prepared with, for its containers, when the kubelet asks with another allocation.

    A force-deleted pod releases its claim at once, and the next pod may get the same claim with other devices. A
    restarted kubelet has forgotten that the claim is prepared, and asks for it although containers of the first pod may
    still run (Kubernetes 1.37, ``pkg/kubelet/cm/dra/manager.go``). It counts both pods as users of the claim, and
    releases the claim only when both are gone. So its checkpoint is checked, too: a pod that is listed there, but that
    the claim is no longer reserved for, may have running containers. Nothing prepared in another boot is still running.

    ``after`` are the seconds from the first call with another allocation until what was prepared is released anyway.
    """

    def __init__(
        self,
        boot_id: str,
        checkpoint: KubeletCheckpoint,
        *,
        after: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._boot_id = boot_id
        self._checkpoint = checkpoint
        self._after = after
        self._clock = clock
        self._since: dict[str, tuple[str, float]] = {}

    def check(self, before: ClaimRecord, claim: AllocatedClaim) -> None:
        """Check whether a recorded preparation may be released, so that the claim can be prepared as allocated now.

        Raises:
            TransientError: a container may still use it (code ``device-in-use``).
        """
        if before.phase == "releasing" or before.boot_id != self._boot_id:
            return
        allocation, since = self._since.get(before.uid, ("", 0.0))
        if allocation != before.allocation:
            since = self._clock()
            self._since[before.uid] = before.allocation, since
        if self._clock() - since >= self._after and not self._may_run(claim):
            return
        devices = ", ".join(f"{item.pool}/{item.device}" for item in before.devices)
        raise TransientError(
            f"claim {claim.reference} was reallocated after it was prepared with {devices}, which a container may "
            "still use; it is prepared with its new allocation when the kubelet has released it (delete the pods that "
            "use it), after a reboot, or after --orphan-after",
            code="device-in-use",
        )

    def _may_run(self, claim: AllocatedClaim) -> bool:
        """Return whether the kubelet lists a pod of the claim from before the claim was reallocated."""
        pods = self._checkpoint.pods().get(claim.reference.uid)
        return pods is not None and not (pods and pods <= {item.uid for item in claim.status.reserved_for})

    def forget(self, reference: ClaimReference) -> None:
        """Forget a released claim."""
        self._since.pop(reference.uid, None)
