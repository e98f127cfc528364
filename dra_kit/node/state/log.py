"""Room in the write-ahead log before it is needed, so that the sync of a commit changes no file's length.

Where a file became longer, fdatasync(2) waits for the file system's own journal, and so for whatever others have to do
on that disk; where only its content changed, for nothing but that. Room is zeros that were written: extents that are
merely reserved, by posix_fallocate(3), are marked as unwritten, and the first write to each of them is for the journal.

A log with zeros behind its last frame is sound, also where the process was killed amid the filling. Of a log sqlite
reads the frames up to the first that is not valid, and "a frame is considered valid if and only if" its salts are those
of the log's header and its checksums fit (https://www.sqlite.org/fileformat2.html, 4.1 WAL File Format). A header is
random salts behind a magic number, so that neither it nor a frame is ever zeros. What stands there after a while is the
rest of the log before this one, which sqlite writes over from the start in the same way.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_kit.node.state.place import Place, logs

logger: logging.Logger = logging.getLogger(__name__)

CHECKPOINT: Final = 250
"""Pages in the log after which it is copied to the database and begun anew; sqlite's own 1000 are 4 MB to be filled."""

_FRAME: Final = 24 + 4096  # its header and a page, which is as long as sqlite makes it
_FILLED: Final = 32 + _FRAME * (CHECKPOINT + 50)  # after the log's header; the commit that makes it full goes beyond
_AT_ONCE: Final = 64 * 1024


def make_room(path: Path, place: Place) -> None:
    """Fill the log up with zeros, durably; to be called in a write transaction, which keeps others from writing to it.

    Without space for that the log stays as it is: each commit makes it longer, or fails and tells what is wrong.

    Args:
        path: of the database.
        place: of its files that are open.
    """
    log = logs(path)[0]
    try:
        # sqlite locks the database and its index, so that closing a file of the log gives up no lock of this process
        file = os.open(log, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:  # removed: it is made again after this transaction
        return
    try:
        if place.has_log(file):  # else it is another database's, and the transaction keeps nobody from writing there
            _fill(file)
    except OSError as error:
        logger.info("no room made in the log of the state", extra={"path": str(log), "error": str(error)})
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
