"""A damaged database is set aside and told; what can still be read of it is carried over. Never silently emptied."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dra_kit.errors import StoreError
from dra_kit.node.place import copy, logs, sync
from dra_kit.node.steps import Step, reached

logger = logging.getLogger(__name__)

TABLES: Final = {
    "claims": ("uid", "namespace", "name", "phase", "record"),
    "epochs": ("epoch", "uid"),
    "effects": ("number", "effect", "spec", "keys", "phase", "outcome", "boot_id", "error"),
    "effect_claims": ("effect", "uid", "namespace", "name"),
}
_REBUILT: Final = ".rebuilt-"
_DAMAGED: Final = ".damaged-"


def as_text(stored: bytes) -> str:
    """Text of a row, whatever became of it: sqlite stores and finds sound what is no UTF-8, and Python raises for it.

    With words before it that no JSON begins with, so that a record it is in is not understood.
    """
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return f"no UTF-8: {stored.decode(errors='backslashreplace')}"


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


def needs_salvage(path: Path) -> bool:
    """Whether :func:`salvage` has something to do: the database is damaged, or the last salvage was cut off."""
    return bool(_unnamed(path)) or is_damaged(path)


def _unnamed(path: Path) -> list[Path]:
    """Complete new databases whose salvage was cut off before they had their name, the latest one last."""
    return sorted(path.parent.glob(f"{path.name}{_REBUILT}*"))


def salvage(path: Path, prepare: Callable[[sqlite3.Connection], None]) -> None:
    """See to it that a database is sound: a damaged one is set aside, and a new one with what can be read has its name.

    The new one is complete and durable before the damaged one is touched, and its name tells so: whoever comes after a
    crash and finds no database goes on from there. Whoever finds one begins anew, for other processes may have been
    answered since. To be called while nobody writes to the database; does nothing when another process was quicker.

    Args:
        path: of the database.
        prepare: makes the tables of a new one.

    Raises:
        StoreError: when the new one cannot be written, or the damaged one not be renamed.
    """
    try:
        unnamed = _unnamed(path)
        if path.exists():
            for stale in unnamed:
                stale.unlink()
            unnamed = [_rebuilt(path, prepare)] if is_damaged(path) else []
        if not unnamed:
            return
        new = unnamed[-1]
        aside = path.with_name(f"{path.name}{_DAMAGED}{new.name.partition(_REBUILT)[2]}")
        # the database first: without its log it would lack what was answered, and look sound to whoever comes after a
        # crash. The log is gone before the new one has the name: sqlite would write into that what the log tells
        for part in (path, *logs(path)):
            if part.exists():
                part.rename(aside.with_name(part.name.replace(path.name, aside.name, 1)))
                sync(path.parent)
        reached(Step.STATE_SET_ASIDE)
        new.rename(path)
        sync(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"state {path} is damaged and cannot be set aside: {error}; check that the disk is writable and not full "
            "(--state-dir)"
        ) from error
    logger.error(
        "state was damaged, it is set aside and what could be read is carried over", extra={"aside": str(aside)}
    )


def _rebuilt(path: Path, prepare: Callable[[sqlite3.Connection], None]) -> Path:
    """What can be read of a damaged database, in a new one, whose name tells when it was found damaged."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        prepare(memory)
        carry_over(path, memory)
        unnamed = copy(memory, path)
    new = unnamed.rename(path.with_name(f"{path.name}{_REBUILT}{datetime.now(UTC):%Y%m%dT%H%M%S%f}"))
    sync(path.parent)
    reached(Step.STATE_REBUILT)
    return new


def carry_over(path: Path, database: sqlite3.Connection) -> int:
    """Copy every row that can still be read into a new database; how many."""
    rows = 0
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as damaged:
            damaged.text_factory = as_text
            for table, columns in TABLES.items():
                marks = ", ".join("?" * len(columns))
                insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - constants
                for row in _readable(damaged, table, columns):
                    database.execute(insert, row)
                    rows += 1
            for name, last in _readable(damaged, "sqlite_sequence", ("name", "seq")):  # numbers never come again
                database.execute("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
                database.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, last))
            _derive_devices(database)
    except sqlite3.DatabaseError as error:  # no database at all any more
        logger.warning("nothing can be read of it", extra={"path": str(path), "error": str(error)})
    logger.warning("rows carried over", extra={"rows": rows})
    return rows


def _derive_devices(database: sqlite3.Connection) -> None:
    """Who has which device, from the records: a table of its own only so that it can be asked fast."""
    insert = "INSERT OR IGNORE INTO claim_devices (uid, pool, device, share_id, exclusive) VALUES (?, ?, ?, ?, ?)"
    for uid, record in database.execute("SELECT uid, record FROM claims").fetchall():
        try:
            database.executemany(insert, _devices(uid, record))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # the row's text is damaged
            logger.error(
                "devices of a claim are not known, its record is damaged",
                extra={"claim_uid": uid, "error": f"{type(error).__name__}: {error}"},
            )


def _devices(uid: str, record: str) -> list[tuple[str, str, str, str, int]]:
    found = []
    for device in json.loads(record).get("devices", ()):
        pool, name, share = device["pool"], device["device"], device.get("share_id") or ""
        if not all(isinstance(text, str) for text in (pool, name, share)):
            raise TypeError(f"no device: {device}")
        found.append((uid, pool, name, share, int(not (device.get("admin_access") or share))))
    return found


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
