"""The schema of the database: its tables, migrations from older versions, and whether a file has it at all.

Rows of the tables are converted from and to records: each row has a checksum, and corrupt rows are reported.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from pydantic import ValidationError
from pydantic_core import from_json

from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.records import ClaimRecord, DeviceRecord, EffectRecord

logger: logging.Logger = logging.getLogger(__name__)
# Two releases share the file during a rolling update, and a rollback leaves it to the older one. So within a major
# version, columns and tables are only added: an older release reads and writes what it knows and leaves the rest alone.
# What it knows must not change, including triggers: a file with any of it missing counts as corrupt.
MAJOR, MINOR = 1, 4
_FORM: Final = MAJOR * 1000 + MINOR
_BASE: Final = (
    (
        "CREATE TABLE IF NOT EXISTS claims ("
        "uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, phase TEXT NOT NULL, record TEXT NOT NULL"
        ") WITHOUT ROWID"
    ),
    (
        "CREATE TABLE IF NOT EXISTS claim_devices ("
        "uid TEXT NOT NULL, pool TEXT NOT NULL, device TEXT NOT NULL, share_id TEXT NOT NULL, "
        "exclusive INTEGER NOT NULL, "
        "PRIMARY KEY (uid, pool, device, share_id, exclusive)"
        ") WITHOUT ROWID"
    ),
    "CREATE INDEX IF NOT EXISTS claim_devices_by_device ON claim_devices (pool, device)",
    "CREATE TABLE IF NOT EXISTS epochs (epoch INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE)",
    (
        "CREATE TABLE IF NOT EXISTS effects ("
        "number INTEGER PRIMARY KEY AUTOINCREMENT, effect TEXT NOT NULL, spec TEXT NOT NULL, keys TEXT NOT NULL, "
        "phase TEXT NOT NULL, outcome TEXT, boot_id TEXT NOT NULL, error TEXT NOT NULL DEFAULT '', "
        "UNIQUE (effect, spec)"
        ")"
    ),
    (
        "CREATE TABLE IF NOT EXISTS effect_claims ("
        "effect INTEGER NOT NULL, uid TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, "
        "PRIMARY KEY (effect, uid)"
        ") WITHOUT ROWID"
    ),
    "CREATE INDEX IF NOT EXISTS effect_claims_by_claim ON effect_claims (uid)",
)
_SINCE_1: Final = ("CREATE TABLE IF NOT EXISTS incomplete (what TEXT PRIMARY KEY) WITHOUT ROWID",)
_SINCE_2: Final = ("CREATE TABLE IF NOT EXISTS facts (what TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID",)
CHECKED: Final[dict[str, tuple[str, ...]]] = {
    "claims": ("uid", "namespace", "name", "phase", "record"),
    "effects": ("number", "effect", "spec", "keys", "phase", "outcome", "boot_id", "error"),
    "effect_claims": ("effect", "uid", "namespace", "name"),
}
"""Tables whose rows have a ``checksum`` of these columns; NULL in rows of releases without checksums.

The columns are those of the first release: the checksum must be the same for all releases that share the file.
"""
CARRIED: Final[dict[str, tuple[str, ...]]] = {
    **{table: (*columns, "checksum") for table, columns in CHECKED.items()},
    "effects": (*CHECKED["effects"], "checksum", "defaults", "undo"),
    "claim_devices": ("uid", "pool", "device", "share_id", "exclusive"),
    "epochs": ("epoch", "uid"),
    "facts": ("what", "number"),
}
"""What a salvage copies."""
# A new database may replace a lost one, with claims whose containers still run. From its first transaction on, it
# records that for every process that opens it, until a process has verified that no claim is missing.
_NEW: Final = ("INSERT OR IGNORE INTO incomplete (what) VALUES ('claims')",)


def _unchecked(table: str, columns: tuple[str, ...], key: str) -> str:
    """Return a trigger that clears an unchanged checksum when its row changes: older releases do not update it."""
    new, old = (", ".join(f"{row}.{column}" for column in columns) for row in ("NEW", "OLD"))
    return (
        f"CREATE TRIGGER IF NOT EXISTS {table}_unchecked AFTER UPDATE OF {', '.join(columns)} ON {table} "  # noqa: S608 - constants
        f"WHEN NEW.checksum IS OLD.checksum AND ({new}) IS NOT ({old}) "
        f"BEGIN UPDATE {table} SET checksum = NULL WHERE {key}; END"
    )


_TRIGGERS: Final = (
    _unchecked("claims", CHECKED["claims"], "uid = NEW.uid"),
    _unchecked("effects", CHECKED["effects"], "number = NEW.number"),
    _unchecked("effect_claims", CHECKED["effect_claims"], "effect = NEW.effect AND uid = NEW.uid"),
)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate a new or older database to the current version; the connection is in autocommit mode.

    Raises:
        ConfigurationError: a newer release wrote it in a version that this one does not know.
    """
    if _form(connection, path) >= _FORM:
        return
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        form = _form(connection, path)
        if form < _FORM:  # otherwise another process was faster
            for statement in (*_BASE, *_SINCE_1, *_SINCE_2, *(() if form else _NEW)):
                connection.execute(statement)
            for table in CHECKED:
                if "checksum" not in columns_of(connection, table):
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")
            for column in ("defaults", "undo"):
                if column not in columns_of(connection, "effects"):
                    connection.execute(f"ALTER TABLE effects ADD COLUMN {column} TEXT")
            for trigger in _TRIGGERS:
                connection.execute(trigger)
            set_fact(connection, "form", _FORM)
            connection.execute(f"PRAGMA user_version = {_FORM}")


def _form(connection: sqlite3.Connection, path: Path) -> int:
    """Return 1000 times major plus minor, 0 for a new one; it is stored twice, so that corruption is detected."""
    form = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if 0 <= form < (MAJOR + 1) * 1000:
        return form
    form = fact(connection, "form") if columns_of(connection, "facts") else 0
    if 0 < form < (MAJOR + 1) * 1000:
        logger.error("corrupt form of the state repaired", extra={"path": str(path), "form": form})
        connection.execute(f"PRAGMA user_version = {form}")
        return form
    raise ConfigurationError(
        f"state {path} has form {form // 1000}, and this release supports at most {MAJOR}; "
        "run the release that wrote it"
    )


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return the columns of a table in order; none if the table does not exist."""
    return [name for [name] in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def fact(connection: sqlite3.Connection, what: str) -> int:
    """Return a number from the table ``facts``; 0 if it is missing or cannot be a count."""
    row = connection.execute("SELECT number FROM facts WHERE what = ?", (what,)).fetchone()
    return row[0] if row is not None and isinstance(row[0], int) and 0 <= row[0] < 1 << 53 else 0


def set_fact(connection: sqlite3.Connection, what: str, number: int) -> None:
    """Write a number to the table ``facts``, in the caller's transaction."""
    if not connection.execute("UPDATE facts SET number = ? WHERE what = ?", (number, what)).rowcount:
        connection.execute("INSERT INTO facts (what, number) VALUES (?, ?)", (what, number))


def has_form(connection: sqlite3.Connection) -> bool:
    """Return whether a database has all its tables, or none yet; else it is corrupt, or of another program."""
    found = _shape(connection)
    if not found and not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        return True
    form = int(connection.execute("PRAGMA user_version").fetchone()[0])
    return _expected(form >= _FORM) <= found


@cache
def _expected(checked: bool) -> frozenset[tuple[object, ...]]:
    """Return the shape that every database of dra-kit has; with checksums, or as the first release created it."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        if checked:
            migrate(memory, Path())
        else:
            for statement in _BASE:
                memory.execute(statement)
        return frozenset(_shape(memory))


def _shape(connection: sqlite3.Connection) -> set[tuple[object, ...]]:
    """Return columns, unique keys and triggers; newer releases may have more of them."""
    shape: set[tuple[object, ...]] = set()
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
        if kind == "trigger":
            shape.add(("trigger", name, str(sql).replace('"', "")))  # sqlite quotes names when it renames
        elif kind == "table":
            for _, column, *definition in connection.execute("SELECT * FROM pragma_table_info(?)", (name,)):
                shape.add(("column", name, column, *definition))
            for _, index, unique, *_ in connection.execute("SELECT * FROM pragma_index_list(?)", (name,)).fetchall():
                if unique:
                    keys = connection.execute("SELECT name FROM pragma_index_info(?)", (index,)).fetchall()
                    shape.add(("unique", name, *(key for [key] in keys)))
    return shape


CLAIM: Final = ", ".join((*CHECKED["claims"], "checksum"))
EFFECT: Final = ", ".join((*CHECKED["effects"], "checksum", "defaults", "undo"))
NEED: Final = ", ".join((*CHECKED["effect_claims"], "checksum"))
"""The columns that the functions below take, in this order."""
_DIFFERS: Final = "its checksum does not match its content"
Row = Sequence[Any]


class CorruptRow(Struct, frozen=True):
    """A row that differs from what was stored; it stays until its claim is prepared or released.

    Attributes:
        table: of the database.
        key: of the row, as far as it can be read.
        why: how the corruption was detected.
        claim: the claim of the row, as far as it can be read; None for an effect.
        named: the claim that its record names; None if that cannot be read.
    """

    table: str
    key: str
    why: str
    claim: ClaimReference | None = None
    named: ClaimReference | None = None

    @property
    def certain(self) -> bool:
        """Whether row and record name the same claim; otherwise any part of the name may be corrupt."""
        return self.claim is not None and self.claim == self.named

    def __str__(self) -> str:
        return f"row {self.key} of table {self.table} is corrupt: {self.why}"

    def error(self) -> StoreError:
        """Return the error to report."""
        return StoreError(f"{self}; it stays until its claim is prepared or released", code="corrupt-record")


# -- claims


def claim_row(record: ClaimRecord) -> tuple[Any, ...]:
    """Return the row in which a record is stored."""
    values = (record.uid, record.namespace, record.name, record.phase, record.model_dump_json(exclude_defaults=True))
    return (*values, checksum(values))


def claim_of(row: Row) -> ClaimRecord | CorruptRow:
    """Return the record of a row.

    Raises:
        StoreError: the row is intact, but another release wrote something that this one does not understand.
    """
    uid, namespace, name, _, text, seal = row
    if seal is not None and seal != checksum(row[:-1]):
        return _corrupt_claim(row, _DIFFERS)
    try:
        record = ClaimRecord.model_validate_json(text)
    except (ValidationError, TypeError) as error:  # TypeError: a corrupt row may contain anything
        why = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
        if seal is None:
            return _corrupt_claim(row, f"its record cannot be parsed: {why} in {text!s:.200}")
        raise StoreError(
            f"record of a claim cannot be parsed: {why} in {text!s:.200}; run the release that wrote it"
        ) from error
    if (record.uid, record.namespace, record.name) != (uid, namespace, name):
        return _corrupt_claim(row, f"its record names claim {record.reference} with UID {record.uid}")
    return record


def _corrupt_claim(row: Row, why: str) -> CorruptRow:
    uid, namespace, name, _, text, _ = row
    return CorruptRow("claims", str(uid), why, ClaimReference(str(namespace), str(name), str(uid)), _named(str(text)))


def _named(text: str) -> ClaimReference | None:
    """Return the claim that a record names; its JSON begins with the name, and the rest may be corrupt."""
    found = {}
    for key in ("namespace", "name", "uid"):
        match = re.search(rf'[{{,]"{key}":"([^"\\]*)"', text)
        if match is None:
            return None
        found[key] = match[1]
    return ClaimReference(**found)


def put_devices(db: sqlite3.Connection, record: ClaimRecord) -> None:
    """Store which claim has which device, beside the record, for fast lookups."""
    wanted = {_device_key(item) for item in record.devices}
    rows = db.execute("SELECT pool, device, share_id, exclusive FROM claim_devices WHERE uid = ?", (record.uid,))
    known = set(rows.fetchall())
    # rows that stay are not touched, so that columns of a newer release keep their values
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


# -- effects


def need_row(effect: int, claim: ClaimReference) -> tuple[Any, ...]:
    """Return the row for a claim that needs an effect."""
    values = (effect, claim.uid, claim.namespace, claim.name)
    return (*values, checksum(values))


def need_of(row: Row) -> ClaimReference | CorruptRow:
    """Return the claim of a row that assigns an effect to a claim."""
    effect, uid, namespace, name, seal = row
    claim = ClaimReference(str(namespace), str(name), str(uid))
    if seal is None or seal == checksum(row[:-1]):
        return claim
    return CorruptRow("effect_claims", f"{effect}/{uid}", _DIFFERS, claim)


def effect_of(row: Row, claims: Sequence[ClaimReference]) -> EffectRecord | CorruptRow:
    """Return the effect of a row, with the claims that need it.

    Raises:
        StoreError: the row is intact, but another release wrote something that this one does not understand.
    """
    number, effect, spec, keys, phase, outcome, boot_id, error, seal, defaults, undo = row
    if seal is not None and seal != checksum(row[:-3]):
        return CorruptRow("effects", str(number), f"{_DIFFERS}; {effect} {spec!s:.200}")
    try:
        from_json(spec)  # its class interprets the fields
        from_json(outcome or "null")
        return EffectRecord(
            number=number,
            effect=effect,
            spec=spec,
            keys=from_json(keys),
            phase=phase,
            outcome=outcome,
            boot_id=boot_id,
            error=error,
            claims=tuple(claims),
            defaults=_names(defaults),
            undo=undo if isinstance(undo, str) else "",
        )
    except (ValueError, TypeError) as problem:  # ValueError includes pydantic's errors
        text = problem.errors(include_url=False)[0]["msg"] if isinstance(problem, ValidationError) else str(problem)
        why = f"{text} in {effect} {spec!r:.200} with keys {keys!r:.200}"
        if seal is None:
            return CorruptRow("effects", str(number), f"it cannot be parsed: {why}")
        raise StoreError(
            f"row {number} of table effects cannot be parsed: {why}; run the release that wrote it"
        ) from problem


def _names(text: object) -> tuple[str, ...]:
    """Return the names in a list that no checksum covers; none if it is corrupt, as with older releases."""
    with suppress(ValueError, TypeError):
        found = from_json(text)  # type: ignore[arg-type] # a corrupt row may contain anything
        if isinstance(found, list):
            return tuple(name for name in found if isinstance(name, str))
    return ()


def put_effect(db: sqlite3.Connection, record: EffectRecord) -> None:
    """Rewrite an effect's row with its checksum; the claims that need it stay."""
    values = (
        record.number, record.effect, record.spec, json.dumps(list(record.keys)), record.phase, record.outcome,
        record.boot_id, record.error,
    )  # fmt: skip
    db.execute(
        "UPDATE effects SET keys = ?, phase = ?, outcome = ?, boot_id = ?, error = ?, checksum = ? "
        "WHERE number = ? AND effect = ? AND spec = ?",
        (*values[3:], checksum(values), *values[:3]),
    )


def find_effect(db: sqlite3.Connection, number: int) -> EffectRecord | CorruptRow | None:
    """Return the effect of that number, as far as it exists and is intact."""
    row = db.execute(f"SELECT {EFFECT} FROM effects WHERE number = ?", (number,)).fetchone()  # noqa: S608 - a constant
    if row is None:
        return None
    rows = db.execute(f"SELECT {NEED} FROM effect_claims WHERE effect = ?", (number,)).fetchall()  # noqa: S608 - a constant
    return effect_of(row, [ClaimReference(str(row[2]), str(row[3]), str(row[1])) for row in rows])


def checksum(values: Sequence[object]) -> int:
    """Return the CRC-32 of a row's values, each with its type and length; it detects every single corrupt byte.

    Args:
        values: text, integers, bytes, floats and None, as sqlite returns them.
    """
    found = 0
    for value in values:
        text = value if isinstance(value, str) else "" if value is None else str(value)
        encoded = text.encode("utf-8", "surrogatepass")
        found = zlib.crc32(encoded, zlib.crc32(f"{type(value).__name__} {len(encoded)} ".encode(), found))
    return found


_TABLES: dict[str, tuple[str, Callable[[Row], object]]] = {
    "claims": (CLAIM, claim_of),
    "effects": (EFFECT, lambda row: effect_of(row, ())),
    "effect_claims": (NEED, need_of),
}


class CorruptRows:
    """The corrupt rows found so far; ``read`` returns all rows of a query, or raises a StoreError."""

    def __init__(self, read: Callable[[str], list[tuple[Any, ...]]]) -> None:
        self._read = read
        self._found: dict[tuple[str, str], CorruptRow] = {}

    def add(self, row: CorruptRow) -> None:
        """Add a corrupt row, and log it once."""
        where = row.table, row.key
        if where not in self._found:
            claim, error = row.claim, row.error()
            of = {"claim": str(claim), "claim_uid": claim.uid} if claim is not None else {}
            logger.error("corrupt record skipped", extra={"error": str(error), "code": error.code, **of})
        self._found[where] = row

    def find_all(self) -> list[CorruptRow]:
        """Read everything; return all rows that are corrupt now."""
        corrupt: list[CorruptRow] = []
        for table, (columns, understand) in _TABLES.items():
            for row in self._read(f"SELECT {columns} FROM {table}"):  # noqa: S608 - constants
                try:
                    found = understand(row)
                except StoreError:  # another release's, and intact; reported where it is needed
                    continue
                if isinstance(found, CorruptRow):
                    self.add(found)
                    corrupt.append(found)
        self._found = {(item.table, item.key): item for item in corrupt}
        return corrupt

    def remaining(self) -> list[CorruptRow]:
        """Return the corrupt rows found so far that still exist; free of cost if none was found."""
        return self.find_all() if self._found else []
