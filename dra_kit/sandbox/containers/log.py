"""The log of a container: what it writes, in segments, within limits; and what ``kubectl logs`` gets of it.

Entries are those of a container runtime's log file (CRI): a line with its end, or a part of a line that is longer than
``LINE_MAX``; containerd splits there too (``max_container_log_line_size``). Readers hold a cursor and read new entries
after it. For one event loop.

When a pipe is full, its writer has to wait until it is read, as in a real container. So a container that writes
endlessly does not slow down the others.

Source of the kubelet's answers: ``pkg/kubelet/kubelet_pods.go`` (validateContainerLogStatus) of Kubernetes 1.37, and
``k8s.io/cri-client/pkg/logs``, which reads the log files of container runtimes.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Final, Protocol

from msgspec import Struct

from dra_kit.apiserver.pod_log import PodLogOptions, PodLogUnavailable

LIMIT: Final = 1 << 20
"""Bytes that are stored of one container's output, the times of its arrivals included."""
LINE_MAX: Final = 1 << 14
"""Bytes of the longest entry; what is longer is stored in parts."""
EXCERPT: Final = 1 << 16
"""Bytes that a reader takes at once."""


class LogPosition(Struct, frozen=True):
    """A place between two entries of a log: the bytes and the entries before it, since the container began."""

    offset: int = 0
    line: int = 0


class LogChunk(Struct, frozen=True):
    """Entries that arrived at the same time.

    Attributes:
        at: when, in nanoseconds since 1970.
        data: lines with their ends; or a part of a line, without.
    """

    at: int
    data: bytes


class LogExcerpt(Struct, frozen=True):
    """What a reader gets.

    Attributes:
        missed: bytes and entries after the cursor that were dropped before they were read.
        arrivals: the remaining arrivals, oldest first.
        end: the cursor for the next read.
    """

    missed: LogPosition
    arrivals: tuple[LogChunk, ...]
    end: LogPosition


class ContainerLog:
    """The output of a container, bounded: the oldest entries are dropped when the limit is exceeded.

    Args:
        limit: bytes to retain; the newest entry is always retained.

    Attributes:
        end: the position after the newest entry. An unfinished line after it is not an entry yet.
        size: bytes that the log takes.
        ended: no more output will arrive.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.end: LogPosition = LogPosition()
        self.size: int = 0
        self.ended: bool = False
        self._limit = limit
        self._part = max(min(limit // 16, EXCERPT), 1)  # what goes at once
        self._segments: list[LogSegment] = []
        self._line = b""  # that has not ended
        self._at = 0
        self._text: str | None = ""
        self._waiting: set[asyncio.Future[None]] = set()
        self._taps: list[LogTap] = []

    # -- for who fills it

    def append(self, data: bytes, at: int) -> None:
        """Add what the container wrote, any part of it; ``at`` is when it arrived, in nanoseconds since 1970."""
        for tap in self._taps:
            tap.add(data)
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
        """Mark the log as complete; an unfinished line becomes an entry. ``at`` is in nanoseconds since 1970."""
        if not self.ended:
            self._store(self._line, at)
            self._line = b""
            self.ended = True
            self._wake_readers()
            for tap in self._taps:
                tap.add(b"")

    def discard(self) -> None:
        """Forget everything until now."""
        self._segments.clear()
        self.size = 0
        self._text = ""

    # -- for readers

    @property
    def begin(self) -> LogPosition:
        """Before the oldest stored entry; what was dropped is before it."""
        return self._segments[0].begin if self._segments else self.end

    @property
    def text(self) -> str:
        """All stored output, as UTF-8; decoded once until something is added."""
        if self._text is None:
            self._text = b"".join(segment.data for segment in self._segments).decode(errors="replace")
        return self._text

    def read(self, cursor: LogPosition, until: LogPosition | None = None) -> LogExcerpt:
        """Return the output between two cursors, at most :data:`EXCERPT` bytes."""
        begin = self.begin
        missed = LogPosition(max(begin.offset - cursor.offset, 0), max(begin.line - cursor.line, 0))
        place = begin if missed.offset else cursor
        arrivals: list[LogChunk] = []
        room = EXCERPT if until is None else min(until.offset - place.offset, EXCERPT)
        for segment in self._segments[self._segment(place.offset) :]:
            for arrival in segment.read(place.offset, room):
                arrivals.append(arrival)
                place = LogPosition(place.offset + len(arrival.data), place.line + entries(arrival.data))
                room -= len(arrival.data)
            if room <= LINE_MAX:
                break  # the next entry may not fit
        return LogExcerpt(missed, tuple(arrivals), place)

    def since(self, at: int) -> LogPosition:
        """Return the place before the first entry that arrived at a time, in nanoseconds since 1970, or later."""
        for segment in self._segments:
            if segment.times[-1] >= at:
                return segment.since(at)
        return self.end

    def tail(self, entries: int) -> LogPosition:
        """Return the place before the last so many entries."""
        line = self.end.line - entries
        for segment in reversed(self._segments):
            if segment.begin.line <= line:
                return segment.find(line)
        return self.begin

    @contextmanager
    def tapped(self) -> Iterator[LogTap]:
        """Give what the container writes during the block, as it arrives, unfinished lines too."""
        tap = LogTap()
        if self.ended:
            tap.add(b"")
        self._taps.append(tap)
        try:
            yield tap
        finally:
            self._taps.remove(tap)

    async def more(self, cursor: LogPosition) -> bool:
        """Wait until something is behind a cursor; False when nothing will be."""
        while cursor.offset >= self.end.offset and not self.ended:
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
        return cursor.offset < self.end.offset

    async def follow(self, cursor: LogPosition, until: LogPosition | None = None) -> AsyncGenerator[LogExcerpt, None]:
        """Yield the output from a cursor to another, or until the container has exited; other tasks run in between."""
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
            last = LogSegment(self.end)
            self._segments.append(last)
        self._at = max(self._at, at)  # the clock may be set back
        last.add(data, self._at, self.end)
        self.size += len(data) + ARRIVAL_BYTES
        self.end = LogPosition(self.end.offset + len(data), self.end.line + entries(data))
        self._text = None
        while self.size > self._limit and len(self._segments) > 1:
            self.size -= self._segments.pop(0).size

    def _wake_readers(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


_TAP_BYTES: Final = 1 << 20


class LogTap:
    """What a container writes from one moment on; for one reader. If it is too slow, it misses the oldest part."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._came = asyncio.Event()

    def add(self, data: bytes) -> None:
        """Add output; nothing is the end."""
        self._parts.append(data)
        self._size += len(data)
        while self._size > _TAP_BYTES and len(self._parts) > 1:
            self._size -= len(self._parts.popleft())
        self._came.set()

    async def read(self) -> bytes:
        """Wait for output and return it; nothing at the end."""
        while not self._parts:
            self._came.clear()
            await self._came.wait()
        if not self._parts[0]:
            return b""
        data = self._parts.popleft()
        self._size -= len(data)
        return data


ARRIVAL_BYTES: Final = 24
"""What is noted of an arrival beside the text itself."""


class LogSegment:
    """Consecutive arrivals that are stored as one unit."""

    def __init__(self, begin: LogPosition) -> None:
        self.begin = begin
        self.data: bytearray = bytearray()
        self.times: array[int] = array("q")
        self._offsets = array("q")  # of each in ``data``
        self._lines = array("q")  # entries before each, since the container began

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.data) + ARRIVAL_BYTES * len(self.times)

    def add(self, data: bytes, at: int, place: LogPosition) -> None:
        """Add an arrival behind the others, which is at a place in the log."""
        self.times.append(at)
        self._offsets.append(len(self.data))
        self._lines.append(place.line)
        self.data += data

    def since(self, at: int) -> LogPosition:
        """Return the place before the first arrival at a time or later; there is one."""
        index = bisect_left(self.times, at)
        return LogPosition(self.begin.offset + self._offsets[index], self._lines[index])

    def read(self, offset: int, room: int) -> list[LogChunk]:
        """Read from a byte on, as many entries as there is room for."""
        begin = offset - self.begin.offset
        found: list[LogChunk] = []
        for index in range(bisect_right(self._offsets, begin) - 1, len(self.times)):
            end = self._end(index)
            if end - begin > room:
                end = self.data.rfind(b"\n", begin, begin + room) + 1
            if end <= begin:
                break
            found.append(LogChunk(self.times[index], bytes(self.data[begin:end])))
            room -= end - begin
            if end < self._end(index):
                break
            begin = end
        return found

    def find(self, line: int) -> LogPosition:
        """Return the place before an entry of this segment."""
        index = bisect_right(self._lines, line) - 1
        begin, end = self._offsets[index], self._end(index)
        # the first place that has so many ends of lines before it
        places = range(begin, end)
        place = begin + bisect_left(
            places, line - self._lines[index], key=lambda place: self.data.count(b"\n", begin, place)
        )
        return LogPosition(self.begin.offset + place, line)

    def _end(self, index: int) -> int:
        return self._offsets[index + 1] if index + 1 < len(self._offsets) else len(self.data)


def entries(data: bytes) -> int:
    """Return the number of entries: lines; a part of a line is one."""
    return data.count(b"\n") or 1


_TURN_SECONDS: Final = 0.001  # of reading, at once
_REST_SECONDS: Final = 0.005  # between turns, at least; what comes meanwhile is one arrival
_SHARE: Final = 0.2  # of the event loop's time, at most
_AT_ONCE: Final = 1 << 16  # bytes; as many as a pipe holds, unless its owner changed that
_AT_THE_END: Final = 1 << 20  # bytes; no pipe of an ordinary process holds more


OUTPUT_LINES: Final = (100, 1_000)
"""Lines that are shown of one container or program: in a second, and at once after silence."""


class RateLimit:
    """A token bucket, full at first."""

    def __init__(self, each_second: int, most: int) -> None:
        self._each_second, self._most = each_second, most
        self._left: float = most
        self._at: float | None = None

    def left(self, now: float) -> int:
        """Return the number of tokens left, at a time in seconds."""
        if self._at is not None:
            self._left = min(self._left + (now - self._at) * self._each_second, self._most)
        self._at = now
        return int(self._left)

    def take(self, number: int) -> None:
        """Take tokens; the balance may become negative."""
        self._left -= number


class OutputSink(Protocol):
    """What a process writes to."""

    def append(self, data: bytes, at: int) -> None:
        """Take output that arrived at a time, in nanoseconds since 1970."""
        ...


class OutputReader:
    """Fills the logs of containers; for one event loop."""

    def __init__(self) -> None:
        self._ready: deque[OutputPipe] = deque()
        self._turn: asyncio.TimerHandle | None = None
        self._rested = 0.0  # when the next turn may be

    def open(self, log: OutputSink) -> tuple[OutputPipe, int]:
        """Create a pipe into a log; return it with its writing end, which the caller closes once the process has it."""
        source, target = os.pipe()
        return self.follow(source, log), target

    def follow(self, source: int, log: OutputSink) -> OutputPipe:
        """Read a descriptor into a log until it ends; it is closed then."""
        os.set_blocking(source, False)
        return OutputPipe(source, log, self._come)

    def _come(self, pipe: OutputPipe) -> None:
        """Queue a pipe that can be read."""
        self._ready.append(pipe)
        if self._turn is None:
            loop = asyncio.get_running_loop()
            self._turn = loop.call_at(max(self._rested, loop.time()), self._read)

    def _read(self) -> None:
        self._turn = None
        begin = time.perf_counter()
        spent = 0.0
        while self._ready and spent < _TURN_SECONDS:
            pipe = self._ready.popleft()
            if pipe.read():
                self._ready.append(pipe)
            spent = time.perf_counter() - begin
        loop = asyncio.get_running_loop()
        self._rested = loop.time() + max(_REST_SECONDS, spent * (1 / _SHARE - 1))
        if self._ready:
            self._turn = loop.call_at(self._rested, self._read)


class OutputPipe:
    """The reading end of the pipe, or of the terminal, that a container writes to.

    Args:
        come: called once when output is available; :meth:`read` is called then.
    """

    def __init__(self, source: int, log: OutputSink, come: Callable[[OutputPipe], None]) -> None:
        self._source: int | None = source
        self._log = log
        self._come = come
        self._wait()

    def read(self) -> bool:
        """Read once; return whether there may be more. If not, ``come`` is called when there is."""
        taken = self._take()
        if taken == _AT_ONCE:
            return True
        if taken is not None:
            self._wait()
        return False

    def finish(self) -> None:
        """Read what has been written so far, and stop: the container has exited."""
        left = _AT_THE_END
        while left > 0 and (taken := self._take()):
            left -= taken
        self._close()

    def _take(self) -> int | None:
        """Return bytes read; None at the end."""
        if self._source is None:
            return None
        try:
            data = os.read(self._source, _AT_ONCE)
        except BlockingIOError:
            return 0
        except OSError:  # a terminal that no process has open any longer
            data = b""
        if not data:
            self._close()
            return None
        self._log.append(data, time.time_ns())
        return len(data)

    def _wait(self) -> None:
        if self._source is not None:
            asyncio.get_running_loop().add_reader(self._source, self._readable)

    def _readable(self) -> None:
        if self._source is not None:
            asyncio.get_running_loop().remove_reader(self._source)
            self._come(self)

    def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            asyncio.get_running_loop().remove_reader(source)
            os.close(source)


_STATUSES: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_WAITS_FOR_IMAGE: Final = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


def find_log(pod: Mapping[str, Any], name: str, *, previous: bool) -> str:
    """Return the ID of the container whose log is requested.

    Raises:
        PodLogUnavailable: there is none.
    """
    who = f"container {json.dumps(name)} in pod {json.dumps(pod['metadata']['name'])}"
    known = [item for field in _STATUSES for item in pod.get("status", {}).get(field) or () if item["name"] == name]
    if not known:
        raise PodLogUnavailable(f"{who} is not available")
    state, last = known[0].get("state") or {}, (known[0].get("lastState") or {}).get("terminated")
    last_id = (last or {}).get("containerID", "")
    if previous:
        if not last_id:
            raise PodLogUnavailable(f"previous terminated {who} not found")
        return str(last_id)
    if "running" in state:
        return str(known[0].get("containerID", ""))
    if "terminated" in state or last is not None:
        found = state.get("terminated", {}).get("containerID") or last_id
        if not found:
            raise PodLogUnavailable(f"{who} is terminated")
        return str(found)
    if "waiting" not in state:
        raise PodLogUnavailable(f"{who} is waiting to start - no logs yet")
    reason = state["waiting"].get("reason", "")
    raise PodLogUnavailable(f"{who} is waiting to start: {_WAITS_FOR_IMAGE.get(reason, reason)}")


async def log_stream(log: ContainerLog, options: PodLogOptions, now: int) -> AsyncGenerator[bytes, None]:
    """Yield the requested part of a log, until the container has ended or the limit is reached.

    ``now`` is in nanoseconds since 1970.
    """
    since = options.since(now)
    tail = log.begin if options.tail_lines is None else log.tail(options.tail_lines)
    begin = max(tail, log.since(since), key=lambda cursor: cursor.offset)
    lines = _Lines(since, options.timestamps)
    room = options.limit_bytes
    async with aclosing(log.follow(begin, None if options.follow else log.end)) as excerpts:
        async for excerpt in excerpts:
            data = b"".join(lines.of(excerpt))[:room]
            yield data
            if room is not None:
                room -= len(data)
                if not room:
                    return


class _Lines:
    """Excerpts as ``kubectl logs`` prints them, from ``since`` on (nanoseconds since 1970)."""

    def __init__(self, since: int, timestamps: bool) -> None:
        self._since = since
        self._timestamps = timestamps
        self._at_line = True

    def of(self, excerpt: LogExcerpt) -> Iterator[bytes]:
        """Yield the parts of one, in order."""
        if excerpt.missed.offset:
            yield f"dra-kit: {excerpt.missed.offset:,} bytes were dropped before they were read\n".encode()
            self._at_line = True
        for arrival in excerpt.arrivals:
            if arrival.at >= self._since:
                yield self._with_times(arrival) if self._timestamps else arrival.data
            self._at_line = arrival.data.endswith(b"\n")

    def _with_times(self, arrival: LogChunk) -> bytes:
        seconds, nanoseconds = divmod(arrival.at, 10**9)
        moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
        prefix = f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z ".encode()
        inner = arrival.data[:-1].replace(b"\n", b"\n" + prefix) + arrival.data[-1:]
        return prefix + inner if self._at_line else inner
