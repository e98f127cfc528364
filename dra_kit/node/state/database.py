"""One sqlite database with a single writer: many small writes, one durable transaction."""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct

from dra_kit.errors import StoreError
from dra_kit.node.state.salvage import as_text, needs_salvage, salvage
from dra_kit.node.state.sqlite.log import CHECKPOINT, Log
from dra_kit.node.state.sqlite.place import Guard, Place, copy, logs, put_in_place, remove_unfinished
from dra_kit.node.state.sqlite.schema import migrate
from dra_kit.node.state.sqlite.transactions import Transactions
from dra_kit.node.waiting import Unstoppable, to_the_end
from dra_kit.process.metrics.measures import COMMIT_SECONDS, Durations

T = TypeVar("T")
logger: logging.Logger = logging.getLogger(__name__)
Write = Callable[[sqlite3.Connection], T]

# EACCES and EPERM as sqlite tells them; for all else it says that it cannot open the file, or that it is read-only
_NOT_PERMITTED: Final = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY_DIRECTORY)


class _Job(Struct):
    write: Write[Any]
    then: Callable[[], None] | None
    outcome: Unstoppable[Any] | None  # None: nobody waits for it


class Database:
    """Reads at once, writes through one thread that puts everything waiting into one transaction.

    Writes come from one event loop, reads from any thread.

    WAL with ``synchronous=FULL``: a write that was answered survives kill -9 and power loss. Two processes may share
    the file. A damaged file is set aside, reported, and what can be read of it is carried over; one that has lost
    transactions is reported, too. A file that is removed while it is open is made again, with all that is in it, before
    anything else is answered.

    Args:
        path: of the database file; its directory is made when missing.

    Attributes:
        path: the same.
        commit_seconds: how long transactions took that changed something.

    Raises:
        StoreError: when it cannot be opened.
        ConfigurationError: when a newer release of the driver wrote it in a form this one does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commit_seconds: Durations = Durations(COMMIT_SECONDS)
        # one connection has one snapshot at a time: a reader that joined another's would miss answered writes
        self._reading = threading.Lock()
        self._place: Place | None = None  # of the files that are open
        self._broken = False  # sqlite met a damaged page: it is opened again before the next transaction
        self._guard = Guard(path)
        self._transactions = Transactions(path)
        with ExitStack() as guarded:
            guarded.enter_context(closing(self._guard))
            try:
                path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                if path.is_dir():
                    raise StoreError(
                        f"state {path} cannot be opened: it is a directory; move it away, or correct --state-dir"
                    )
                self._open_sound()
            except (OSError, sqlite3.Error) as error:
                raise self._store_error("cannot be opened", error) from error
            guarded.pop_all()
        self._closed = False
        self._collected: list[_Job] = []  # in this round of the event loop
        # a transaction's; nothing to write: the log is shortened; None: the end
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    def _open_sound(self) -> None:
        """Open the database, mended when it is damaged."""
        with self._guard.staying():
            remove_unfinished(self.path)
            if not needs_salvage(self.path):
                self._connect()
                return
        with self._guard.renaming():
            salvage(self.path, partial(migrate, path=self.path))
            self._connect()

    def _connect(self) -> None:
        copied = self._transactions.copied()
        self.path.touch(mode=0o600)  # the records hold what containers get in their environment
        with ExitStack() as opened:
            self._writer = opened.enter_context(closing(self._open()))
            migrate(self._writer, self.path)
            self._transactions.compare(self._writer, copied)
            self._reader = opened.enter_context(closing(self._open()))
            self._place = Place.of(self.path)
            self._log = Log(self.path, self._place)
            self._connections = opened.pop_all()

    def _open(self) -> sqlite3.Connection:
        # autocommit mode: transactions are begun and ended here, by name
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
        connection.text_factory = as_text
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT}")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def read(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Return all rows of a query; sees every write that was answered. From any thread.

        Raises:
            StoreError: when the file cannot be read.
        """
        try:
            with self._reading:
                if self._place is None or not self._place.is_at(self.path):  # what it tells would not be durable
                    self._jobs.put([_Job(_nothing, None, None)])
                    raise StoreError(
                        f"state {self.path} was removed while the driver runs; it is made again, then try again"
                    )
                return self._reader.execute(sql, arguments).fetchall()
        except (OSError, sqlite3.Error) as error:
            if self._note_damage(error):
                self._jobs.put([_Job(_nothing, None, None)])
            raise self._store_error("cannot be read", error) from error

    def _note_damage(self, error: Exception) -> bool:
        """Return whether sqlite has met a damaged page."""
        damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
        self._broken = self._broken or damaged
        return damaged

    async def write(self, write: Write[T], then: Callable[[], None] | None = None) -> T:
        """Run ``write`` in the next transaction and return its result once that is durable.

        An exception that ``write`` raises undoes its own changes only and reaches the caller. A caller that is
        cancelled waits for the end all the same; cancelled means stored then.

        Args:
            write: changes the database; its result is returned. It is called again when it went into a transaction
                with another one that failed.
            then: called in the writer's thread once the transaction is durable, for files that are derived from it;
                an exception of it reaches the caller, the transaction stays.

        Raises:
            StoreError: when the transaction fails, or the file is closed; then nothing of it is stored.
        """
        if self._closed:  # nobody would ever do it, and the caller waits to the end
            raise StoreError(f"state {self.path} cannot be written: this process ends; try again with the next one")
        loop = asyncio.get_running_loop()
        outcome: Unstoppable[T] = Unstoppable(loop=loop)
        if not self._collected:
            loop.call_soon(self._hand_over)
        self._collected.append(_Job(write, then, outcome))
        return await to_the_end(outcome)

    def _hand_over(self) -> None:
        """Make one transaction of what was written in one round of the event loop; the thread wakes up once."""
        if self._collected:
            self._jobs.put(self._collected)
            self._collected = []

    def at_rest(self) -> None:
        """Do what need not be done during a write, if there is enough of it: nobody waits for one now."""
        if self._log.is_long and not self._closed:
            self._jobs.put([])

    def close(self) -> None:
        """Finish the writes that wait, then close the file."""
        self._closed = True
        self._hand_over()
        self._jobs.put(None)
        self._thread.join()
        self._connections.close()
        self._transactions.close()
        self._guard.close()

    def _work(self) -> None:
        while (batch := self._jobs.get()) is not None:
            last = False
            while not self._jobs.empty():
                following = self._jobs.get()
                if following is None:
                    last = True
                    break
                batch = batch + following
            if batch:
                self._transaction(batch)
            else:
                self._shorten_log()
            if last:
                return

    def _shorten_log(self) -> None:
        if self._place is None or self._broken:  # the next transaction opens it
            return
        try:
            with self._guard.staying():
                self._log.begin_anew(self._writer)
        except (OSError, sqlite3.Error, StoreError) as error:
            self._note_damage(error)
            logger.info("log of the state not shortened", extra={"path": str(self.path), "error": str(error)})

    def _transaction(self, batch: list[_Job]) -> None:
        results: list[Any] = []
        number, writing, began = 0, False, time.monotonic()
        try:
            if self._broken:
                self._open_again()
            if self._place is None:
                self._open_sound()  # a salvage may have been cut off meanwhile
            with self._guard.staying():
                self._writer.execute("BEGIN IMMEDIATE")
                self._log.make_room()
                writing, before = True, self._writer.total_changes
                results = [job.write(self._writer) for job in batch]
                writing = False
                if self._writer.total_changes != before:
                    number = self._transactions.count(self._writer)
                self._writer.execute("COMMIT")
                in_place = self._place is not None and self._place.is_at(self.path)
            if not in_place:
                with self._guard.renaming():
                    self._make_again()
            if number:
                self._log.committed()
                self._transactions.committed(number)
                self.commit_seconds.add(time.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - belongs to the callers; the thread goes on
            self._give_up()
            self._note_damage(error)
            if writing and len(batch) > 1:  # one of them is not to be written; a savepoint for each costs all of them
                for job in batch:
                    self._transaction([job])
                return
            failure = self._store_error("cannot be written", error) if _of_the_disk(error) else error
            _report([(job, None, failure) for job in batch])
            return
        _report([(job, result, _after(job.then)) for job, result in zip(batch, results, strict=True)])

    def _open_again(self) -> None:
        """Close what is damaged, so that it is put right when it is opened."""
        with self._reading:
            self._place = None
            self._connections.close()
            self._broken = False

    def _make_again(self) -> None:
        """Create the files again that were removed while they were open, with what they hold.

        Raises:
            StoreError: another database is there now; it is opened, and what was just written is not in it.
        """
        found, opened = Place.of(self.path), self._place
        if opened is not None and found.database == opened.database:  # only the log is gone
            [[busy, *_]] = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if busy:
                raise StoreError(f"state {self.path}: its log was removed while the driver runs; try again")
            found = Place.of(self.path)  # whoever removed the log may not have been at an end
        if found.database is None:
            new = copy(self._writer, self.path)
            try:
                put_in_place(new, self.path)
            except FileExistsError:  # the driver's other process was quicker
                found = Place.of(self.path)
        with self._reading:
            self._place = None
            self._connections.close()
            if found.database is None:
                for log in logs(self.path):
                    log.unlink(missing_ok=True)  # of the database that was removed
            self._connect()
        logger.error("state was removed while the driver runs, it is made again", extra={"path": str(self.path)})
        if opened is None or found.database not in {None, opened.database}:
            raise StoreError(f"state {self.path} was replaced by another one while the driver runs; try again")

    def _give_up(self) -> None:
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the next BEGIN tells whether the file works again

    def _store_error(self, what: str, error: Exception) -> StoreError:
        remedy = "check that the disk is writable and not full (--state-dir)"
        if self._broken:
            remedy = "it is set aside and what can be read of it is carried over, then try again"
        if isinstance(error, PermissionError) or getattr(error, "sqlite_errorcode", None) in _NOT_PERMITTED:
            remedy = "run as root, or give a --state-dir you may write to"
        return StoreError(f"state {self.path} {what}: {error}; {remedy}")


def _nothing(_: sqlite3.Connection) -> None:
    """Change nothing: after each transaction it is checked whether the files are in place."""


def _report(ended: list[tuple[_Job, Any, BaseException | None]]) -> None:
    """Tell whoever waits for these jobs, by waking up the event loop once."""

    def settle() -> None:
        for job, result, error in ended:
            if job.outcome is not None:
                job.outcome.settle(result, error)

    waiting = [job.outcome for job, _, _ in ended if job.outcome is not None]
    if waiting:
        with suppress(RuntimeError):  # the loop is closed; nobody waits any more
            waiting[0].get_loop().call_soon_threadsafe(settle)


def _of_the_disk(error: Exception) -> bool:
    return isinstance(error, OSError | sqlite3.Error)


def _after(then: Callable[[], None] | None) -> Exception | None:
    try:
        if then is not None:
            then()
    except Exception as error:  # noqa: BLE001 - belongs to the caller of this job alone
        return error
    return None
