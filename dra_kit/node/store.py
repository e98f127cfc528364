"""The node's durable state: claims, their epochs, and effects."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import from_json

from dra_kit.errors import InternalError, StoreError, TransientError
from dra_kit.node.database import Database
from dra_kit.node.records import ClaimRecord, DeviceRecord, EffectRecord
from dra_kit.node.steps import Step, reached
from dra_kit.resource.reference import ClaimReference

logger = logging.getLogger(__name__)

_CLAIM_COLUMNS = "namespace, name, uid"
_REMEMBERED: Final = 256  # records; more than a node has
_EFFECT_COLUMNS = "number, effect, spec, keys, phase, outcome, boot_id, error"

# nothing is stored for a claim that was released since; not OR REPLACE: columns of a newer release stay as they are
_PUT: Final = (
    "INSERT INTO claims (uid, namespace, name, phase, record) SELECT ?1, ?2, ?3, ?4, ?5 "
    "WHERE NOT EXISTS (SELECT 1 FROM epochs WHERE uid = ?1 AND epoch > ?6) "
    "ON CONFLICT (uid) DO UPDATE SET phase = excluded.phase, record = excluded.record"
)


class Store:
    """Claims and effects in one sqlite database, shared by the processes of a rolling update.

    Args:
        path: of the database file.
    """

    def __init__(self, path: Path) -> None:
        self._db = Database(path)
        self._known: OrderedDict[str, ClaimRecord] = OrderedDict()  # by their text, the latest ones
        self._not_understood: set[str] = set()  # UIDs of claims whose records were told of

    async def may_lack_claims(self, with_files: set[str]) -> bool:
        """Whether there may be claims that the database does not tell of: one was damaged before it, or lost.

        So it is until none of the claims that have files on this node is without a record; then it is forgotten.

        Args:
            with_files: UIDs of all claims that have files on this node.
        """
        if not self._db.read("SELECT 1 FROM incomplete WHERE what = 'claims'"):
            return False
        if any(not self.has_claim(uid) for uid in with_files):
            return True

        def write(db: sqlite3.Connection) -> bool:
            if not with_files <= {row[0] for row in db.execute("SELECT uid FROM claims")}:
                return True  # another process has salvaged meanwhile
            db.execute("DELETE FROM incomplete WHERE what = 'claims'")
            return False

        return await self._db.write(write)

    def close(self) -> None:
        """Finish the writes that wait and close the file."""
        self._db.close()

    # -- claims

    def claim(self, uid: str) -> ClaimRecord | None:
        """The record of a claim, None when it is not prepared here."""
        rows = self._db.read("SELECT record FROM claims WHERE uid = ?", uid)
        return self._claim(rows[0][0]) if rows else None

    def claims(self) -> list[ClaimRecord]:
        """All records that are understood, by namespace and name; of the others each is told once."""
        found = []
        for uid, text in self._db.read("SELECT uid, record FROM claims ORDER BY namespace, name, uid"):
            try:
                found.append(self._claim(text))
            except StoreError as error:  # one claim is no reason to do nothing for the others
                if uid not in self._not_understood:
                    logger.error("claim left alone", extra={"claim_uid": uid, "error": str(error), "code": error.code})
                self._not_understood.add(uid)
        return found

    def has_claim(self, uid: str) -> bool:
        """Whether there is a record of a claim, understood or not."""
        return bool(self._db.read("SELECT 1 FROM claims WHERE uid = ?", uid))

    def holders(self, pool: str, device: str) -> list[ClaimRecord]:
        """Claims that have the device to themselves: neither a share of it nor an admin's look at it."""
        rows = self._db.read(
            "SELECT record FROM claims WHERE uid IN "
            "(SELECT uid FROM claim_devices WHERE pool = ? AND device = ? AND exclusive = 1)",
            pool,
            device,
        )
        return [self._claim(row[0]) for row in rows]

    async def put_claim(self, record: ClaimRecord, *, epoch: int, then: Callable[[ClaimRecord], None]) -> None:
        """Store a prepared claim, and when that is durable make the files that are derived from the record.

        Raises:
            TransientError: when the claim was released since ``epoch`` was read; nothing is stored then.
        """
        text = record.to_json()

        def write(db: sqlite3.Connection) -> None:
            stored = db.execute(_PUT, (record.uid, record.namespace, record.name, record.phase, text, epoch))
            if not stored.rowcount:
                raise TransientError(
                    f"claim {record.reference} was released while it was being prepared; it is prepared anew when the "
                    "kubelet asks again",
                    code="claim-released",
                )
            _put_devices(db, record)

        def derive() -> None:
            reached(Step.CLAIM_STORED)
            then(record)

        await self._db.write(write, derive)
        self._remember(text, record)

    def _claim(self, text: str) -> ClaimRecord:
        """A claim that is asked for again has the same text, and records are immutable."""
        known = self._known.get(text)
        return known if known is not None else self._remember(text, _claim(text))

    def _remember(self, text: str, record: ClaimRecord) -> ClaimRecord:
        self._known[text] = record
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return record

    async def begin_release(self, uid: str) -> None:
        """Mark the claim's record as being released."""

        def write(db: sqlite3.Connection) -> None:
            row = db.execute("SELECT record FROM claims WHERE uid = ?", (uid,)).fetchone()
            if row is not None:
                record = _claim(row[0]).model_copy(update={"phase": "releasing"})
                db.execute(
                    "UPDATE claims SET phase = ?, record = ? WHERE uid = ?",
                    (record.phase, record.to_json(), uid),
                )

        await self._db.write(write)

    async def forget_claim(self, uid: str, *, first: Callable[[str], None]) -> None:
        """Remove the files of a released claim, then its record: a crash between leaves it to be released again."""

        def write(db: sqlite3.Connection) -> None:
            first(uid)
            reached(Step.FILES_REMOVED)
            db.execute("DELETE FROM claims WHERE uid = ?", (uid,))
            db.execute("DELETE FROM claim_devices WHERE uid = ?", (uid,))

        await self._db.write(write)

    # -- epochs: numbers that rise over all claims and never come again

    def epoch(self) -> int:
        """The epoch of work that begins now; of two releases, the later one ends more of them."""
        rows = self._db.read("SELECT seq FROM sqlite_sequence WHERE name = 'epochs'")
        return int(rows[0][0]) if rows else 0

    def epochs(self) -> dict[str, int]:
        """For each claim that was released while it was being prepared, the epoch that this began."""
        return dict(self._db.read("SELECT uid, epoch FROM epochs ORDER BY uid"))

    async def end_epoch(self, uid: str) -> None:
        """Work for this claim that is under way now shall not be committed."""
        await self._db.write(lambda db: db.execute("INSERT OR REPLACE INTO epochs (uid) VALUES (?)", (uid,)))

    async def forget_epoch(self, uid: str) -> None:
        """No older work for this claim is left that could be committed."""
        await self._db.write(lambda db: db.execute("DELETE FROM epochs WHERE uid = ?", (uid,)))

    async def forget_epochs(self, epochs: Collection[int]) -> None:
        """Likewise for the claims whose epochs these are; later epochs of the same claims stay."""
        await self._db.write(lambda db: db.executemany("DELETE FROM epochs WHERE epoch = ?", [(n,) for n in epochs]))

    # -- effects

    def effects(self) -> list[EffectRecord]:
        """All effects with the claims that need them, oldest first."""
        rows = self._db.read(f"SELECT {_EFFECT_COLUMNS} FROM effects ORDER BY number")  # noqa: S608 - a constant
        needed = self._db.read(f"SELECT {_CLAIM_COLUMNS}, effect FROM effect_claims ORDER BY namespace, name, uid")  # noqa: S608 - a constant
        return [_effect(row, [item[:3] for item in needed if item[3] == row[0]]) for row in rows]

    def effects_of(self, uid: str) -> list[EffectRecord]:
        """The effects that a claim needs, newest first: the order in which they are undone."""
        if not self._db.read("SELECT 1 FROM effect_claims WHERE uid = ? LIMIT 1", uid):
            return []  # most drivers have none
        return [item for item in reversed(self.effects()) if any(claim.uid == uid for claim in item.claims)]

    async def intend(
        self, effect: str, spec: str, keys: Sequence[str], *, claim: ClaimReference, boot_id: str
    ) -> EffectRecord:
        """Write down that a claim needs an effect, before it is applied."""

        def write(db: sqlite3.Connection) -> EffectRecord:
            db.execute(
                "INSERT INTO effects (effect, spec, keys, phase, boot_id) VALUES (?, ?, ?, 'intent', ?) "
                "ON CONFLICT (effect, spec) DO NOTHING",
                (effect, spec, json.dumps(list(keys)), boot_id),
            )
            row = db.execute("SELECT number FROM effects WHERE effect = ? AND spec = ?", (effect, spec)).fetchone()
            number = int(row[0])
            db.execute(
                "INSERT OR IGNORE INTO effect_claims (effect, uid, namespace, name) VALUES (?, ?, ?, ?)",
                (number, claim.uid, claim.namespace, claim.name),
            )
            found = _find_effect(db, number)
            if found is None:
                raise InternalError(f"effect {effect} {spec} is not stored although it was written")
            return found

        return await self._db.write(write)

    async def applied(self, number: int, outcome: str, *, boot_id: str) -> None:
        """Write down what an effect came to."""
        await self._db.write(
            lambda db: db.execute(
                "UPDATE effects SET phase = 'applied', outcome = ?, boot_id = ?, error = '' WHERE number = ?",
                (outcome, boot_id, number),
            )
        )

    async def release_effect(self, number: int, uid: str) -> EffectRecord | None:
        """A claim no longer needs an effect; the effect when no other claim does, so that it is to be undone now."""

        def write(db: sqlite3.Connection) -> EffectRecord | None:
            others = db.execute(
                "SELECT count(*) FROM effect_claims WHERE effect = ? AND uid <> ?", (number, uid)
            ).fetchone()[0]
            if others:
                db.execute("DELETE FROM effect_claims WHERE effect = ? AND uid = ?", (number, uid))
                return None
            db.execute("UPDATE effects SET phase = 'reverting' WHERE number = ?", (number,))
            return _find_effect(db, number)

        return await self._db.write(write)

    async def begin_revert(self, number: int) -> None:
        """An effect is being undone, whoever needs it: from now on it does not count as in force."""
        await self._db.write(
            lambda db: db.execute("UPDATE effects SET phase = 'reverting' WHERE number = ?", (number,))
        )

    async def forget_effect(self, number: int) -> None:
        """An effect is undone."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM effect_claims WHERE effect = ?", (number,))
            db.execute("DELETE FROM effects WHERE number = ?", (number,))

        await self._db.write(write)

    async def revert_failed(self, number: int, error: str) -> None:
        """An effect could not be undone; it is kept and tried again."""
        await self._db.write(lambda db: db.execute("UPDATE effects SET error = ? WHERE number = ?", (error, number)))


def _claim(text: str) -> ClaimRecord:
    try:
        return ClaimRecord.model_validate_json(text)
    except (ValidationError, TypeError) as error:  # TypeError: a damaged row may hold anything, also a number
        why = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise StoreError(
            f"the record of a claim is not understood: {why} in {text!s:.200}; run the release that wrote it"
        ) from error


def _put_devices(db: sqlite3.Connection, record: ClaimRecord) -> None:
    wanted = {_device_key(item) for item in record.devices}
    rows = db.execute("SELECT pool, device, share_id, exclusive FROM claim_devices WHERE uid = ?", (record.uid,))
    known = set(rows.fetchall())
    # rows that stay are not touched: columns of a newer release stay as they are
    for key in known - wanted:
        db.execute(
            "DELETE FROM claim_devices WHERE uid = ? AND pool = ? AND device = ? AND share_id = ? AND exclusive = ?",
            (record.uid, *key),
        )
    db.executemany(
        "INSERT INTO claim_devices (uid, pool, device, share_id, exclusive) VALUES (?, ?, ?, ?, ?)",
        [(record.uid, *key) for key in sorted(wanted - known)],
    )


def _device_key(device: DeviceRecord) -> tuple[str, str, str, int]:
    exclusive = not device.admin_access and device.share_id is None
    return device.pool, device.device, device.share_id or "", int(exclusive)


def _find_effect(db: sqlite3.Connection, number: int) -> EffectRecord | None:
    row = db.execute(f"SELECT {_EFFECT_COLUMNS} FROM effects WHERE number = ?", (number,)).fetchone()  # noqa: S608 - a constant
    claims = db.execute(f"SELECT {_CLAIM_COLUMNS} FROM effect_claims WHERE effect = ?", (number,))  # noqa: S608 - a constant
    return _effect(row, claims.fetchall()) if row is not None else None


def _effect(row: tuple[Any, ...], claims: Sequence[tuple[Any, ...]]) -> EffectRecord:
    number, effect, spec, keys, phase, outcome, boot_id, error = row
    try:
        from_json(spec)  # what its fields mean is for its class to say
        return EffectRecord(
            number=number,
            effect=effect,
            spec=spec,
            keys=from_json(keys),
            phase=phase,
            outcome=outcome,
            boot_id=boot_id,
            error=error,
            claims=tuple(ClaimReference(*claim) for claim in claims),
        )
    except ValueError as problem:  # pydantic's errors are of that class too
        text = problem.errors(include_url=False)[0]["msg"] if isinstance(problem, ValidationError) else str(problem)
        raise StoreError(
            f"row {number} of table effects is not understood: {text} in {effect} {spec!r:.200} with keys "
            f"{keys!r:.200}; run the release that wrote it"
        ) from problem
