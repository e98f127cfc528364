"""Changes after prepare: later facts about a device, and devices or effects that were replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dra_kit.errors import DraKitError, InvalidPrepared, PrepareError, TransientError
from dra_kit.kubelet.plugin_server import KubeletDevice
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.events import ClaimEvents
from dra_kit.node.claims.files import ClaimWriter
from dra_kit.node.claims.metadata import metadata_json
from dra_kit.node.claims.preparer_runner import PreparerRunner
from dra_kit.node.claims.release import PrepareEpochs
from dra_kit.node.claims.status import checked_status, status_json
from dra_kit.node.context import DeviceUpdate, Subject
from dra_kit.node.locks import NamedLocks
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import StateStore
from dra_kit.process.logging import log_context

logger: logging.Logger = logging.getLogger(__name__)


class _PendingUpdate(Struct):
    """A reported update, until all claims that may have the device have processed it.

    ``written`` gets whether any claim has the device, or why the facts are not written; None if nothing waits for it.
    """

    update: DeviceUpdate
    left: int
    written: asyncio.Future[bool] | None = None
    taken: bool = False
    superseded: bool = False
    error: Exception | None = None

    def processed(self, *, taken: bool, error: Exception | None = None) -> None:
        """Count one more claim that has processed the facts; they are dropped if no claim has the device."""
        self.left -= 1
        self.taken |= taken
        self.error = self.error or error
        if self.left > 0:
            return
        if not (self.taken or self.superseded or self.error):
            _dropped(self.update)
        if self.written is None or self.written.done():
            return
        if self.error is not None:
            self.written.set_exception(self.error)
        else:
            self.written.set_result(self.taken)


class _QueuedUpdate(Struct, frozen=True):
    """Facts about a device that a claim has yet to process: the latest, merged with what remains of earlier ones."""

    update: DeviceUpdate
    reports: tuple[_PendingUpdate, ...]

    def processed(self, *, taken: bool, error: Exception | None = None) -> None:
        """Report to all reports that these facts are merged of."""
        for pending in self.reports:
            pending.processed(taken=taken, error=error)


class DeviceUpdateWriter:
    """Stores and publishes what ``context.update`` reports; used in the event loop."""

    def __init__(self, writer: ClaimWriter, claims: NamedLocks, epochs: PrepareEpochs, events: ClaimEvents) -> None:
        self._writer = writer
        self._claims = claims
        self._epochs = epochs
        self._events = events
        self._waiting: dict[str, dict[Subject, _QueuedUpdate]] = {}
        self._at_work: set[asyncio.Task[None]] = set()

    def report(self, update: DeviceUpdate, written: asyncio.Future[bool] | None = None) -> None:
        """Store and publish an update, in the background.

        ``written`` gets whether any claim has the device once the facts are stored and in the files of containers, or a
        DraKitError.
        """
        try:
            uids = self._concerned(update)
        except DraKitError as error:  # the state cannot be read at the moment
            _not_written(update, error)
            _PendingUpdate(update, left=1, written=written).processed(taken=False, error=error)
            return
        pending = _PendingUpdate(update, left=len(uids) or 1, written=written)
        if not uids:
            pending.processed(taken=False)
        for uid in uids:
            waiting = self._waiting.get(uid)
            if waiting is None:
                waiting = self._waiting[uid] = {}
                task = asyncio.get_running_loop().create_task(self._write(uid))
                self._at_work.add(task)
                task.add_done_callback(self._at_work.discard)
            earlier = waiting.pop(update.subject, None)
            former = () if earlier is None else earlier.reports
            for item in former:
                item.superseded = True
            # put last, and so applied last: facts about another share may set the same fields
            merged = update.after(earlier.update if earlier else None)
            waiting[update.subject] = _QueuedUpdate(merged, (*former, pending))

    def _concerned(self, update: DeviceUpdate) -> set[str]:
        """Return the UIDs of the claims that have the device, or may have it once they are prepared."""
        having = {record.uid for record in self._writer.store.claims() if update.concern(record)}
        concerned = having | self._epochs.preparing()
        return concerned if update.claim is None else concerned & {update.claim}

    async def _write(self, uid: str) -> None:
        reported: list[_QueuedUpdate] = []
        try:
            async with self._claims.hold(uid):
                reported = list(self._waiting.pop(uid).values())  # later reports are written next time
                record = self._writer.store.claim(uid)
                prepared = record if record is not None and record.phase == "prepared" else None
                concerning = []
                for item in reported:
                    if prepared is not None and item.update.concern(prepared):
                        concerning.append(item)
                    else:
                        item.processed(taken=False)
                reported = concerning
                if prepared is not None and reported:
                    with log_context(claim=str(prepared.reference), claim_uid=uid):
                        await self._write_to(prepared, reported)
        except DraKitError as error:
            # the latter if the lock could not be taken
            for item in reported or list(self._waiting.pop(uid, {}).values()):
                _not_written(item.update, error)
                item.processed(taken=True, error=error)
        except BaseException:  # nothing must wait forever
            stopped = TransientError("device update not written: the driver's process is stopping; report it again")
            for item in reported or list(self._waiting.pop(uid, {}).values()):
                item.processed(taken=True, error=stopped)
            raise

    async def _write_to(self, record: ClaimRecord, reported: Sequence[_QueuedUpdate]) -> None:
        newer, refused = record, dict[int, DraKitError]()
        for number, item in enumerate(reported):
            try:
                newer = apply_update(newer, item.update)
            except DraKitError as error:  # concerns one device only; facts about others are still stored
                _not_written(item.update, error)
                refused[number] = error
        if newer is not record:
            await self._put(newer)
        for number, item in enumerate(reported):
            item.processed(taken=True, error=refused.get(number))

    async def store(self, claim: ClaimReference, updates: Sequence[DeviceUpdate], *, who: str) -> None:
        """Store updates of a claim and write its files before returning; facts that are known already change nothing.

        Args:
            claim: the claim, which this driver has prepared.
            updates: facts about its devices.
            who: begins the text of an error.

        Raises:
            PermanentError: a status violates a rule of the API, or a container has no file for the metadata.
            TransientError: the claim is not prepared any more.
            StoreError: the state or a file cannot be written.
        """
        async with self._claims.hold(claim.uid):
            record = self._writer.store.claim(claim.uid)
            if record is None or record.phase != "prepared":
                raise TransientError(
                    f"claim {claim} was released while its pod started; the kubelet prepares it again for its next pod",
                    code="claim-released",
                )
            newer = apply_facts(record, updates, who)
            if [(item.status, item.metadata) for item in newer.devices] != [
                (item.status, item.metadata) for item in record.devices
            ]:
                await self._put(newer)
            else:
                await self._writer.make_files(record)

    async def _put(self, record: ClaimRecord) -> None:
        stored = await self._writer.put(record, epoch=self._writer.store.epoch())
        self._events.prepared.notify(stored)
        await self._writer.make_files(stored)


def apply_facts(record: ClaimRecord, updates: Sequence[DeviceUpdate], who: str) -> ClaimRecord:
    """Return a record with facts about its devices; ``who`` begins the text of an error.

    Raises:
        PermanentError: a status violates a rule of the API, or a container has no file for the metadata.
    """
    for update in updates:
        has_file = any(item.metadata is not None for item in record.devices if update.are_of(item))
        if update.metadata is not None and not has_file:
            raise InvalidPrepared(
                f"{who} metadata of device {update.pool}/{update.device}, but prepare returned none, so its container "
                "has no file with metadata; let prepare return Prepared(metadata=DeviceMetadata())"
            )
        record = apply_update(record, update, who)
    return record


def apply_update(record: ClaimRecord, update: DeviceUpdate, who: str = "context.update received") -> ClaimRecord:
    """Return a record with newer facts about one of its devices; raise as :func:`checked_status`."""
    devices = []
    for item in record.devices:
        changes: dict[str, Any] = {}
        if update.are_of(item):
            if update.status is not None:
                changes["status"] = checked_status(item, status_json(update.status, item.status), who)
            if update.metadata is not None:
                changes["metadata"] = metadata_json(update.metadata)
            changes["told_later"] = tuple(sorted({*item.told_later, *changes}))
        devices.append(item.model_copy(update=changes))
    generation = record.metadata_generation + (update.metadata is not None)
    return record.model_copy(update={"devices": tuple(devices), "metadata_generation": generation})


def _dropped(update: DeviceUpdate) -> None:
    logger.warning("device update dropped, no claim is prepared with the device", extra=_fields(update))


def _not_written(update: DeviceUpdate, error: DraKitError) -> None:
    logger.error("device update not written", extra=_fields(update) | {"error": str(error), "code": error.code})


def _fields(update: DeviceUpdate) -> dict[str, str]:
    shown = {"pool": update.pool, "device": update.device, "claim_uid": update.claim, "share": update.share}
    return {name: value for name, value in shown.items() if value is not None}


RETRY: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds until a transient failure is retried; the kubelet does not ask, since it knows of no change."""
Answer: TypeAlias = Sequence[KubeletDevice] | Exception


class Repreparer:
    """A part of the node process that prepares claims again after a change of their devices or effects.

    Level-triggered: it compares records with the latest inventory. ``prepare`` prepares a claim that is still prepared.
    """

    name = "replugging"

    def __init__(
        self,
        store: StateStore,
        claims: NamedLocks,
        runner: PreparerRunner,
        prepare: Callable[[ClaimReference], asyncio.Future[Answer]],
    ) -> None:
        self._store = store
        self._claims = claims
        self._runner = runner
        self._prepare = prepare
        self._changed = asyncio.Event()
        self._in_progress: set[str] = set()
        self._failures = 0

    def look_again(self) -> None:
        """Check now: there is a new inventory, or claims are outdated, or another process may have prepared some."""
        self._changed.set()

    def prepared(self, record: ClaimRecord) -> None:
        """Note that a claim was prepared; its device may have changed meanwhile."""
        if self._runner.is_replugged(record):
            self._changed.set()

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once; the author's code may be called."""
        ready.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                self._look()
                await self._adopt()
            except DraKitError as error:  # the state cannot be read at the moment
                logger.error("replugged devices not searched for", extra={"error": str(error), "code": error.code})
                self._try_again()

    def _look(self) -> None:
        for record in self._store.claims():
            changed = record.phase == "prepared" and self._runner.is_replugged(record)
            if changed and record.uid not in self._in_progress:
                fields = {"claim": str(record.reference), "claim_uid": record.uid}
                logger.info("device or effect changed", extra=fields)
                self._in_progress.add(record.uid)
                self._prepare(record.reference).add_done_callback(partial(self._ended, record.uid))

    async def _adopt(self) -> None:
        """Add the device identities that are missing in records of other releases.

        A replug cannot be detected without them, and a container is not disrupted on suspicion.
        """
        for known in self._store.claims():
            if self._runner.with_identities(known) is known:
                continue
            async with self._claims.try_hold(known.uid) as held:  # do not wait for a claim whose work hangs
                if not held:
                    self._try_again()
                record = self._store.claim(known.uid) if held else None
                if record is not None and record.phase == "prepared" and not self._runner.is_replugged(record):
                    adopted = self._runner.with_identities(record)
                    await self._store.put_claim(adopted, epoch=self._store.epoch(), then=lambda _: None)

    def _ended(self, uid: str, outcome: asyncio.Future[Answer]) -> None:
        self._in_progress.discard(uid)
        if outcome.cancelled():
            return
        answer = outcome.result()
        if not isinstance(answer, Exception):
            self._failures = 0
            self._changed.set()  # the device may have been replugged again
        elif not (isinstance(answer, PrepareError) and answer.permanent):
            self._try_again()

    def _try_again(self) -> None:
        delay = RETRY[min(self._failures, len(RETRY) - 1)]
        self._failures += 1
        asyncio.get_running_loop().call_later(delay, self._changed.set)
