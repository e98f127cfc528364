"""The node's durable state: claims, their epochs, and effects; and its dump for ``dra-kit node --dump-state``."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prometheus_client import Histogram

from dra_kit.errors import ConfigurationError, InternalError, StoreError, TransientError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.state.database import Database
from dra_kit.node.state.database_files import logs
from dra_kit.node.state.records import UNKNOWN_BOOT, ClaimRecord, EffectRecord
from dra_kit.node.state.salvage import is_corrupt
from dra_kit.node.state.schema import (
    CLAIM,
    EFFECT,
    NEED,
    CorruptRow,
    CorruptRows,
    Row,
    claim_of,
    claim_row,
    effect_of,
    find_effect,
    need_of,
    need_row,
    put_devices,
    put_effect,
)

logger: logging.Logger = logging.getLogger(__name__)
# nothing is stored for a claim that was released meanwhile; no OR REPLACE: it would reset columns of a newer release
_PUT: Final = (
    "INSERT INTO claims (uid, namespace, name, phase, record, checksum) SELECT ?, ?, ?, ?, ?, ? "
    "WHERE NOT EXISTS (SELECT 1 FROM epochs WHERE uid = ? AND epoch > ?) "
    "ON CONFLICT (uid) DO UPDATE SET namespace = excluded.namespace, name = excluded.name, phase = excluded.phase, "
    "record = excluded.record, checksum = excluded.checksum"
)
_CLAIM_AND_NEEDS: Final = (
    f"SELECT {CLAIM}, NULL FROM claims WHERE uid = ? "  # noqa: S608 - a constant
    f"UNION ALL SELECT {', '.join(['NULL'] * len(CLAIM.split(',')))}, effect FROM effect_claims WHERE uid = ?"
)


class StateStore:
    """Claims and effects in the sqlite database at ``path``, shared by the processes of a rolling update.

    The methods raise a StoreError if the file cannot be read or written, and, except :meth:`claims`, if they read a
    record of another release that this one does not understand.
    """

    def __init__(self, path: Path) -> None:
        self._db = Database(path)
        self._corrupt = CorruptRows(self._db.read)
        self._known: dict[str, tuple[Row, ClaimRecord]] = {}  # the latest records with their rows, by UID
        self._unreadable: set[str] = set()  # UIDs of claims whose records were reported
        try:
            self._corrupt.find_all()
        except StoreError as error:  # the state may be readable later
            logger.warning("records not checked for corruption", extra={"error": str(error), "code": error.code})

    def close(self) -> None:
        """Finish the pending writes and close the file."""
        self._db.close()

    def at_rest(self) -> None:
        """Use the time without a kubelet call for maintenance that would delay one."""
        self._db.at_rest()

    @property
    def commit_seconds(self) -> Histogram:
        """How long durable transactions took. Thread-safe."""
        return self._db.commit_seconds

    def size_bytes(self) -> int:
        """Return the size of the database with its log. Thread-safe."""
        files = (self._db.path, *logs(self._db.path))
        return sum(file.stat().st_size for file in files if file.exists())

    # -- corruption

    def corrupt_rows(self) -> list[CorruptRow]:
        """Return all corrupt rows, each reported once; the other rows are not affected."""
        return self._corrupt.find_all()

    def incomplete(self) -> list[str]:
        """Return what may be missing: ``claims``, and ``transactions`` if the database is known to have lost some."""
        return [row[0] for row in self._db.read("SELECT what FROM incomplete ORDER BY what")]

    def may_lack_claims(self, with_files: set[str]) -> bool:
        """Return whether claims may be missing in the database; then apparently unneeded effects and files must stay.

        Args:
            with_files: UIDs of all claims with files on this node; a corrupt record under such a UID is that claim's.
        """
        return bool(self.incomplete()) or any(item.key not in with_files for item in self.corrupt_claims())

    async def explained(self, with_files: set[str]) -> bool:
        """Return whether no claims are missing, which is so once all claims with files or effects have records."""
        if not self.may_lack_claims(with_files):
            return True
        known = with_files | {claim.uid for claim in self.needing()}
        if not self.incomplete() or any(not self.has_claim(uid) for uid in known):
            return False

        def write(db: sqlite3.Connection) -> None:
            if known <= {row[0] for row in db.execute("SELECT uid FROM claims")}:  # no process has salvaged meanwhile
                db.execute("DELETE FROM incomplete WHERE what IN ('claims', 'transactions')")

        await self._db.write(write)
        return not self.may_lack_claims(with_files)

    # -- claims

    def claim(self, uid: str) -> ClaimRecord | None:
        """Return the record of a claim; None if it is not prepared here, or its record is corrupt."""
        rows = self._db.read(f"SELECT {CLAIM} FROM claims WHERE uid = ?", uid)  # noqa: S608 - a constant
        if not rows:
            self._drop(uid)
            return None
        return self._claim(rows[0])

    def claim_and_needs(self, uid: str) -> tuple[ClaimRecord | None, set[int]]:
        """Return what :meth:`claim` and :meth:`needs` return, with a single read of the database."""
        rows = self._db.read(_CLAIM_AND_NEEDS, uid, uid)
        records = [self._claim(row[:-1]) for row in rows if row[0] is not None]
        if not records:
            self._drop(uid)
        return (records[0] if records else None), {row[-1] for row in rows if row[0] is None}

    def claims(self) -> list[ClaimRecord]:
        """Return all readable records, by namespace and name; each of the others is reported once."""
        found = []
        rows = self._db.read(f"SELECT {CLAIM} FROM claims ORDER BY namespace, name, uid")  # noqa: S608 - a constant
        self._drop(*self._known.keys() - {row[0] for row in rows})  # another process has released them
        for row in rows:
            try:
                record = self._claim(row)
            except StoreError as error:  # one claim must not affect the others
                if (uid := row[0]) not in self._unreadable:
                    logger.error(
                        "claim record skipped", extra={"claim_uid": uid, "error": str(error), "code": error.code}
                    )
                self._unreadable.add(uid)
            else:
                if record is not None:
                    found.append(record)
        return found

    def corrupt_claims(self) -> list[CorruptRow]:
        """Return claims whose records are corrupt."""
        return [item for item in self._corrupt.remaining() if item.table == "claims"]

    def lost(self) -> list[ClaimReference]:
        """Return claims that are known by name, but whose records are lost, corrupt, or were never written.

        A claim has no record yet while it is prepared for the first time, also between two calls of the kubelet.
        """
        unrecorded = [claim for claim in self.needing() if not self.has_claim(claim.uid)]
        return unrecorded + [item.claim for item in self.corrupt_claims() if item.claim is not None and item.certain]

    def has_claim(self, uid: str) -> bool:
        """Return whether a claim has a record, readable or not."""
        return bool(self._db.read("SELECT 1 FROM claims WHERE uid = ?", uid))

    def misspelt(self, uid: str) -> list[str]:
        """Return the UIDs under which corrupt records of this claim are stored, judging by their content."""
        return [
            item.key
            for item in self.corrupt_claims()
            if item.key != uid and item.named is not None and item.named.uid == uid
        ]

    def holders(self, pool: str, device: str) -> list[ClaimRecord]:
        """Return the claims that use the device exclusively: not a share of it, and not with admin access."""
        rows = self._db.read(
            f"SELECT {CLAIM} FROM claims WHERE uid IN "  # noqa: S608 - a constant
            "(SELECT uid FROM claim_devices WHERE pool = ? AND device = ? AND exclusive = 1)",
            pool,
            device,
        )
        return [record for record in map(self._claim, rows) if record is not None]

    def held(self, uid: str, pool: str, device: str) -> bool:
        """Return whether it is stored beside a claim's record that the claim has the device exclusively."""
        return bool(
            self._db.read(
                "SELECT 1 FROM claim_devices WHERE uid = ? AND pool = ? AND device = ? AND exclusive = 1",
                uid,
                pool,
                device,
            )
        )

    async def put_claim(
        self,
        record: ClaimRecord,
        *,
        epoch: int,
        then: Callable[[ClaimRecord], None],
        outcomes: Mapping[int, str | None] | None = None,
    ) -> ClaimRecord:
        """Store a record and return it; once it is durable, call ``then`` in the same thread.

        Args:
            record: of the claim.
            epoch: read before its preparation began.
            then: writes what is derived from the record.
            outcomes: the outcomes of effects that the preparation received, by effect number; if one has changed
                meanwhile, the record is stored as outdated.

        Raises:
            TransientError: the claim was released after ``epoch`` was read; nothing is stored.
        """
        misspelt = self.misspelt(record.uid)

        def write(db: sqlite3.Connection) -> tuple[Row, ClaimRecord]:
            stored = record
            if outcomes and _are_replaced(db, outcomes):
                stored = record.model_copy(update={"outdated": True})
            row = claim_row(stored)
            if not db.execute(_PUT, (*row, record.uid, epoch)).rowcount:
                raise TransientError(
                    f"claim {record.reference} was released while it was being prepared; it is prepared again when "
                    "the kubelet asks",
                    code="claim-released",
                )
            _forget_claims(db, misspelt)
            put_devices(db, record)
            return row, stored

        return self._remember(*await self._db.write(write, lambda: then(record)))

    def _claim(self, row: Row) -> ClaimRecord | None:
        """Return the record of a row; the same as before if the row is the same, since records are immutable."""
        known = self._known.get(row[0])
        if known is not None and known[0] == row:
            return known[1]
        found = claim_of(row)
        if isinstance(found, CorruptRow):
            self._drop(row[0])
            self._corrupt.add(found)
            return None
        return self._remember(row, found)

    def _remember(self, row: Row, record: ClaimRecord) -> ClaimRecord:
        self._known[record.uid] = row, record
        return record

    def _drop(self, *uids: str) -> None:
        """Forget the records of claims that have none any more: they may be large, and contain secrets."""
        for uid in uids:
            self._known.pop(uid, None)

    async def begin_release(self, known: ClaimRecord) -> None:
        """Mark the claim's record as being released, if it still exists and is intact.

        ``known`` is the record of what is to be undone.
        """
        record = known.model_copy(update={"phase": "releasing", "preparing": False})

        def write(db: sqlite3.Connection) -> None:
            row = db.execute(f"SELECT {CLAIM} FROM claims WHERE uid = ?", (record.uid,)).fetchone()  # noqa: S608 - a constant
            if row is not None and isinstance(claim_of(row), ClaimRecord):
                *_, phase, text, seal = claim_row(record)
                db.execute(
                    "UPDATE claims SET phase = ?, record = ?, checksum = ? WHERE uid = ?",
                    (phase, text, seal, record.uid),
                )

        await self._db.write(write)

    async def forget_claim(self, uid: str, *, first: Callable[[str], None]) -> None:
        """Remove the files of a released claim, then its record; after a crash in between, it is released again."""
        misspelt = self.misspelt(uid)

        def write(db: sqlite3.Connection) -> None:
            first(uid)
            hit(Failpoint.FILES_REMOVED)
            _forget_claims(db, [uid, *misspelt])

        await self._db.write(write)
        self._drop(uid, *misspelt)

    # -- epochs: numbers that increase across all claims and are never reused

    def epoch(self) -> int:
        """Return the epoch of work that begins now; a release ends all earlier epochs of its claim."""
        rows = self._db.read("SELECT seq FROM sqlite_sequence WHERE name = 'epochs'")
        return int(rows[0][0]) if rows else 0

    def epochs(self) -> dict[str, int]:
        """Return, for each claim that was released while it was being prepared, the epoch of that release."""
        return dict(self._db.read("SELECT uid, epoch FROM epochs ORDER BY uid"))

    async def end_epoch(self, uid: str) -> None:
        """End the epoch of a claim: work for it that is in progress cannot be committed."""
        await self._db.write(lambda db: db.execute("INSERT OR REPLACE INTO epochs (uid) VALUES (?)", (uid,)))

    async def forget_epoch(self, uid: str) -> None:
        """Drop the epoch of a claim: no older work for it is left that could be committed."""
        await self._db.write(lambda db: db.execute("DELETE FROM epochs WHERE uid = ?", (uid,)))

    async def forget_epochs(self, epochs: Collection[int]) -> None:
        """Drop these epochs of claims; later epochs of the same claims stay."""
        await self._db.write(lambda db: db.executemany("DELETE FROM epochs WHERE epoch = ?", [(n,) for n in epochs]))

    # -- effects and the claims that need them

    def effects(self) -> list[EffectRecord]:
        """Return all effects with the claims that need them, oldest first; report each corrupt one once."""
        found = []
        needed = self._needs()
        for row in self._db.read(f"SELECT {EFFECT} FROM effects ORDER BY number"):  # noqa: S608 - a constant
            effect = effect_of(row, [claim for number, claim in needed if number == row[0]])
            if isinstance(effect, CorruptRow):
                self._corrupt.add(effect)
            else:
                found.append(effect)
        return found

    def _needs(self) -> list[tuple[int, ClaimReference]]:
        """Return the numbers of effects and the claims that need them, including claims whose names may be corrupt."""
        needs = []
        for row in self._db.read(f"SELECT {NEED} FROM effect_claims ORDER BY namespace, name, uid"):  # noqa: S608 - a constant
            claim = need_of(row)
            if isinstance(claim, CorruptRow):
                self._corrupt.add(claim)
                claim = claim.claim or ClaimReference("", "", "")
            needs.append((row[0], claim))
        return needs

    def needing(self) -> list[ClaimReference]:
        """Return the claims that need effects, without those whose names may be corrupt."""
        rows = self._db.read(f"SELECT {NEED} FROM effect_claims ORDER BY namespace, name, uid")  # noqa: S608 - a constant
        return list(dict.fromkeys(claim for claim in map(need_of, rows) if isinstance(claim, ClaimReference)))

    def needs(self, uid: str) -> set[int]:
        """Return the numbers of the effects that a claim needs, including corrupt or lost ones."""
        return {row[0] for row in self._db.read("SELECT effect FROM effect_claims WHERE uid = ?", uid)}

    def effects_of(self, uid: str) -> list[EffectRecord]:
        """Return the effects that a claim needs, newest first: the order in which they are reverted."""
        if not self.needs(uid):
            return []  # most drivers have none
        return [item for item in reversed(self.effects()) if any(claim.uid == uid for claim in item.claims)]

    async def intend(
        self,
        effect: str,
        spec: str,
        keys: Sequence[str],
        *,
        claim: ClaimReference,
        boot_id: str,
        defaults: Sequence[str] = (),
        undo: str = "",
    ) -> EffectRecord:
        """Store that a claim needs an effect, before it is applied; a corrupt row of the effect is rewritten.

        ``defaults`` and ``undo`` are stored with the first claim that needs it: they describe what is stored at that
        time.
        """

        def write(db: sqlite3.Connection) -> EffectRecord:
            inserted = db.execute(
                "INSERT INTO effects (effect, spec, keys, phase, boot_id, defaults, undo) "
                "VALUES (?, ?, ?, 'intent', ?, ?, ?) ON CONFLICT (effect, spec) DO NOTHING",
                (effect, spec, json.dumps(list(keys)), boot_id, json.dumps(list(defaults)), undo),
            )
            row = db.execute("SELECT number FROM effects WHERE effect = ? AND spec = ?", (effect, spec)).fetchone()
            number = int(row[0])
            db.execute(
                "INSERT OR IGNORE INTO effect_claims (effect, uid, namespace, name, checksum) VALUES (?, ?, ?, ?, ?)",
                need_row(number, claim),
            )
            found = find_effect(db, number)
            if found is None:
                raise InternalError(f"effect {effect} {spec} is not stored although it was written")
            in_force = isinstance(found, EffectRecord) and (found.phase, found.boot_id) == ("applied", boot_id)
            if isinstance(found, CorruptRow):
                found = EffectRecord(
                    number=number, effect=effect, spec=spec, keys=tuple(keys), phase="intent", boot_id=boot_id
                )
                put_effect(db, found)
            elif inserted.rowcount or not in_force:
                # from now on apply may be in progress again
                found = found.model_copy(update={"phase": "intent"})
                put_effect(db, found)
            return found

        return await self._db.write(write)

    async def applied(
        self, number: int, outcome: str, *, boot_id: str, replaces: bool = False
    ) -> tuple[ClaimReference, ...]:
        """Store the outcome of an effect.

        If it ``replaces`` another outcome, claims that were prepared with that one are marked as outdated.

        Returns:
            The claims that were prepared with another outcome in this boot.
        """

        def write(db: sqlite3.Connection) -> tuple[ClaimReference, ...]:
            found = find_effect(db, number)
            if not isinstance(found, EffectRecord):
                return ()
            changes = {"phase": "applied", "outcome": outcome, "boot_id": boot_id, "error": ""}
            put_effect(db, found.model_copy(update=changes))
            return _outdate(db, found, boot_id) if replaces else ()

        return await self._db.write(write)

    async def effect_lost(self, number: int) -> None:
        """Store that an effect does not hold any more: it is not in force, and has to be applied again."""
        await self._change(number, phase="intent")

    async def effect_unrecorded(self, number: int) -> None:
        """Store that containers may use an effect found without a record, whatever it was applied for since."""
        await self._change(number, phase="intent", boot_id=UNKNOWN_BOOT)

    async def release_effect(self, number: int, uid: str) -> EffectRecord | None:
        """Remove a claim's need for an effect; return the effect if no claim needs it, to be reverted now.

        A corrupt effect is not reverted, and stays.
        """

        def write(db: sqlite3.Connection) -> EffectRecord | None:
            others = db.execute(
                "SELECT count(*) FROM effect_claims WHERE effect = ? AND uid <> ?", (number, uid)
            ).fetchone()[0]
            found = find_effect(db, number)
            if others or not isinstance(found, EffectRecord):
                db.execute("DELETE FROM effect_claims WHERE effect = ? AND uid = ?", (number, uid))
                return None
            found = _reverting(found)
            put_effect(db, found)
            return found

        return await self._db.write(write)

    async def begin_revert(self, effect: EffectRecord) -> EffectRecord:
        """Store that an effect is being reverted, even if claims need it: from now on it is not in force."""
        found = _reverting(effect)
        await self._db.write(lambda db: put_effect(db, found))
        return found

    async def forget_effect(self, number: int) -> None:
        """Forget a reverted effect."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM effect_claims WHERE effect = ?", (number,))
            db.execute("DELETE FROM effects WHERE number = ?", (number,))

        await self._db.write(write)

    async def revert_failed(self, number: int, error: str) -> None:
        """Store that an effect could not be reverted, so that it is retried."""
        await self._change(number, error=error)

    async def _change(self, number: int, **changes: str) -> None:
        def write(db: sqlite3.Connection) -> None:
            found = find_effect(db, number)
            if isinstance(found, EffectRecord):
                put_effect(db, found.model_copy(update=changes))

        await self._db.write(write)


def _are_replaced(db: sqlite3.Connection, outcomes: Mapping[int, str | None]) -> bool:
    known = (
        (db.execute("SELECT outcome FROM effects WHERE number = ?", (n,)).fetchone(), o) for n, o in outcomes.items()
    )
    return any(outcome is not None and (row is None or row[0] != outcome) for row, outcome in known)


def _outdate(db: sqlite3.Connection, effect: EffectRecord, boot_id: str) -> tuple[ClaimReference, ...]:
    needing, marked = {claim.uid for claim in effect.claims}, []
    for row in db.execute(f"SELECT {CLAIM} FROM claims ORDER BY namespace, name, uid").fetchall():  # noqa: S608 - a constant
        try:
            record = claim_of(row)
        except StoreError:  # another release wrote it, and handles it
            continue
        if not isinstance(record, ClaimRecord) or not record.is_in_force(boot_id):
            continue
        if record.uid in needing or effect.number in record.sees:
            *_, text, seal = claim_row(record.model_copy(update={"outdated": True}))
            db.execute("UPDATE claims SET record = ?, checksum = ? WHERE uid = ?", (text, seal, record.uid))
            marked.append(record.reference)
    return tuple(marked)


def _reverting(effect: EffectRecord) -> EffectRecord:
    """Return an effect as one to be reverted; without an outcome if it was being applied."""
    outcome = effect.outcome if effect.phase != "intent" else None
    return effect.model_copy(update={"phase": "reverting", "outcome": outcome})


def _forget_claims(db: sqlite3.Connection, uids: Sequence[str]) -> None:
    for uid in uids:
        db.execute("DELETE FROM claims WHERE uid = ?", (uid,))
        db.execute("DELETE FROM claim_devices WHERE uid = ?", (uid,))


def dump_state(database: Path) -> dict[str, Any]:
    """Return a node's records, effects and epochs as JSON, including what is corrupt, and whether some were lost.

    Raises:
        ConfigurationError: the database does not exist.
        StoreError: it cannot be read.
    """
    if not database.exists():
        raise ConfigurationError(f"state {database} does not exist; correct --state-dir or --kubelet-dir")
    if is_corrupt(database):
        raise StoreError(
            f"state {database} is corrupt; when the node starts, it moves it away and copies its readable rows"
        )
    store = StateStore(database)
    try:
        return {
            "claims": [_claim(record) for record in store.claims()],
            "effects": [effect.model_dump(mode="json") for effect in store.effects()],
            "epochs": store.epochs(),
            "corrupt": [str(item) for item in store.corrupt_rows()],
            "incomplete": store.incomplete(),
        }
    finally:
        store.close()


def _claim(record: ClaimRecord) -> dict[str, Any]:
    dumped = record.model_dump(mode="json")
    preparing = dumped.pop("preparing")
    return dumped | {"phase": "preparing"} if preparing else dumped
