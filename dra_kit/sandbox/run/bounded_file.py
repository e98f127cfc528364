"""Keeps a file that is only appended to from growing without bound, whoever writes to it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LIMIT: Final = 8 << 20
"""Bytes of such a file: when there are more, the older half goes."""

_LOOK_SECONDS: Final = 1.0
_BLOCK: Final = 1 << 16


def trim(path: Path, limit: int) -> None:
    """Drop the oldest lines of a file that is longer than it may be, until half of the limit is left, and say so in it.

    Writers go on with the same file, which they have opened to append. What they write meanwhile stays, but for that
    of the moment between two system calls.

    Args:
        path: of the file.
        limit: bytes that it may have.
    """
    with path.open("r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= limit:
            return
        begin = size - limit // 2
        begin += os.pread(file.fileno(), _BLOCK, begin).find(b"\n") + 1
        notice = f"({begin:,} bytes of older lines went: at most {limit >> 20} MiB are kept)\n".encode()
        target = os.pwrite(file.fileno(), notice, 0)
        while True:
            while block := os.pread(file.fileno(), _BLOCK, begin):
                begin += len(block)
                target += os.pwrite(file.fileno(), block, target)
            if os.fstat(file.fileno()).st_size == begin:
                os.ftruncate(file.fileno(), target)
                return


@contextmanager
def bounded(path: Path, limit: int = LIMIT) -> Iterator[None]:
    """Look after a file in a thread, as long as the block lasts.

    Args:
        path: of the file.
        limit: bytes that it may have, and what comes in a second.
    """
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            try:
                trim(path, limit)
            except FileNotFoundError:
                return  # whoever started this process has removed it

    thread = threading.Thread(target=look, name="log of the sandbox", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
