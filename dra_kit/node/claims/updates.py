"""What becomes known of a device after it was prepared: stored in the records of its claims, and published.

The latest fact of a device counts: what cannot be written now, because its claim is being prepared or released, is
replaced by what is reported next. Each claim waits for itself alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.author.preparing.prepared import DeviceMetadata, DeviceStatus
from dra_kit.errors import DraKitError
from dra_kit.node.claims.durable import DurableClaims
from dra_kit.node.claims.epochs import Epochs
from dra_kit.node.claims.reports.news import ClaimNews
from dra_kit.node.claims.reports.status import checked_status, status_json
from dra_kit.node.files.metadata import metadata_json
from dra_kit.node.locks.named import Locks
from dra_kit.node.state.records import ClaimRecord, DeviceRecord
from dra_kit.process.logging import log_context

logger: logging.Logger = logging.getLogger(__name__)

Subject: TypeAlias = tuple[str, str, str | None]
"""Pool, device, and share or None for all shares."""


class DeviceFacts(Struct, frozen=True):
    """What is reported of a device.

    Attributes:
        pool: its pool.
        device: the device.
        claim: UID of the one claim concerned; None for all that have the device.
        share: of a device that is shared, the one concerned; None for all of the claim.
        status: replaces what was reported of it; None leaves that as it is.
        metadata: likewise.
    """

    pool: str
    device: str
    claim: str | None = None
    share: str | None = None
    status: DeviceStatus | None = None
    metadata: DeviceMetadata | None = None

    @property
    def subject(self) -> Subject:
        """What they are about, in each claim."""
        return self.pool, self.device, self.share

    def after(self, earlier: DeviceFacts | None) -> DeviceFacts:
        """Return these facts, and of earlier ones those that they leave unchanged."""
        if earlier is None:
            return self
        return replace(self, status=self.status or earlier.status, metadata=self.metadata or earlier.metadata)

    def are_of(self, device: DeviceRecord) -> bool:
        """Return whether these are facts of a device of a claim."""
        return (device.pool, device.device) == (self.pool, self.device) and self.share in {None, device.share_id}

    def concern(self, record: ClaimRecord) -> bool:
        """Return whether a claim has the device."""
        return any(map(self.are_of, record.devices))


class _Hearing(Struct):
    """Facts that were reported, until the claims that may have the device have heard of them."""

    facts: DeviceFacts
    left: int
    taken: bool = False

    def answered(self, *, taken: bool) -> None:
        """Note one more claim that has answered; the facts are dropped where none of them has the device."""
        self.left -= 1
        self.taken |= taken
        if not self.left and not self.taken:
            _dropped(self.facts)


class _Waiting(Struct, frozen=True):
    """What a claim is to hear of a device: the latest facts, and with them what they leave of earlier ones."""

    facts: DeviceFacts
    hearing: _Hearing


class LateFacts:
    """What ``context.update`` comes to; used in the event loop.

    Args:
        durable: records and files of claims.
        claims: the locks of all claims.
        epochs: knows which claims are being prepared.
        news: is notified of claims whose devices something became known of.
    """

    def __init__(self, durable: DurableClaims, claims: Locks, epochs: Epochs, news: ClaimNews) -> None:
        self._durable = durable
        self._claims = claims
        self._epochs = epochs
        self._news = news
        self._waiting: dict[str, dict[Subject, _Waiting]] = {}
        self._at_work: set[asyncio.Task[None]] = set()

    def report(self, facts: DeviceFacts) -> None:
        """Store and publish facts, in the background."""
        try:
            uids = self._concerned(facts)
        except DraKitError as error:  # the state cannot be read now
            _not_written(facts, error)
            return
        if not uids:
            _dropped(facts)
        hearing = _Hearing(facts, left=len(uids))
        for uid in uids:
            waiting = self._waiting.get(uid)
            if waiting is None:
                waiting = self._waiting[uid] = {}
                task = asyncio.get_running_loop().create_task(self._write(uid))
                self._at_work.add(task)
                task.add_done_callback(self._at_work.discard)
            earlier = waiting.pop(facts.subject, None)
            if earlier is not None:
                earlier.hearing.answered(taken=True)
            # put last, and so applied last: another share's facts may say the same of all
            waiting[facts.subject] = _Waiting(facts.after(earlier.facts if earlier else None), hearing)

    def _concerned(self, facts: DeviceFacts) -> set[str]:
        """Return UIDs of the claims that have the device, or may have it when they are prepared."""
        having = {record.uid for record in self._durable.store.claims() if facts.concern(record)}
        concerned = having | self._epochs.preparing()
        return concerned if facts.claim is None else concerned & {facts.claim}

    async def _write(self, uid: str) -> None:
        reported: Collection[_Waiting] = ()
        try:
            async with self._claims.hold(uid):
                reported = self._waiting.pop(uid).values()  # what is reported from now on is written next
                record = self._durable.store.claim(uid)
                prepared = record if record is not None and record.phase == "prepared" else None
                concerning = [item.facts for item in reported if prepared is not None and item.facts.concern(prepared)]
                for item in reported:
                    item.hearing.answered(taken=item.facts in concerning)
                if prepared is not None and concerning:
                    with log_context(claim=str(prepared.reference), claim_uid=uid):
                        await self._write_to(prepared, concerning)
        except DraKitError as error:
            for item in reported or self._waiting.pop(uid, {}).values():  # the latter where the lock could not be had
                _not_written(item.facts, error)

    async def _write_to(self, record: ClaimRecord, reported: Sequence[DeviceFacts]) -> None:
        newer = record
        for facts in reported:
            try:
                newer = updated(newer, facts)
            except DraKitError as error:  # of one device, and no reason to drop what is known of others
                _not_written(facts, error)
        if newer is not record:
            await self._durable.put(newer, epoch=self._durable.store.epoch())
            self._news.prepared.notify(newer)
            await self._durable.make_files(newer)


def updated(record: ClaimRecord, facts: DeviceFacts) -> ClaimRecord:
    """Return a record with newer facts about one of its devices.

    Raises:
        PermanentError: when the status breaks a rule of the API.
    """
    devices = []
    for item in record.devices:
        changes: dict[str, Any] = {}
        if facts.are_of(item):
            if facts.status is not None:
                changes["status"] = checked_status(item, status_json(facts.status, item.status))
            if facts.metadata is not None:
                changes["metadata"] = metadata_json(facts.metadata)
            changes["told_later"] = tuple(sorted({*item.told_later, *changes}))
        devices.append(item.model_copy(update=changes))
    generation = record.metadata_generation + (facts.metadata is not None)
    return record.model_copy(update={"devices": tuple(devices), "metadata_generation": generation})


def _dropped(facts: DeviceFacts) -> None:
    text = "facts of a device dropped: no claim is prepared with it"
    logger.warning(text, extra={"pool": facts.pool, "device": facts.device, **_addressed(facts)})


def _not_written(facts: DeviceFacts, error: DraKitError) -> None:
    fields = {"pool": facts.pool, "device": facts.device, "error": str(error), "code": error.code, **_addressed(facts)}
    logger.error("facts of a device not written", extra=fields)


def _addressed(facts: DeviceFacts) -> dict[str, str]:
    addressed = {"claim_uid": facts.claim, "share": facts.share}
    return {name: value for name, value in addressed.items() if value is not None}
