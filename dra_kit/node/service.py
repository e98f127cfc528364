"""The node's answers to the kubelet: claims prepared and released, one at a time each, durably and repeatably."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any, Final, TypeVar

from dra_kit.author.calling import call
from dra_kit.author.claim import ClaimReference
from dra_kit.author.driver import Driver
from dra_kit.author.prepared import DeviceMetadata, DeviceStatus
from dra_kit.author.preparer import Preparer
from dra_kit.errors import DraKitError, InternalError, NotFound, PrepareError, TransientError
from dra_kit.kube.resources import RESOURCE_CLAIMS
from dra_kit.node.claims import AllocatedClaim, Getter, fetch, still_holds
from dra_kit.node.effects import EffectEngine
from dra_kit.node.files import ClaimFiles
from dra_kit.node.locks import Locks
from dra_kit.node.preparation import Preparation
from dra_kit.node.records import ClaimRecord
from dra_kit.node.status import updated
from dra_kit.node.store import Store
from dra_kit.plugin.service import ClaimRef, PreparedDevice
from dra_kit.process.logging import log_context
from dra_kit.resource import v1

T = TypeVar("T")
logger = logging.getLogger(__name__)

# The kubelet gives up after 45 s (Kubernetes 1.37, cm/dra/plugin); an answer in time is worth more than a late one.
DEADLINE: Final = 40.0

Answer = list[PreparedDevice]
Failed = Callable[[ClaimReference, DraKitError], None]
Prepared = Callable[[ClaimRecord], None]


class ClaimService:
    """Implements :class:`dra_kit.plugin.service.NodeService`.

    Args:
        driver: whose claims these are.
        api: reads claims.
        store: the durable records.
        files: the CDI and metadata files of claims.
        preparation: runs the author's code.
        effects: undone when a claim is released.
        failed: told of each claim that could not be prepared, for Events.
        prepared: told of each claim that was prepared anew, for status and metadata.
        deadline: seconds after which the kubelet is answered, whatever still runs.
    """

    def __init__(
        self,
        driver: Driver[Any, Any],
        *,
        api: Getter,
        store: Store,
        files: ClaimFiles,
        preparation: Preparation,
        effects: EffectEngine,
        failed: Failed,
        prepared: Prepared,
        deadline: float = DEADLINE,
    ) -> None:
        self._driver = driver
        self._api = api
        self._store = store
        self._files = files
        self._preparation = preparation
        self._effects = effects
        self._failed = failed
        self._prepared = prepared
        self._deadline = deadline
        self._claims = Locks()
        self._shared = Locks()  # devices, or the driver as a whole: Driver(concurrency=…)
        self._preparing: dict[str, int] = {}
        self._taken_by: dict[tuple[str, str], ClaimReference] = {}
        self._running: set[asyncio.Task[Any]] = set()

    # -- what the kubelet calls

    async def prepare(self, claims: Sequence[ClaimRef]) -> dict[str, Sequence[PreparedDevice] | Exception]:
        """See :class:`dra_kit.plugin.service.NodeService`."""
        answers = await asyncio.gather(*(self._answer_prepare(claim) for claim in claims))
        return dict(zip((claim.uid for claim in claims), answers, strict=True))

    async def unprepare(self, claims: Sequence[ClaimRef]) -> dict[str, Exception | None]:
        """See :class:`dra_kit.plugin.service.NodeService`."""
        answers = await asyncio.gather(*(self._answer_unprepare(claim) for claim in claims))
        return dict(zip((claim.uid for claim in claims), answers, strict=True))

    async def _answer_prepare(self, claim: ClaimRef) -> Answer | Exception:
        reference = ClaimReference(claim.namespace, claim.name, claim.uid)
        with log_context(claim=str(reference), claim_uid=reference.uid):
            try:
                return await self._in_time(self._prepare(reference), "prepared")
            except Exception as error:  # noqa: BLE001 - every claim gets an answer of its own
                problem = self._told(error, "claim not prepared")
                self._failed(reference, problem)
                return problem

    async def _answer_unprepare(self, claim: ClaimRef) -> Exception | None:
        reference = ClaimReference(claim.namespace, claim.name, claim.uid)
        with log_context(claim=str(reference), claim_uid=reference.uid):
            try:
                await self._in_time(self._unprepare(reference), "released")
            except Exception as error:  # noqa: BLE001 - every claim gets an answer of its own
                return self._told(error, "claim not released")
            return None

    def _told(self, error: Exception, message: str) -> DraKitError:
        cause = error.__cause__
        bug = not isinstance(error, DraKitError) or isinstance(error, InternalError)
        trace = error if bug else cause if not isinstance(cause, DraKitError | None) else None
        problem = error if isinstance(error, DraKitError) else InternalError(f"{type(error).__name__}: {error}")
        logger.error(message, extra={"error": str(problem), "code": problem.code}, exc_info=trace)
        return problem

    async def _in_time(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """The result of the work, or an error when the deadline passes; the work then ends in its own time.

        It keeps the claim's lock until it has ended: a call that hangs holds up nobody else.
        """
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait({task}, timeout=self._deadline)
        if done:
            return task.result()
        task.cancel()
        raise TransientError(
            f"not {what} within {self._deadline:g} s; what is still running is rolled back when it ends, then the "
            "kubelet tries again",
            code="deadline",
        )

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at here, so that a late failure is no "never retrieved" warning

    # -- prepare

    async def _prepare(self, reference: ClaimReference) -> Answer:
        epoch = self._store.epoch(reference.uid)
        self._preparing[reference.uid] = self._preparing.get(reference.uid, 0) + 1
        try:
            claim = await fetch(self._api, reference, self._driver.name)
            async with self._claims.hold(reference.uid) as waited:
                if waited:  # what was fetched before the wait may be old by now
                    claim = await fetch(self._api, reference, self._driver.name)
                return await self._prepare_alone(claim, epoch)
        finally:
            await self._attempt_ended(reference.uid)

    async def _attempt_ended(self, uid: str) -> None:
        self._preparing[uid] -= 1
        if not self._preparing[uid]:
            del self._preparing[uid]
            if self._store.epoch(uid):  # no older work is left that the epoch could tell apart
                await self._store.forget_epochs([uid])

    async def _prepare_alone(self, claim: AllocatedClaim, epoch: int) -> Answer:
        record = self._store.claim(claim.reference.uid)
        if record is not None and (record.phase == "releasing" or record.allocation != claim.allocation):
            await self._release(record)
            record = None
        if record is not None and record.boot_id == self._preparation.boot_id:
            await self._write_files(record)
            return record.answer()
        async with AsyncExitStack() as stack:
            for name in self._also_locked(claim):
                await stack.enter_async_context(self._shared.hold(name))
            stack.enter_context(self._taken(claim))
            await self._refuse_double_allocation(claim)
            record = await self._prepare_anew(claim, epoch)
        return record.answer()

    def _also_locked(self, claim: AllocatedClaim) -> list[str]:
        if self._driver.concurrency == "driver":
            return ["driver"]
        if self._driver.concurrency == "device":
            return sorted({f"{result.pool}/{result.device}" for result in claim.results})
        return []

    async def _prepare_anew(self, claim: AllocatedClaim, epoch: int) -> ClaimRecord:
        try:
            record = await self._preparation.prepare(claim)
            await self._store.put_claim(record, epoch=epoch)
        except BaseException:
            # also when cancelled at the deadline: what was begun is undone before the claim's lock is given up
            await self._roll_back(claim.reference)
            raise
        await self._write_files(record)
        logger.info(
            "claim prepared",
            extra={"devices": ",".join(f"{item.pool}/{item.device}" for item in record.devices)},
        )
        self._prepared(record)
        return record

    async def _roll_back(self, reference: ClaimReference) -> None:
        try:
            await self._effects.release(reference)
        except DraKitError as error:
            logger.warning("roll-back incomplete", extra={"error": str(error), "code": error.code})

    async def _write_files(self, record: ClaimRecord) -> None:
        await asyncio.to_thread(self._files.write, record)

    @contextmanager
    def _taken(self, claim: AllocatedClaim) -> Iterator[None]:
        """Keeps the claim's devices for it while its record is not written yet.

        Raises:
            TransientError: when another claim is being prepared with one of them.
        """
        mine = {(item.pool, item.device) for item in _exclusive(claim)}
        for device in mine:
            if (other := self._taken_by.get(device)) is not None:
                raise _double_allocation(device, claim.reference, f"being prepared for claim {other}")
        self._taken_by.update(dict.fromkeys(mine, claim.reference))
        try:
            yield
        finally:
            for device in mine:
                del self._taken_by[device]

    async def _refuse_double_allocation(self, claim: AllocatedClaim) -> None:
        """A device that another live claim has to itself is not prepared for this one.

        Force-deleted pods and dead nodes can leave a claim behind that the control plane has forgotten: then it is
        released here.

        Raises:
            TransientError: naming both claims.
        """
        for result in _exclusive(claim):
            device = (result.pool, result.device)
            for holder in self._store.holders(*device):
                if holder.uid == claim.reference.uid:
                    continue
                if self._claims.held(holder.uid) or await self._is_live(holder, *device):
                    raise _double_allocation(device, claim.reference, f"prepared for claim {holder.reference}")
                logger.warning("stale claim released", extra={"stale": str(holder.reference), "device": result.device})
                async with self._claims.hold(holder.uid):
                    await self._release(holder)

    async def _is_live(self, holder: ClaimRecord, pool: str, device: str) -> bool:
        try:
            raw = await self._api.get(RESOURCE_CLAIMS, holder.name, holder.namespace)
        except NotFound:
            return False
        return still_holds(raw, holder.uid, self._driver.name, pool, device)

    # -- unprepare

    async def _unprepare(self, reference: ClaimReference) -> None:
        if reference.uid in self._preparing:
            await self._store.end_epoch(reference.uid)
        async with self._claims.hold(reference.uid):
            record = self._store.claim(reference.uid)
            if record is not None:
                await self._release(record)
                logger.info("claim released")
            elif self._store.effects_of(reference.uid):
                await self._effects.release(reference)

    async def _release(self, record: ClaimRecord) -> None:
        """Undo everything that a record stands for; the record goes last, so that a crash leaves it to be finished."""
        imperative = type(self._driver.preparer).unprepare is not Preparer.unprepare
        if imperative or self._store.effects_of(record.uid):
            await self._store.begin_release(record.uid)
            await self._remove_files(record)
            await self._effects.release(record.reference)
            if imperative:
                await self._ask_author(record)
        else:
            await self._remove_files(record)
        await self._store.forget_claim(record.uid)

    async def _remove_files(self, record: ClaimRecord) -> None:
        await asyncio.to_thread(self._files.remove, record)

    async def _ask_author(self, record: ClaimRecord) -> None:
        preparer = self._driver.preparer
        await self._preparation.started.wait()
        try:
            await call(preparer.unprepare, record.reference, [device.state for device in record.devices])
        except PrepareError:
            raise
        except Exception as error:
            raise TransientError(
                f"{type(preparer).__name__}.unprepare raised {type(error).__name__}: {error}; the claim is kept and "
                "released when the kubelet asks again",
                code="author-error",
            ) from error

    # -- facts that come later

    async def update(
        self, pool: str, device: str, status: DeviceStatus | None, metadata: DeviceMetadata | None
    ) -> None:
        """Keep and publish what became known of a device after it was prepared, for every claim that has it."""
        for known in self._store.claims():
            if all((item.pool, item.device) != (pool, device) for item in known.devices):
                continue
            with log_context(claim=str(known.reference), claim_uid=known.uid):
                async with self._claims.hold(known.uid):
                    record = self._store.claim(known.uid)
                    if record is None or record.phase != "prepared":
                        continue
                    record = updated(record, pool, device, status, metadata)
                    await self._store.put_claim(record, epoch=self._store.epoch(record.uid))
                    await self._write_files(record)
                    self._prepared(record)

    # -- the life of the process

    def sweep(self) -> None:
        """Remove files that no record stands for; before the first call is answered."""
        self._files.sweep({record.uid for record in self._store.claims()})

    async def resume(self) -> None:
        """Finish what the last process left half done, and make missing files again."""
        for known in self._store.claims():
            with log_context(claim=str(known.reference), claim_uid=known.uid):
                async with self._claims.hold(known.uid):
                    with suppress(DraKitError):  # logged where it happened; done when the kubelet asks
                        await self._resume(known.uid)
        prepared = {record.uid for record in self._store.claims()}
        for effect in self._store.effects():
            for claim in effect.claims:
                if claim.uid not in prepared and claim.uid not in self._preparing:
                    async with self._claims.hold(claim.uid):
                        await self._roll_back(claim)

    async def _resume(self, uid: str) -> None:
        record = self._store.claim(uid)
        if record is not None and record.phase == "releasing":
            await self._release(record)
        elif record is not None and record.boot_id == self._preparation.boot_id:
            await self._write_files(record)

    async def drain(self, grace: float) -> None:
        """Wait for what runs, at most ``grace`` seconds, then give up on it."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=grace)
        for task in list(self._running):
            task.cancel()


def _exclusive(claim: AllocatedClaim) -> list[v1.DeviceRequestAllocationResult]:
    return [item for item in claim.results if not item.admin_access and item.share_id is None]


def _double_allocation(device: tuple[str, str], claim: ClaimReference, state: str) -> TransientError:
    return TransientError(
        f"device {device[0]}/{device[1]} of claim {claim} is still {state}, which is allocated too; delete the pods of "
        "one of the two claims",
        code="double-allocation",
    )
