"""How many transactions a database has seen, stored once more beside it: one that is behind has lost some.

sqlite takes the log's part before the first damaged byte for all that there is, and does not tell. The second file is
written after each commit and never synced: it may lag behind the database, and is never ahead of it. What kill -9
leaves is in the page cache; after a loss of power it may be an older number, and then nothing is found out.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import zlib
from pathlib import Path
from typing import Final

from dra_kit.errors import StoreError
from dra_kit.node.state.sqlite.schema import fact, set_fact

logger: logging.Logger = logging.getLogger(__name__)

_COUNT: Final = "transactions"
_SUFFIX: Final = "-transactions"
_DIGITS: Final = 20


class Transactions:
    """Counts in the database and in the file beside it.

    Args:
        path: of the database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = str(path.with_name(f"{path.name}{_SUFFIX}"))
        self._file: int | None = None
        self._logged = False

    def close(self) -> None:
        """Close it; it is not to be used any more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def count(self, database: sqlite3.Connection) -> int:
        """Count the transaction that is open now; its number, for :meth:`committed`."""
        number = fact(database, _COUNT) + 1
        set_fact(database, _COUNT, number)
        return number

    def committed(self, number: int) -> None:
        """Note that a transaction is durable."""
        try:
            file = self._open()
            if _number(os.pread(file, 64, 0)) < number:  # the driver's other process may be ahead
                os.pwrite(file, _text(number), 0)
        except OSError as error:  # it lags, and that costs nothing but that a loss is not found out
            if not self._logged:
                logger.warning("count of transactions not copied", extra={"path": self._copy, "error": str(error)})
            self._logged = True

    def _open(self) -> int:
        if self._file is not None and not os.fstat(self._file).st_nlink:  # removed: nobody would find it
            self.close()
        if self._file is None:
            self._file = os.open(self._copy, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file

    def copied(self) -> int:
        """Return what the file beside the database says, 0 when it says nothing; to be asked before the database."""
        try:
            return _number(Path(self._copy).read_bytes())
        except OSError:
            return 0

    def compare(self, database: sqlite3.Connection, copied: int) -> None:
        """Find out whether the database has lost transactions; report that, and store it until it is explained.

        Args:
            database: just opened, in autocommit mode.
            copied: what :meth:`copied` returned before.
        """
        if copied <= fact(database, _COUNT):
            return
        database.execute("BEGIN IMMEDIATE")
        try:
            lost = copied - fact(database, _COUNT)  # another process may have found it out meanwhile
            if lost > 0:
                set_fact(database, _COUNT, copied)
                database.execute("INSERT OR IGNORE INTO incomplete (what) VALUES ('claims'), ('transactions')")
            database.execute("COMMIT")
        finally:
            if database.in_transaction:
                database.execute("ROLLBACK")
        if lost <= 0:
            return
        error = StoreError(
            f"state {self._path} has lost the last {lost} transactions, its log was damaged or removed; what no record "
            "stands for is kept until its claim is prepared or released again; check the disk (--state-dir)",
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
