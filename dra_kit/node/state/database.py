"""One sqlite database with a single writer: combines many small writes into one durable transaction."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct
from prometheus_client import Histogram

from dra_kit.errors import StoreError
from dra_kit.node.deadlines import UncancellableFuture, wait_to_completion
from dra_kit.node.state.database_files import (
    DatabaseFiles,
    RenameGuard,
    copy_database,
    logs,
    publish_file,
    remove_unfinished,
)
from dra_kit.node.state.salvage import as_text, needs_salvage, salvage
from dra_kit.node.state.schema import fact, migrate, set_fact
from dra_kit.process.metrics import STORE_COMMIT_SECONDS

T = TypeVar("T")
logger: logging.Logger = logging.getLogger(__name__)
Write = Callable[[sqlite3.Connection], T]
# how sqlite reports EACCES and EPERM; for other errors it says that it cannot open the file, or that it is read-only
_NOT_PERMITTED: Final = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY_DIRECTORY)


class _Job(Struct):
    write: Write[Any]
    then: Callable[[], None] | None
    outcome: UncancellableFuture[Any] | None  # None: no caller waits for it


class Database:
    """Reads at once; writes through one thread that combines all pending writes into one transaction.

    Writes come from one event loop, reads from any thread.

    WAL with ``synchronous=FULL``: an acknowledged write survives kill -9 and power loss. Two processes may share the
    file. A corrupt file is renamed and reported, and its readable rows are copied to a new file. A file that has lost
    transactions is reported, too. If the file is removed while it is open, it is created again with all its content
    before the next acknowledgment.

    Attributes:
        path: of the database file; its directory is created if missing.
        commit_seconds: how long transactions with changes took.

    Raises:
        StoreError: it cannot be opened.
        ConfigurationError: a newer release of the driver wrote it in a format that this one does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commit_seconds: Histogram = STORE_COMMIT_SECONDS.histogram()
        # one connection has one snapshot at a time: a reader that shared another's snapshot would miss acknowledged
        # writes
        self._reading = threading.Lock()
        self._place: DatabaseFiles | None = None  # the files that are open
        self._broken = False  # sqlite found a corrupt page: reopen before the next transaction
        self._guard = RenameGuard(path)
        self._transactions = TransactionCounter(path)
        with ExitStack() as guarded:
            guarded.enter_context(closing(self._guard))
            try:
                path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                if path.is_dir():
                    raise StoreError(
                        f"state {path} cannot be opened: it is a directory; move it away, or correct --state-dir"
                    )
                self._open_intact()
            except (OSError, sqlite3.Error) as error:
                raise self._store_error("cannot be opened", error) from error
            guarded.pop_all()
        self._closed = False
        self._collected: list[_Job] = []  # in this iteration of the event loop
        # the writes of one transaction; an empty list: checkpoint the log; None: stop
        self._jobs: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    def _open_intact(self) -> None:
        """Open the database, and salvage it first if it is corrupt."""
        with self._guard.shared():
            remove_unfinished(self.path)
            if not needs_salvage(self.path):
                self._connect()
                return
        with self._guard.exclusive():
            salvage(self.path, partial(migrate, path=self.path))
            self._connect()

    def _connect(self) -> None:
        copied = self._transactions.copied()
        self.path.touch(mode=0o600)  # the records contain the environment of containers
        with ExitStack() as opened:
            self._writer = opened.enter_context(closing(self._open()))
            migrate(self._writer, self.path)
            self._transactions.compare(self._writer, copied)
            self._reader = opened.enter_context(closing(self._open()))
            self._place = DatabaseFiles.of(self.path)
            self._log = WriteAheadLog(self.path, self._place)
            self._connections = opened.pop_all()

    def _open(self) -> sqlite3.Connection:
        # autocommit mode: transactions are begun and ended explicitly
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
        """Return all rows of a query, which sees every acknowledged write. Thread-safe.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            with self._reading:
                if self._place is None or not self._place.is_at(self.path):  # its content would not be durable
                    self._jobs.put([_Job(_nothing, None, None)])
                    raise StoreError(f"state {self.path} was removed; the running driver recreates it; try again")
                return self._reader.execute(sql, arguments).fetchall()
        except (OSError, sqlite3.Error) as error:
            if self._note_corruption(error):
                self._jobs.put([_Job(_nothing, None, None)])
            raise self._store_error("cannot be read", error) from error

    def _note_corruption(self, error: Exception) -> bool:
        """Return whether sqlite has found a corrupt page, and note that."""
        corrupt = getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
        self._broken = self._broken or corrupt
        return corrupt

    async def write(self, write: Write[T], then: Callable[[], None] | None = None) -> T:
        """Run ``write`` in the next transaction, and return its result once that is durable.

        An exception that ``write`` raises rolls back only its own changes and reaches the caller. A cancelled caller
        still waits for the end; a cancelled write may be stored.

        Args:
            write: changes the database; its result is returned. It is called again if another write in the same
                transaction failed.
            then: called in the writer's thread once the transaction is durable, for files that are derived from it. Its
                exception reaches the caller; the transaction stays committed.

        Raises:
            StoreError: the transaction failed, or the file is closed; nothing is stored.
        """
        if self._closed:  # it would never be done, and the caller would wait forever
            raise StoreError(f"state {self.path} cannot be written: this process is stopping; retry with the next one")
        loop = asyncio.get_running_loop()
        outcome: UncancellableFuture[T] = UncancellableFuture(loop=loop)
        if not self._collected:
            loop.call_soon(self._hand_over)
        self._collected.append(_Job(write, then, outcome))
        return await wait_to_completion(outcome)

    def _hand_over(self) -> None:
        """Combine the writes of one event loop iteration into one transaction; the thread wakes up once."""
        if self._collected:
            self._jobs.put(self._collected)
            self._collected = []

    def at_rest(self) -> None:
        """Checkpoint the log if it is long: no caller waits for a write now."""
        if self._log.is_long and not self._closed:
            self._jobs.put([])

    def close(self) -> None:
        """Finish the pending writes, then close the file."""
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
        if self._place is None or self._broken:  # the next transaction reopens it
            return
        try:
            with self._guard.shared():
                self._log.restart(self._writer)
        except (OSError, sqlite3.Error, StoreError) as error:
            self._note_corruption(error)
            cause = getattr(error, "strerror", None) or str(error)  # sqlite's errors have none
            logger.info("log of the state not checkpointed", extra={"path": str(self.path), "error": cause})

    def _transaction(self, batch: list[_Job]) -> None:
        results: list[Any] = []
        number, writing, began = 0, False, time.monotonic()
        try:
            if self._broken:
                self._open_again()
            if self._place is None:
                self._open_intact()  # a salvage may have been interrupted meanwhile
            with self._guard.shared():
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
                with self._guard.exclusive():
                    self._recreate()
            if number:
                self._log.committed()
                self._transactions.committed(number)
                self.commit_seconds.observe(time.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - belongs to the callers; the thread continues
            self._roll_back()
            self._note_corruption(error)
            if writing and len(batch) > 1:  # one of them fails; savepoints would slow down all writes
                for job in batch:
                    self._transaction([job])
                return
            of_disk = isinstance(error, OSError | sqlite3.Error)
            failure = self._store_error("cannot be written", error) if of_disk else error
            _report([(job, None, failure) for job in batch])
            return
        _report([(job, result, _after(job.then)) for job, result in zip(batch, results, strict=True)])

    def _open_again(self) -> None:
        """Close the corrupt database, so that it is salvaged when it is reopened."""
        with self._reading:
            self._place = None
            self._connections.close()
            self._broken = False

    def _recreate(self) -> None:
        """Create files again that were removed while they were open, with their content.

        Raises:
            StoreError: there is another database now; it is opened, and the last write is not in it.
        """
        found, opened = DatabaseFiles.of(self.path), self._place
        if opened is not None and found.database == opened.database:  # only the log is gone
            [[busy, *_]] = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if busy:
                raise StoreError(f"state {self.path}: its log was removed; the running driver recreates it; try again")
            found = DatabaseFiles.of(self.path)  # more files may have been removed after the log
        if found.database is None:
            new = copy_database(self._writer, self.path)
            try:
                publish_file(new, self.path)
            except FileExistsError:  # the driver's other process was faster
                found = DatabaseFiles.of(self.path)
        with self._reading:
            self._place = None
            self._connections.close()
            if found.database is None:
                for log in logs(self.path):
                    log.unlink(missing_ok=True)  # of the database that was removed
            self._connect()
        logger.error("removed state recreated", extra={"path": str(self.path)})
        if opened is None or found.database not in {None, opened.database}:
            raise StoreError(f"state {self.path} was replaced by another file while the driver was running; try again")

    def _roll_back(self) -> None:
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the next BEGIN shows whether the file works again

    def _store_error(self, what: str, error: Exception) -> StoreError:
        remedy = "check that the disk is writable and not full (--state-dir)"
        if self._broken:
            remedy = "the driver moves it away and copies its readable rows to a new file; try again"
        if isinstance(error, PermissionError) or getattr(error, "sqlite_errorcode", None) in _NOT_PERMITTED:
            remedy = "run as root, or set --state-dir to a writable directory"
        cause = getattr(error, "strerror", None) or error  # sqlite's errors have none
        return StoreError(f"state {self.path} {what}: {cause}; {remedy}")


def _nothing(_: sqlite3.Connection) -> None:
    """Change nothing; used to check whether the files are in place, as after each transaction."""


def _report(ended: list[tuple[_Job, Any, BaseException | None]]) -> None:
    """Settle the outcomes of these jobs, and wake up the event loop only once."""

    def settle() -> None:
        for job, result, error in ended:
            if job.outcome is not None:
                job.outcome.settle(result, error)

    waiting = [job.outcome for job, _, _ in ended if job.outcome is not None]
    if waiting:
        with suppress(RuntimeError):  # the loop is closed; no caller waits any more
            waiting[0].get_loop().call_soon_threadsafe(settle)


def _after(then: Callable[[], None] | None) -> Exception | None:
    try:
        if then is not None:
            then()
    except Exception as error:  # noqa: BLE001 - belongs to the caller of this job alone
        return error
    return None


_COUNT: Final = "transactions"
_SUFFIX: Final = "-transactions"
_DIGITS: Final = 20


class TransactionCounter:
    """Counts transactions, in the database at ``path`` and in a file next to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = str(path.with_name(f"{path.name}{_SUFFIX}"))
        self._file: int | None = None
        self._logged = False

    def close(self) -> None:
        """Close the file; the counter must not be used afterwards."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def count(self, database: sqlite3.Connection) -> int:
        """Count the transaction that is open now; return its number, for :meth:`committed`."""
        number = fact(database, _COUNT) + 1
        set_fact(database, _COUNT, number)
        return number

    def committed(self, number: int) -> None:
        """Note that a transaction is durable."""
        try:
            file = self._open()
            if _number(os.pread(file, 64, 0)) < number:  # the driver's other process may be ahead
                os.pwrite(file, _text(number), 0)
        except OSError as error:  # the file lags behind: at worst, a loss is not detected
            if not self._logged:
                logger.warning("count of transactions not copied", extra={"path": self._copy, "error": error.strerror})
            self._logged = True

    def _open(self) -> int:
        if self._file is not None and not os.fstat(self._file).st_nlink:  # removed: no other process would find it
            self.close()
        if self._file is None:
            self._file = os.open(self._copy, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file

    def copied(self) -> int:
        """Return the count in the file beside the database, or 0; read it before the database."""
        try:
            return _number(Path(self._copy).read_bytes())
        except OSError:
            return 0

    def compare(self, database: sqlite3.Connection, copied: int) -> None:
        """Report lost transactions, and store the loss until all claims are known to have records.

        The database is just opened, in autocommit mode; ``copied`` is what :meth:`copied` returned before.
        """
        if copied <= fact(database, _COUNT):
            return
        with database:
            database.execute("BEGIN IMMEDIATE")
            lost = copied - fact(database, _COUNT)  # another process may have detected it meanwhile
            if lost > 0:
                set_fact(database, _COUNT, copied)
                database.execute("INSERT OR IGNORE INTO incomplete (what) VALUES ('claims'), ('transactions')")
        if lost <= 0:
            return
        error = StoreError(
            f"state {self._path} has lost the last {lost} transactions: its log was corrupt or removed; files and "
            "effects without a record stay until their claims are prepared or released again; check the disk "
            "(--state-dir)",
            code="lost-transactions",
        )
        logger.error("state has lost transactions", extra={"error": str(error), "code": error.code, "lost": lost})


def _text(number: int) -> bytes:
    digits = f"{number:0{_DIGITS}d}"
    return f"{digits} {zlib.crc32(digits.encode()):08x}\n".encode()


def _number(text: bytes) -> int:
    digits = text[:_DIGITS]
    if not digits.isdigit() or text != _text(int(digits)):
        return 0
    return int(digits)


CHECKPOINT: Final = 500
"""Pages in the log after which sqlite checkpoints it during a commit; its default of 1000 would mean a file of 4 MB."""
_LONG: Final = 16  # commits; restarting the log costs the next commit a sync, not worth it for a few
_FRAME: Final = 24 + 4096  # its header and a page of sqlite's default size
_FILLED: Final = 32 + _FRAME * (CHECKPOINT + 50)  # after the log's header; the commit that fills it exceeds CHECKPOINT
_AT_ONCE: Final = 64 * 1024


class WriteAheadLog:
    """The write-ahead log of the database at ``path``, whose open files are ``place``; used by its only writer."""

    def __init__(self, path: Path, place: DatabaseFiles) -> None:
        self._path = logs(path)[0]
        self._place = place
        self._has_room = False
        self._commits = 0

    @property
    def is_long(self) -> bool:
        """Return whether restarting the log is worth its cost."""
        return self._commits >= _LONG

    def committed(self) -> None:
        """Count a transaction."""
        self._commits += 1

    def restart(self, database: sqlite3.Connection) -> None:
        """Copy the pages of the log to the database, so that the next commit restarts the log.

        While another process reads or writes, only some of the pages are copied; the rest follows later. The database
        is in autocommit mode; after an error the log stays unchanged.
        """
        self._commits = 0
        database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def make_room(self) -> None:
        """Fill the log with zeros once, durably, in a write transaction, which prevents other writes.

        Without enough disk space the log stays unchanged: each commit then extends it, or fails with an error.
        """
        if self._has_room:
            return
        self._has_room = True
        try:
            # sqlite locks the database and its index: closing a file of the log releases no lock of this process
            file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # removed: it is created again after this transaction
            return
        try:
            if self._place.has_log(file):  # otherwise it is another database's, and not locked
                _fill(file)
        except OSError as error:
            logger.info("log of the state not preallocated", extra={"path": str(self._path), "error": error.strerror})
        finally:
            os.close(file)


def _fill(file: int) -> None:
    before = end = os.fstat(file).st_size
    if end >= _FILLED:
        return
    try:
        while end < _FILLED:
            end += os.pwrite(file, bytes(min(_FILLED - end, _AT_ONCE)), end)
        os.fsync(file)
    except OSError:
        with suppress(OSError):
            os.truncate(file, before)  # leave the last space of a full disk to real writes
        raise
