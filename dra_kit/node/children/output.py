"""What a program writes: into a file that outlives the driver, and from there into the driver's log."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Final, Self

LARGEST: Final = 1 << 20
"""Bytes after which the file is emptied: all of it stands in the log, but what is too much for that."""

LINE_MAX: Final = 2000
LINES_MAX: Final = 500
"""Lines of one look: whoever writes more floods the log, and holds up everybody else who is served here."""

_READ: Final = 1 << 18  # bytes of one look, likewise


class Output:
    """A program's output file, read on from where the last look ended.

    Args:
        path: of the file; made, readable by its owner alone, when it is not there. What stands there already is in the
            log of an earlier process, or of a program that ran before.
        written: by this program, not by one before.
    """

    def __init__(self, path: Path, *, written: bool) -> None:
        self._path = path
        with self.open() as file:
            self._offset = os.fstat(file.fileno()).st_size
        self._rest = b""
        self._last: deque[str] = deque(maxlen=1)
        if written:
            self._last.extend(self._lines_of_old()[-1:])

    def open(self) -> _Appending:
        """Return the file for a program to write to."""
        return _Appending(self._path)

    @property
    def last(self) -> str:
        """The last line, empty when there is none."""
        return self._last[-1] if self._last else _text(self._rest)

    def lines(self) -> list[str]:
        """Return the lines since the last look; a line that has no end yet waits until it has, or is too long."""
        with self.open() as file:
            descriptor = file.fileno()
            size = os.fstat(descriptor).st_size
            if size < self._offset:  # another process has emptied it
                self._offset = 0
            passed_over = max(0, size - self._offset - _READ)
            self._offset += passed_over
            block = os.pread(descriptor, _READ, self._offset)
            self._offset += len(block)
            if self._offset > LARGEST:
                os.ftruncate(descriptor, 0)  # the program appends: it goes on at the beginning
                self._offset = 0
        if passed_over:
            self._rest = b""
            _, _, block = block.partition(b"\n")  # the rest of a line whose beginning was passed over
        *whole, self._rest = (self._rest + block).split(b"\n")
        found = [text for line in whole if (text := _text(line))]
        if len(self._rest) > LINE_MAX:
            found.append(_text(self._rest))
            self._rest = b""
        self._last.extend(found[-1:])
        if passed_over or len(found) > LINES_MAX:
            more = f"{passed_over} bytes and {max(0, len(found) - LINES_MAX)} lines more, which are left out"
            found[:-LINES_MAX] = [more]
        return found

    def rest(self) -> list[str]:
        """Return what is left when the program has ended, with a last line that has no end."""
        found = self.lines()
        if text := _text(self._rest):
            found.append(text)
            self._last.append(text)
        self._rest = b""
        return found

    def _lines_of_old(self) -> list[str]:
        with self.open() as file:
            block = os.pread(file.fileno(), _READ, max(0, self._offset - _READ))
        return [text for line in block.split(b"\n") if (text := _text(line))]


class _Appending:
    """``with`` opens a file for appending, for a program or for reading on."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()[:LINE_MAX]
