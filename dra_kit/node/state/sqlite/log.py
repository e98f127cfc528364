"""The write-ahead log: it has room before it is needed, and is begun anew when no call of the kubelet runs.

It has room so that the sync of a commit changes no file's length. Where a file became longer, fdatasync(2) waits for
the file system's own journal, and so for whatever others have to do on that disk; where only its content changed, for
nothing but that. Room is zeros that were written: extents that are merely reserved, by posix_fallocate(3), are marked
as unwritten, and the first write to each of them is for the journal.

A log with zeros behind its last frame is sound, also where the process was killed amid the filling. Of a log sqlite
reads the frames up to the first that is not valid, and "a frame is considered valid if and only if" its salts are those
of the log's header and its checksums fit (https://www.sqlite.org/fileformat2.html, 4.1 WAL File Format). A header is
random salts behind a magic number, so that neither it nor a frame is ever zeros. What stands there after a while is the
rest of the log before this one, which sqlite writes over from the start in the same way.

It is begun anew after a checkpoint, which copies its pages to the database: two syncs, some forty writes, and one sync
more in the commit after it. sqlite makes one in the commit that finds the log long, and a call of a hundred claims
writes some 200 pages: it would often wait for that. So it is made when all calls are answered, and by sqlite only where
one call always follows the other.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_kit.node.state.sqlite.place import Place, logs

logger: logging.Logger = logging.getLogger(__name__)

CHECKPOINT: Final = 500
"""Pages in the log after which sqlite copies it amid a commit; its own 1000 are 4 MB to be filled."""

_LONG: Final = 16  # commits; to begin the log anew costs the next commit a sync, which is not worth it for a few
_FRAME: Final = 24 + 4096  # its header and a page, which is as long as sqlite makes it
_FILLED: Final = 32 + _FRAME * (CHECKPOINT + 50)  # after the log's header; the commit that makes it full goes beyond
_AT_ONCE: Final = 64 * 1024


class Log:
    """The log of a database whose files are open, as its one writer uses it.

    Args:
        path: of the database.
        place: of its files that are open.
    """

    def __init__(self, path: Path, place: Place) -> None:
        self._path = logs(path)[0]
        self._place = place
        self._has_room = False
        self._commits = 0

    @property
    def is_long(self) -> bool:
        """Whether to begin it anew is worth it."""
        return self._commits >= _LONG

    def committed(self) -> None:
        """Count a transaction."""
        self._commits += 1

    def begin_anew(self, database: sqlite3.Connection) -> None:
        """Copy its pages to the database, so that the next commit begins it anew.

        Where another process reads or writes just now, a part of them; the rest has its turn later.

        Args:
            database: in autocommit mode.

        Raises:
            sqlite3.Error: the pages stay where they are, too.
        """
        self._commits = 0
        database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def make_room(self) -> None:
        """Fill it up with zeros, durably, for the first time; in a write transaction, which keeps others from writing.

        Without space for that the log stays as it is: each commit makes it longer, or fails and tells what is wrong.
        """
        if self._has_room:
            return
        self._has_room = True
        try:
            # sqlite locks the database and its index: closing a file of the log gives up no lock of this process
            file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # removed: it is made again after this transaction
            return
        try:
            if self._place.has_log(file):  # else it is another database's, and nothing keeps others from writing there
                _fill(file)
        except OSError as error:
            logger.info("no room made in the log of the state", extra={"path": str(self._path), "error": str(error)})
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
            os.truncate(file, before)  # the last space of a full disk is for what has to be written
        raise
