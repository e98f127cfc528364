"""A part of a container's log: arrivals, and where their entries begin; pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from msgspec import Struct

ARRIVAL_BYTES: Final = 24
"""What is noted of an arrival beside the text itself."""


class Cursor(Struct, frozen=True):
    """A place between two entries of a log.

    Attributes:
        offset: bytes before it, since the container began.
        line: entries before it.
    """

    offset: int = 0
    line: int = 0


class Arrival(Struct, frozen=True):
    """Entries that arrived at the same time.

    Attributes:
        at: when, in nanoseconds since 1970.
        data: lines with their ends; or a part of a line, without.
    """

    at: int
    data: bytes


class Segment:
    """Arrivals one after the other, which go together.

    Args:
        begin: before the first.

    Attributes:
        begin: before the first.
        data: of all of them.
        times: of each.
    """

    def __init__(self, begin: Cursor) -> None:
        self.begin = begin
        self.data: bytearray = bytearray()
        self.times: array[int] = array("q")
        self._offsets = array("q")  # of each in ``data``
        self._lines = array("q")  # entries before each, since the container began

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.data) + ARRIVAL_BYTES * len(self.times)

    def add(self, data: bytes, at: int, place: Cursor) -> None:
        """Add an arrival behind the others, which is at a place in the log."""
        self.times.append(at)
        self._offsets.append(len(self.data))
        self._lines.append(place.line)
        self.data += data

    def since(self, at: int) -> Cursor:
        """Return the place before the first arrival at a time or later; there is one."""
        index = bisect_left(self.times, at)
        return Cursor(self.begin.offset + self._offsets[index], self._lines[index])

    def read(self, offset: int, room: int) -> list[Arrival]:
        """Read from a byte on, as many entries as there is room for."""
        begin = offset - self.begin.offset
        found: list[Arrival] = []
        for index in range(bisect_right(self._offsets, begin) - 1, len(self.times)):
            end = self._end(index)
            if end - begin > room:
                end = self.data.rfind(b"\n", begin, begin + room) + 1
            if end <= begin:
                break
            found.append(Arrival(self.times[index], bytes(self.data[begin:end])))
            room -= end - begin
            if end < self._end(index):
                break
            begin = end
        return found

    def find(self, line: int) -> Cursor:
        """Return the place before an entry of this segment."""
        index = bisect_right(self._lines, line) - 1
        begin, end = self._offsets[index], self._end(index)
        wanted = line - self._lines[index]
        low = begin
        high = end if wanted else begin
        while low < high:  # the first place that has so many ends of lines before it
            middle = (low + high) // 2
            if self.data.count(b"\n", begin, middle) < wanted:
                low = middle + 1
            else:
                high = middle
        return Cursor(self.begin.offset + low, line)

    def _end(self, index: int) -> int:
        return self._offsets[index + 1] if index + 1 < len(self._offsets) else len(self.data)


def entries(data: bytes) -> int:
    """Return the number of entries: lines; a part of a line is one."""
    return data.count(b"\n") or 1
