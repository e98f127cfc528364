"""The schema of the database: its tables, migrations from older versions, and whether a file has it at all."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Final

from dra_kit.errors import ConfigurationError

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
