"""The node's durable state: claims, their epochs, and effects; and its dump for ``dra-kit node --dump-state``."""

from __future__ import annotations

import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prometheus_client import Histogram

from dra_kit.errors import ConfigurationError, StoreError, TransientError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.state.database import Database
from dra_kit.node.state.database_files import logs
from dra_kit.node.state.effect_store import EffectStore
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.rows import CLAIM, CorruptRow, Row, claim_of, claim_row, put_devices
from dra_kit.node.state.salvage import is_corrupt

logger: logging.Logger = logging.getLogger(__name__)
_REMEMBERED: Final = 256  # records; more than a node has
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


class StateStore(EffectStore):
    """Claims and effects in the sqlite database at ``path``, shared by the processes of a rolling update."""

    def __init__(self, path: Path) -> None:
        super().__init__(Database(path))
        self._known: OrderedDict[Row, ClaimRecord] = OrderedDict()  # the latest records, by their rows
        self._not_understood: set[str] = set()  # UIDs of claims whose records were reported
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
        """Return all corrupt rows, each reported once; the other rows are not affected.

        Raises:
            StoreError: the file cannot be read.
        """
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
        """Return the record of a claim; None if it is not prepared here, or its record is corrupt.

        Raises:
            StoreError: another release wrote a record that this one does not understand.
        """
        rows = self._db.read(f"SELECT {CLAIM} FROM claims WHERE uid = ?", uid)  # noqa: S608 - a constant
        return self._claim(rows[0]) if rows else None

    def claim_and_needs(self, uid: str) -> tuple[ClaimRecord | None, set[int]]:
        """Return what :meth:`claim` and :meth:`needs` return, with a single read of the database.

        Raises:
            StoreError: another release wrote a record that this one does not understand.
        """
        rows = self._db.read(_CLAIM_AND_NEEDS, uid, uid)
        records = [self._claim(row[:-1]) for row in rows if row[0] is not None]
        return (records[0] if records else None), {row[-1] for row in rows if row[0] is None}

    def claims(self) -> list[ClaimRecord]:
        """Return all readable records, by namespace and name; each of the others is reported once."""
        found = []
        for row in self._db.read(f"SELECT {CLAIM} FROM claims ORDER BY namespace, name, uid"):  # noqa: S608 - a constant
            try:
                record = self._claim(row)
            except StoreError as error:  # one claim must not affect the others
                if (uid := row[0]) not in self._not_understood:
                    logger.error(
                        "claim record skipped", extra={"claim_uid": uid, "error": str(error), "code": error.code}
                    )
                self._not_understood.add(uid)
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
        """Return the record of a row, cached by row: an unchanged claim has the same row, and records are immutable."""
        known = self._known.get(row)
        if known is not None:
            return known
        found = claim_of(row)
        if isinstance(found, CorruptRow):
            self._corrupt.add(found)
            return None
        return self._remember(row, found)

    def _remember(self, row: Row, record: ClaimRecord) -> ClaimRecord:
        self._known[row] = record
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return record

    async def begin_release(self, known: ClaimRecord) -> None:
        """Mark the claim's record as being released, if it still exists and is intact.

        Args:
            known: the record of what is to be undone.
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


def _are_replaced(db: sqlite3.Connection, outcomes: Mapping[int, str | None]) -> bool:
    known = (
        (db.execute("SELECT outcome FROM effects WHERE number = ?", (n,)).fetchone(), o) for n, o in outcomes.items()
    )
    return any(outcome is not None and (row is None or row[0] != outcome) for row, outcome in known)


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
            "damaged": [str(item) for item in store.corrupt_rows()],
            "incomplete": store.incomplete(),
        }
    finally:
        store.close()


def _claim(record: ClaimRecord) -> dict[str, Any]:
    dumped = record.model_dump(mode="json")
    preparing = dumped.pop("preparing")
    return dumped | {"phase": "preparing"} if preparing else dumped
