"""The node's answers to the kubelet: prepares and releases claims, serialized per claim, durable and idempotent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Sequence
from itertools import zip_longest

from msgspec import Struct

from dra_kit.author.prepared import Prepared
from dra_kit.errors import DraKitError, NotYet
from dra_kit.kubelet.plugin_server import KubeletDevice
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.events import ClaimEvents, log_failure
from dra_kit.node.claims.files import ClaimFiles, ClaimWriter
from dra_kit.node.claims.preparer_runner import PreparerRunner
from dra_kit.node.claims.reader import AllocatedClaim, ClaimApi, ClaimReader
from dra_kit.node.claims.recovery import ClaimRecovery
from dra_kit.node.claims.release import ClaimReleaser, PrepareEpochs
from dra_kit.node.claims.reservations import NodeDeviceReservations, ReallocationGuard
from dra_kit.node.claims.status import has_statuses
from dra_kit.node.claims.updates import DeviceUpdateWriter
from dra_kit.node.deadlines import DeadlineRunner
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.locks import CallSerializer, NamedLocks, NodeLocks
from dra_kit.node.state.records import UNKNOWN_BOOT, ClaimRecord
from dra_kit.node.state.store import StateStore
from dra_kit.process.logging import log_context
from dra_kit.process.tracing import span

logger: logging.Logger = logging.getLogger(__name__)


class ClaimPreparer(Struct, frozen=True):
    """Prepares one claim at a time; has no state between calls."""

    reader: ClaimReader
    runner: PreparerRunner
    writer: ClaimWriter
    claim_locks: NamedLocks
    epochs: PrepareEpochs
    reservations: NodeDeviceReservations
    serializer: CallSerializer
    guard: ReallocationGuard
    releaser: ClaimReleaser
    events: ClaimEvents

    async def prepare(self, reference: ClaimReference, *, again: bool = False) -> ClaimRecord | None:
        """Prepare a claim, unless it is already prepared correctly, and return the stored record.

        With ``again``, the kubelet did not ask: return None for a claim that is no longer prepared.
        """
        uid, store = reference.uid, self.writer.store
        self.writer.files.check(uid)
        epoch = self.epochs.begin(uid)
        try:
            async with self.claim_locks.hold(uid):
                if again and not self._is_prepared(uid):
                    return None  # released meanwhile, and the kubelet did not ask
                # fetched only now that the claim is locked, so that the state is never older than ours
                fetching = asyncio.ensure_future(self.reader.fetch(reference))
                try:
                    await asyncio.sleep(0)  # the request is sent: what is recorded is read while the API server works
                    before, needed = store.claim_and_needs(uid)
                    claim = await fetching
                finally:
                    fetching.cancel()
                hit(Failpoint.CLAIM_FETCHED)
                with log_context(pod=claim.pods):
                    record = await self._prepare_alone(claim, before, needed, epoch, again=again)
                hit(Failpoint.PREPARED)
                return record
        finally:
            await self.epochs.over(uid)

    def _is_prepared(self, uid: str) -> bool:
        record = self.writer.store.claim(uid)
        return record is not None and record.phase == "prepared"

    async def _prepare_alone(
        self, claim: AllocatedClaim, before: ClaimRecord | None, needed: Collection[int], epoch: int, *, again: bool
    ) -> ClaimRecord:
        if before is not None and self.runner.driver.effects:
            before = self.writer.store.claim(before.uid)  # an effect may have been replaced during the request
        if before is not None and (before.phase == "releasing" or before.allocation != claim.allocation):
            self.guard.check(before, claim)
            await self.releaser.release_record(before)
            before, needed = None, self.writer.store.needs(claim.reference.uid)
        self.guard.forget(claim.reference)
        if before is not None and await self._is_valid(before):
            self.runner.check_device_nodes(before.spec)
            return await self._keep(claim, before)
        async with (
            self.reservations.hold(claim),
            self.serializer.taken((result.pool, result.device) for result in claim.results),
        ):
            if before is None:
                return await self._finish(await self._prepare_first(claim, epoch, needed))
            before = self.writer.store.claim(before.uid) or before  # an effect may have been replaced meanwhile
            try:
                return await self._finish(await self._prepare_again(claim, before, epoch))
            except DraKitError as error:
                if again or not self._may_stay(before, error):
                    raise
                module = type(self.runner.driver.preparer).__module__
                message = "claim not prepared again, its former preparation stays"
                problem = log_failure(error, message, module=module, logger=logger)
                self.events.failed.notify(claim.reference, problem)
                return await self._keep(claim, before)

    async def _is_valid(self, record: ClaimRecord) -> bool:
        """Return whether a record can be returned to the kubelet unchanged."""
        current = self.runner.is_of_this_boot(record) and not self.runner.is_replugged(record)
        return current and await self.runner.effects_hold(record)

    async def _keep(self, claim: AllocatedClaim, record: ClaimRecord) -> ClaimRecord:
        await self.writer.make_files(record)
        if not has_statuses(claim.raw, self.runner.driver.name, record):
            self.events.resumed.notify(record)  # the status may have been written since the fetch
        return record

    async def _finish(self, record: ClaimRecord) -> ClaimRecord:
        if not self.writer.files.wrote(record):
            await self.writer.make_files(record)
        logger.info(
            "claim prepared",
            extra={"devices": ",".join(f"{item.pool}/{item.device}" for item in record.devices)},
        )
        self.events.prepared.notify(record)
        return record

    async def _prepare_first(self, claim: AllocatedClaim, epoch: int, needed: Collection[int]) -> ClaimRecord:
        """Prepare a claim that is not prepared; ``needed`` are the effects that are already recorded for it."""
        store, uid = self.writer.store, claim.reference.uid
        begun, returned = None, list[Prepared]()
        unrecorded = self._unrecorded(uid) if needed else set[int]()
        if self.runner.has_unprepare and not self._may_run(uid):  # recorded first: a release has to undo it
            begun = self.runner.unfinished_record(claim)
            await store.put_claim(begun, epoch=epoch, then=lambda _: hit(Failpoint.CLAIM_BEGUN))
        try:
            record, outcomes = await self.runner.prepare(claim, None, returned)
            hit(Failpoint.AUTHOR_RETURNED)
            record = await self.writer.put(record, epoch=epoch, outcomes=outcomes)
        except BaseException as error:
            # also when cancelled at the deadline: undo what was begun before the claim's lock is released
            stored = store.claim(uid)
            # effects that are coming up stay: they are further on at the kubelet's next call
            still = isinstance(error, NotYet)
            if begun is not None and stored is not None and stored.phase == "releasing":
                await self._roll_back(
                    self.releaser.release_serialized(_with_states(begun, returned), keep_effects=still)
                )
            elif stored is None:
                if not still:
                    keep = needed if self._may_run(uid) else unrecorded
                    await self._roll_back(self.runner.effects.reverter.release(claim.reference, keep=keep))
                for number in unrecorded:
                    await self._roll_back(store.effect_unrecorded(number))  # recorded for the next call that fails
            raise
        return record

    async def _prepare_again(self, claim: AllocatedClaim, before: ClaimRecord, epoch: int) -> ClaimRecord:
        """Prepare a claim whose containers may run; if that fails, the former preparation stays, if possible."""
        uid = claim.reference.uid
        needed, in_force, given = self.writer.store.needs(uid), self._effects_in_force(uid), self._outcomes(uid)
        if self.runner.is_of_this_boot(before) and needed:
            # from now on its effects may be replaced by others, so the record must not be returned to the kubelet any
            # more
            await self.writer.put(before.model_copy(update={"outdated": True}), epoch=epoch)
        try:
            record, outcomes = await self.runner.prepare(claim, before, [])
            hit(Failpoint.AUTHOR_RETURNED)
            record = await self.writer.put(record, epoch=epoch, outcomes=outcomes)
        except BaseException as error:
            stored = self.writer.store.claim(uid)
            if stored is not None and stored.metadata_generation == before.metadata_generation:
                if not isinstance(error, NotYet):
                    await self._roll_back(self.runner.effects.reverter.release(claim.reference, keep=needed))
                unchanged = in_force <= self._effects_in_force(uid) and given <= self._outcomes(uid)
                if stored.outdated != before.outdated and unchanged:
                    await self._roll_back(self.writer.put(before, epoch=epoch))
            raise
        return record

    def _may_stay(self, before: ClaimRecord, error: DraKitError) -> bool:
        """Return whether a claim that could not be prepared again is unchanged, so that the former answer can be given.

        It is not if effects were undone, were replaced or do not hold, if the record was already outdated, or if the
        claim is being released.
        """
        unchanged = self.writer.store.claim(before.uid) == before and not before.outdated
        whole = len(self._effects_in_force(before.uid)) == len(self.writer.store.needs(before.uid))
        return unchanged and whole and self.runner.is_of_this_boot(before) and error.code != "claim-released"

    def _effects_in_force(self, uid: str) -> set[tuple[int, str | None]]:
        """Return the numbers and outcomes of the effects that are in force for a claim."""
        boot, found = self.runner.boot_id, self.writer.store.effects_of(uid)
        return {(item.number, item.outcome) for item in found if item.phase == "applied" and item.boot_id == boot}

    def _outcomes(self, uid: str) -> set[tuple[int, str]]:
        """Return the numbers and outcomes of a claim's effects, including those that do not hold any more."""
        found = self.writer.store.effects_of(uid)
        return {(item.number, item.outcome) for item in found if item.outcome is not None}

    def _unrecorded(self, uid: str) -> set[int]:
        """Return the effects that were found without a record and that the containers of a claim may use."""
        return {item.number for item in self.writer.store.effects_of(uid) if item.boot_id == UNKNOWN_BOOT}

    def _may_run(self, uid: str) -> bool:
        """Return whether containers of a claim without a record may run: the record was lost or is corrupt."""
        store = self.writer.store
        return store.has_claim(uid) or store.may_lack_claims(self.writer.files.uids())

    async def _roll_back(self, work: Awaitable[object]) -> None:
        try:
            await work
        except DraKitError as error:
            logger.warning("roll-back incomplete", extra={"error": str(error), "code": error.code})


def _with_states(begun: ClaimRecord, returned: Sequence[Prepared]) -> ClaimRecord:
    """Return the record of what was begun, with the states of the devices that the author's code has prepared."""
    states = [item.state if isinstance(item, Prepared) else None for item in returned]
    devices = [
        device.model_copy(update={"state": state})
        for device, state in zip_longest(begun.devices, states[: len(begun.devices)])
    ]
    return begun.model_copy(update={"devices": tuple(devices)})


Answer = Sequence[KubeletDevice]


class ClaimService:
    """Implements :class:`dra_kit.kubelet.plugin_server.NodeService`.

    After ``deadline`` seconds the kubelet gets an answer, even if the work still runs.

    Attributes:
        calls: the running work.
        epochs: the claims that are being prepared.
        recovery: work that the kubelet has not asked for.
        updates: writes what ``context.update`` reports.
    """

    def __init__(
        self,
        runner: PreparerRunner,
        *,
        api: ClaimApi,
        store: StateStore,
        files: ClaimFiles,
        locks: NodeLocks,
        events: ClaimEvents,
        guard: ReallocationGuard,
        deadline: float,
    ) -> None:
        driver = runner.driver
        reader = ClaimReader(api, driver.name)
        serializer = CallSerializer(driver.concurrency, locks.calls)
        writer = ClaimWriter(store, files)
        self._runner = runner
        self._claim_locks = locks.claims
        self._events = events
        self.calls: DeadlineRunner = DeadlineRunner(deadline, at_rest=store.at_rest)
        self._releaser = ClaimReleaser(runner, writer, serializer, events)
        self.epochs: PrepareEpochs = PrepareEpochs(store, locks.claims)
        self._preparer = ClaimPreparer(
            reader=reader,
            runner=runner,
            writer=writer,
            claim_locks=locks.claims,
            epochs=self.epochs,
            reservations=NodeDeviceReservations(
                driver.name,
                api=api,
                store=store,
                boot_id=runner.boot_id,
                claims=locks.claims,
                devices=locks.devices,
                release=self._releaser.release_record,
            ),
            serializer=serializer,
            guard=guard,
            releaser=self._releaser,
            events=events,
        )
        self.recovery: ClaimRecovery = ClaimRecovery(
            runner, reader, self._releaser, writer, claims=locks.claims, calls=self.calls, events=events
        )
        self.updates: DeviceUpdateWriter = DeviceUpdateWriter(writer, locks.claims, self.epochs, events)
        events.released.listen(reader.forget)
        events.released.listen(guard.forget)

    async def prepare(self, claims: Sequence[ClaimReference]) -> dict[str, Answer | Exception]:
        """See :class:`dra_kit.kubelet.plugin_server.NodeService`."""
        calls = [self.begin_prepare(claim) for claim in claims]
        return {claim.uid: await call for claim, call in zip(claims, calls, strict=True)}

    def begin_prepare(self, reference: ClaimReference, *, again: bool = False) -> asyncio.Future[Answer | Exception]:
        """Begin to prepare a claim as :meth:`ClaimPreparer.prepare` does; an error is a result, not raised."""
        name = str(reference)

        async def prepare() -> Answer | Exception:
            with span("prepare claim", claim=name, claim_uid=reference.uid):
                record = await self._preparer.prepare(reference, again=again)
            return record.answer() if record is not None else []

        def failed(error: Exception) -> Exception:
            problem = self._failed(error, "claim not prepared")
            self._events.failed.notify(reference, problem)
            return problem

        def late() -> str:
            why = self._runner.why_not_ready(reference) or "the work continues and is rolled back when it ends"
            return f"not prepared within {self.calls.deadline:g} s: {why}; the kubelet tries again"

        with log_context(claim=name, claim_uid=reference.uid):
            return self.calls.begin(prepare(), failed=failed, late=late)

    async def unprepare(self, claims: Sequence[ClaimReference]) -> dict[str, Exception | None]:
        """See :class:`dra_kit.kubelet.plugin_server.NodeService`."""
        calls = [self._begin_unprepare(claim) for claim in claims]
        return {claim.uid: await call for claim, call in zip(claims, calls, strict=True)}

    def _begin_unprepare(self, reference: ClaimReference) -> asyncio.Future[Exception | None]:
        name = str(reference)

        async def unprepare() -> None:
            with span("release claim", claim=name, claim_uid=reference.uid):
                await self._release(reference)

        late = f"not released within {self.calls.deadline:g} s; the work continues; the kubelet tries again"
        with log_context(claim=name, claim_uid=reference.uid):
            return self.calls.begin(
                unprepare(), failed=lambda error: self._failed(error, "claim not released"), late=lambda: late
            )

    async def _release(self, reference: ClaimReference) -> None:
        async with self._claim_locks.try_hold(reference.uid) as alone:
            if alone:  # no preparation is in progress, so no epoch to end: saves a look at the locks
                await self._releaser.release(reference)
                return
        await self.epochs.end(reference.uid)
        async with self._claim_locks.hold(reference.uid):
            await self._releaser.release(reference)

    def _failed(self, error: Exception, message: str) -> DraKitError:
        return log_failure(error, message, module=type(self._runner.driver.preparer).__module__, logger=logger)
