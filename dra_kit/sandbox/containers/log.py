"""What a container wrote: the newest part of it, with the time of each arrival, for any number of readers.

Entries are those of a container runtime's log file (CRI): a line with its end, or a part of a line that is longer than
``LINE_MAX``; containerd splits there too (``max_container_log_line_size``). Readers hold a cursor and take what is new
behind it. For one event loop.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator
from typing import Final

from msgspec import Struct

from dra_kit.sandbox.cluster.workload.log_segment import ARRIVAL_BYTES, Arrival, Cursor, Segment, entries

LIMIT: Final = 1 << 20
"""Bytes that are stored of one container's output, the times of its arrivals included."""

LINE_MAX: Final = 1 << 14
"""Bytes of the longest entry; what is longer is stored in parts."""

EXCERPT: Final = 1 << 16
"""Bytes that a reader takes at once."""


class Excerpt(Struct, frozen=True):
    """What a reader gets.

    Attributes:
        missed: bytes and entries behind the cursor that were dropped before anybody read them.
        arrivals: what came then, oldest first.
        end: where to read on.
    """

    missed: Cursor
    arrivals: tuple[Arrival, ...]
    end: Cursor


class ContainerLog:
    """The output of a container, bounded: when there is more, the oldest entries go.

    Args:
        limit: bytes to keep; at least the newest entry is.

    Attributes:
        end: behind the newest entry. The text behind it, a line that has not ended, is no entry yet.
        size: bytes that it takes.
        ended: nothing more comes.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.end: Cursor = Cursor()
        self.size: int = 0
        self.ended: bool = False
        self._limit = limit
        self._part = max(min(limit // 16, EXCERPT), 1)  # what goes at once
        self._segments: list[Segment] = []
        self._line = b""  # that has not ended
        self._at = 0
        self._text: str | None = ""
        self._waiting: set[asyncio.Future[None]] = set()

    # -- for who fills it

    def append(self, data: bytes, at: int) -> None:
        """Add what the container wrote.

        Args:
            data: any part of its output.
            at: when it arrived, in nanoseconds since 1970.
        """
        text = self._line + data
        begin = place = 0
        step = min(self._part, LINE_MAX + 1)
        while place < len(text):
            line_end = text.rfind(b"\n", place, place + step) + 1
            line_end = line_end or text.find(b"\n", place + step, place + LINE_MAX + 1) + 1
            if line_end:
                place = line_end
                if place - begin >= self._part:
                    self._store(text[begin:place], at)
                    begin = place
            elif len(text) - place > LINE_MAX:
                self._store(text[begin:place], at)
                begin, place = place, place + LINE_MAX
                self._store(text[begin:place], at)
                begin = place
            else:
                break
        self._store(text[begin:place], at)
        self._line = text[place:]
        self._wake_readers()

    def finish(self, at: int) -> None:
        """Note that nothing more comes; a line that has not ended is an entry as it is.

        Args:
            at: when, in nanoseconds since 1970.
        """
        if not self.ended:
            self._store(self._line, at)
            self._line = b""
            self.ended = True
            self._wake_readers()

    def discard(self) -> None:
        """Forget everything until now."""
        self._segments.clear()
        self.size = 0
        self._text = ""

    # -- for readers

    @property
    def begin(self) -> Cursor:
        """Before the oldest stored entry; what was dropped is before it."""
        return self._segments[0].begin if self._segments else self.end

    @property
    def text(self) -> str:
        """All stored output, as UTF-8; decoded once for all who ask before something is added."""
        if self._text is None:
            self._text = b"".join(segment.data for segment in self._segments).decode(errors="replace")
        return self._text

    def read(self, cursor: Cursor, until: Cursor | None = None) -> Excerpt:
        """Return what is behind a cursor, at most :data:`EXCERPT` bytes, and nothing of what is behind another."""
        begin = self.begin
        missed = Cursor(max(begin.offset - cursor.offset, 0), max(begin.line - cursor.line, 0))
        place = begin if missed.offset else cursor
        arrivals: list[Arrival] = []
        room = EXCERPT if until is None else min(until.offset - place.offset, EXCERPT)
        for segment in self._segments[self._segment(place.offset) :]:
            for arrival in segment.read(place.offset, room):
                arrivals.append(arrival)
                place = Cursor(place.offset + len(arrival.data), place.line + entries(arrival.data))
                room -= len(arrival.data)
            if room <= LINE_MAX:
                break  # the next entry may not fit
        return Excerpt(missed, tuple(arrivals), place)

    def since(self, at: int) -> Cursor:
        """Return the place before the first entry that arrived at a time, in nanoseconds since 1970, or later."""
        for segment in self._segments:
            if segment.times[-1] >= at:
                return segment.since(at)
        return self.end

    def tail(self, entries: int) -> Cursor:
        """Return the place before the last so many entries."""
        line = self.end.line - entries
        for segment in reversed(self._segments):
            if segment.begin.line <= line:
                return segment.find(line)
        return self.begin

    async def more(self, cursor: Cursor) -> bool:
        """Wait until something is behind a cursor; False when nothing will be."""
        while cursor.offset >= self.end.offset and not self.ended:
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
        return cursor.offset < self.end.offset

    async def follow(self, cursor: Cursor, until: Cursor | None = None) -> AsyncGenerator[Excerpt, None]:
        """Yield what is behind a cursor, and what comes; others get their turn between.

        Args:
            cursor: where to begin.
            until: where to end; None goes on until the container has ended.
        """
        while (until is None or cursor.offset < until.offset) and await self.more(cursor):
            excerpt = self.read(cursor, until)
            yield excerpt
            cursor = excerpt.end
            await asyncio.sleep(0)

    # --

    def _segment(self, offset: int) -> int:
        """Return the index of the segment that has a byte."""
        return max(bisect_right(self._segments, offset, key=lambda segment: segment.begin.offset) - 1, 0)

    def _store(self, data: bytes, at: int) -> None:
        if not data:
            return
        last = self._segments[-1] if self._segments else None
        if last is None or last.size >= self._part:
            last = Segment(self.end)
            self._segments.append(last)
        self._at = max(self._at, at)  # the clock may be set back
        last.add(data, self._at, self.end)
        self.size += len(data) + ARRIVAL_BYTES
        self.end = Cursor(self.end.offset + len(data), self.end.line + entries(data))
        self._text = None
        while self.size > self._limit and len(self._segments) > 1:
            self.size -= self._segments.pop(0).size

    def _wake_readers(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
