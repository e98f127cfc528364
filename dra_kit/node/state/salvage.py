"""Moves a corrupt database out of the way, reports it, and copies what can be read to a new one."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dra_kit.errors import StoreError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.state.database_files import copy_database, logs, sync
from dra_kit.node.state.schema import CARRIED, columns_of, has_form, need_row

logger: logging.Logger = logging.getLogger(__name__)
_REBUILT: Final = ".rebuilt-"
_MOVED: Final = ".corrupt-"
_CORRUPTION_ERRORS: Final = (sqlite3.DatabaseError, UnicodeDecodeError)  # the latter if sqlite quotes corrupt text
_SANE: Final = 1 << 53  # counters stay below this number


def as_text(stored: bytes) -> str:
    """Return the text of a row, whatever it contains: sqlite may store invalid UTF-8, for which Python raises an error.

    Invalid text gets a prefix with which no JSON begins, so that it is not accepted as a record.
    """
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return f"invalid UTF-8: {stored.decode(errors='backslashreplace')}"


def is_corrupt(path: Path) -> bool:
    """Return whether the file is not an intact database of dra-kit.

    A file that cannot be opened now does not count as corrupt.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return False
    try:
        with closing(sqlite3.connect(path, timeout=30)) as database:
            database.text_factory = as_text
            # not quick_check: an index with a missing entry would hide which claim has a device
            if database.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",) or not has_form(database):
                return True
            return not _is_writable_form(path)
    except sqlite3.OperationalError as error:  # locked, no space, no permission: reported when it is opened
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR  # an invalid header or schema
    except _CORRUPTION_ERRORS:
        return True


def _is_writable_form(path: Path) -> bool:
    """Return whether the header has sqlite's usual write version; with another one sqlite opens the file read-only."""
    with path.open("rb") as file:
        return file.read(100)[18] in {1, 2}


def needs_salvage(path: Path) -> bool:
    """Return whether :func:`salvage` is needed: the database is corrupt, or the last salvage was interrupted."""
    return bool(_unnamed(path)) or is_corrupt(path)


def _unnamed(path: Path) -> list[Path]:
    """Return complete new databases whose salvage was interrupted before they got their name, the latest one last."""
    return sorted(path.parent.glob(f"{path.name}{_REBUILT}*"))


def salvage(path: Path, prepare: Callable[[sqlite3.Connection], None]) -> None:
    """Ensure that a database is intact: rename a corrupt one, and replace it with a new one that has all readable rows.

    The new one is complete and durable before the corrupt one is touched, and its name says so. After a crash, a
    process that finds no database continues from there. A process that finds one starts over, since other processes may
    have acknowledged writes meanwhile. Call this while no process writes to the database; it is a no-op if another
    process was faster. ``prepare`` creates the tables of a new database.

    Raises:
        StoreError: the new one cannot be written, or the corrupt one cannot be renamed.
    """
    try:
        unnamed = _unnamed(path)
        if path.exists():
            for stale in unnamed:
                stale.unlink()
            unnamed = [_rebuilt(path, prepare)] if is_corrupt(path) else []
        if not unnamed:
            return
        new = unnamed[-1]
        aside = path.with_name(f"{path.name}{_MOVED}{new.name.partition(_REBUILT)[2]}")
        # the database first: without its log, acknowledged writes would be missing, and after a crash it would look
        # intact. The log must be gone before the new database gets the name: sqlite would apply the log to it
        for part in (path, *logs(path)):
            if part.exists():
                part.rename(aside.with_name(part.name.replace(path.name, aside.name, 1)))
                sync(path.parent)
        hit(Failpoint.STATE_MOVED_AWAY)
        new.rename(path)
        sync(path.parent)
    except (OSError, sqlite3.Error) as error:
        cause = getattr(error, "strerror", None) or error  # sqlite's errors have none
        raise StoreError(
            f"state {path} is corrupt and cannot be moved away: {cause}; check that the disk is writable and not full "
            "(--state-dir)"
        ) from error
    logger.error("corrupt state moved away, readable rows copied to a new one", extra={"aside": str(aside)})


def _rebuilt(path: Path, prepare: Callable[[sqlite3.Connection], None]) -> Path:
    """Copy what can be read of a corrupt database to a new one, whose name contains the time; return the new one."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        prepare(memory)
        carry_over(path, memory)
        unnamed = copy_database(memory, path)
    new = unnamed.rename(path.with_name(f"{path.name}{_REBUILT}{datetime.now(UTC):%Y%m%dT%H%M%S%f}"))
    sync(path.parent)
    hit(Failpoint.STATE_REBUILT)
    return new


def carry_over(path: Path, database: sqlite3.Connection) -> int:
    """Copy every readable row into a new database; return how many."""
    rows = 0
    broken: set[str] = set()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as corrupt:
            corrupt.text_factory = as_text
            corrupt.execute("PRAGMA writable_schema = ON")  # a corrupt table definition must not affect other tables
            for table, columns in CARRIED.items():
                for row in _readable(corrupt, _found(corrupt, table), columns, broken):
                    rows += _carried(database, table, columns, row)
            # numbers are never reused
            for name, last in _readable(corrupt, "sqlite_sequence", ("name", "seq"), broken):
                if isinstance(last, int) and last < _SANE:
                    database.execute("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
                    database.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, last))
            _derive_devices(database)
            _hold_effects(database, every=_found(corrupt, "effect_claims") in broken)
    except _CORRUPTION_ERRORS as error:  # not a database at all any more
        logger.warning("corrupt state is unreadable", extra={"path": str(path), "error": str(error)})
    logger.warning("rows copied from the corrupt state", extra={"rows": rows})
    return rows


def _carried(database: sqlite3.Connection, table: str, columns: Sequence[str], row: Sequence[Any]) -> bool:
    """Return whether a row could be stored; a corrupt one may violate constraints."""
    marks = ", ".join("?" * len(columns))
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - constants
    problem = ""
    if table in {"effects", "epochs"} and not (isinstance(row[0], int) and 0 < row[0] < _SANE):
        problem = "its number is out of range"
    else:
        try:
            if database.execute(insert, tuple(row)).rowcount or table == "facts":  # the new one has its own facts
                return True
            problem = "a column is empty, or its key is not unique"
        except sqlite3.Error as error:
            problem = str(error)
    logger.error(
        "row not copied from the corrupt state", extra={"table": table, "row": f"{row!r:.500}", "error": problem}
    )
    return False


def _derive_devices(database: sqlite3.Connection) -> None:
    """Fill the table of devices in use from the records; that table exists only for speed."""
    insert = "INSERT OR IGNORE INTO claim_devices (uid, pool, device, share_id, exclusive) VALUES (?, ?, ?, ?, ?)"
    for uid, record in database.execute("SELECT uid, record FROM claims").fetchall():
        try:
            found = _devices(uid, record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # the row's text is corrupt
            logger.error(
                "claim record is corrupt, its devices are taken from the table of devices",
                extra={"claim_uid": uid, "error": f"{type(error).__name__}: {error}"},
            )
        else:
            database.execute("DELETE FROM claim_devices WHERE uid = ?", (uid,))
            database.executemany(insert, found)


def _hold_effects(database: sqlite3.Connection, *, every: bool) -> None:
    """Store that every claim needs the effects whose owners were lost, so that the last release reverts them.

    Args:
        database: the new one.
        every: whether owners of any effect may be lost, because the table was not read to its end. Otherwise only
            effects without owners are affected; without a loss there are none.
    """
    numbers = [row[0] for row in database.execute("SELECT number FROM effects")]
    if not every:
        needed = {row[0] for row in database.execute("SELECT effect FROM effect_claims")}
        numbers = [number for number in numbers if number not in needed]
    claims = [ClaimReference(*map(str, row)) for row in database.execute("SELECT namespace, name, uid FROM claims")]
    if not numbers or not claims:
        return
    database.executemany(
        "INSERT OR IGNORE INTO effect_claims (effect, uid, namespace, name, checksum) VALUES (?, ?, ?, ?, ?)",
        [need_row(number, claim) for number in numbers for claim in claims],
    )
    logger.error(
        "claims of effects are lost, the effects stay until all claims are released",
        extra={"effects": ",".join(map(str, numbers)), "claims": ",".join(claim.uid for claim in claims)},
    )


def _devices(uid: str, record: str) -> list[tuple[str, str, str, str, int]]:
    found = []
    for device in json.loads(record).get("devices", ()):
        pool, name, share = device["pool"], device["device"], device.get("share_id") or ""
        if not all(isinstance(text, str) for text in (pool, name, share)):
            raise TypeError(f"not a device: {device}")
        found.append((uid, pool, name, share, int(not (device.get("admin_access") or share))))
    return found


def _found(database: sqlite3.Connection, table: str) -> str:
    """Return the name of a table; if that is corrupt, the name of the table with the expected columns."""
    columns, wanted = columns_of(database, table), set(CARRIED[table])
    if columns:
        return table
    # the name in its definition; sqlite before 3.37 has no table_list
    for _, name, *_ in database.execute("PRAGMA table_list").fetchall():
        if name not in CARRIED and wanted <= {*columns_of(database, name), "checksum", "defaults", "undo"}:
            return str(name)
    return table


def _readable(
    database: sqlite3.Connection, table: str, columns: Sequence[str], broken: set[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows up to the first corrupt page, from both ends of the table; add such a table to ``broken``."""
    seen: set[tuple[Any, ...]] = set()
    selected = _selected(columns_of(database, table), columns)
    for order in ("ASC", "DESC"):
        try:
            # without an index, which may itself be corrupt
            for row in database.execute(f'SELECT {selected} FROM "{table}" NOT INDEXED ORDER BY 1 {order}'):  # noqa: S608 - its own names
                if row not in seen:
                    seen.add(row)
                    yield row
        except _CORRUPTION_ERRORS as error:
            broken.add(table)
            logger.error("table of the corrupt state not completely read", extra={"table": table, "error": str(error)})


def _selected(present: Sequence[str], columns: Sequence[str]) -> str:
    """Return what to select for these columns: by name, else the column in the same place, else NULL.

    An older release had fewer columns, a newer one has additional ones after them; and a name may be corrupt.
    """
    selected = []
    for place, column in enumerate(columns):
        there = present[place] if place < len(present) else ""
        name = column if column in present else there if there not in columns else ""
        selected.append(f'"{name}"' if name else "NULL")
    return ", ".join(selected)
