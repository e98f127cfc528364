"""A damaged database is set aside and told; what can still be read of it is carried over. Never silently emptied."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dra_kit.errors import StoreError

logger = logging.getLogger(__name__)

TABLES: Final = {
    "claims": ("uid", "namespace", "name", "phase", "record"),
    "epochs": ("epoch", "uid"),
    "effects": ("number", "effect", "spec", "keys", "phase", "outcome", "boot_id", "error"),
    "effect_claims": ("effect", "uid", "namespace", "name"),
}
_FILES: Final = ("", "-wal", "-shm")


def is_damaged(path: Path) -> bool:
    """Whether the file is there and sqlite finds it broken; one that cannot be opened now is not damaged."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    try:
        with closing(sqlite3.connect(path, timeout=30)) as database:
            return bool(database.execute("PRAGMA quick_check(1)").fetchone() != ("ok",))
    except sqlite3.OperationalError:  # locked, no space, no permission: told when it is opened
        return False
    except sqlite3.DatabaseError:
        return True


def set_aside(path: Path) -> Path:
    """Rename a damaged database, its log included, and tell; the new name.

    Raises:
        StoreError: when it cannot be renamed.
    """
    aside = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    try:
        for suffix in _FILES:
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
    except OSError as error:
        raise StoreError(
            f"state {path} is damaged and cannot be set aside: {error}; make its directory writable (--state-dir)"
        ) from error
    logger.error("state is damaged, it is set aside and what can be read is carried over", extra={"aside": str(aside)})
    return aside


def carry_over(aside: Path, database: sqlite3.Connection) -> int:
    """Copy every row that can still be read into a new database; how many."""
    rows = 0
    try:
        with closing(sqlite3.connect(f"file:{aside}?mode=ro", uri=True)) as damaged:
            for table, columns in TABLES.items():
                marks = ", ".join("?" * len(columns))
                insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - constants
                for row in _readable(damaged, table, columns):
                    database.execute(insert, row)
                    rows += 1
            _derive_devices(database)
    except sqlite3.DatabaseError as error:  # no database at all any more
        logger.warning("nothing can be read of it", extra={"aside": str(aside), "error": str(error)})
    logger.warning("rows carried over", extra={"rows": rows})
    return rows


def _derive_devices(database: sqlite3.Connection) -> None:
    """Who has which device, from the records: a table of its own only so that it can be asked fast."""
    for uid, record in database.execute("SELECT uid, record FROM claims").fetchall():
        for device in json.loads(record).get("devices", ()):
            shared = device.get("admin_access") or device.get("share_id")
            database.execute(
                "INSERT INTO claim_devices (uid, pool, device, share_id, exclusive) VALUES (?, ?, ?, ?, ?)",
                (uid, device["pool"], device["device"], device.get("share_id") or "", int(not shared)),
            )


def _readable(database: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """The rows up to the first page that is broken, from both ends of the table."""
    seen: set[tuple[Any, ...]] = set()
    for order in ("ASC", "DESC"):
        try:
            for row in database.execute(
                f"SELECT {', '.join(columns)} FROM {table} ORDER BY {columns[0]} {order}"  # noqa: S608 - constants
            ):
                if row not in seen:
                    seen.add(row)
                    yield row
        except sqlite3.DatabaseError:
            continue
