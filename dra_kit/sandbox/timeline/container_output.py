"""What containers write, as records: all of what is quiet; of what is loud the newest, and the rest at its end."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterator
from typing import Final

from dra_kit.sandbox.cluster.workload.container_log import ContainerLog
from dra_kit.sandbox.cluster.workload.log_segment import Cursor
from dra_kit.sandbox.timeline.records import ContainerOutput, ContainerReference

_LINES: Final = (100, 1_000)  # of one container, in a second, and at once after silence
_LINES_OF_ALL: Final = (1_000, 5_000)
_LAST_LINES: Final = 10  # of one that has ended, however loud it was


class Allowance:
    """So many in a second; what is not taken is saved.

    Args:
        each_second: how many come to it.
        most: that are saved, and that there are in the beginning.
    """

    def __init__(self, each_second: int, most: int) -> None:
        self._each_second, self._most = each_second, most
        self._left: float = most
        self._at: float | None = None

    def left(self, now: float) -> int:
        """Return how many are left, at a time in seconds."""
        if self._at is not None:
            self._left = min(self._left + (now - self._at) * self._each_second, self._most)
        self._at = now
        return int(self._left)

    def take(self, number: int) -> None:
        """Take some; more than there are have to be made up for."""
        self._left -= number


class _Output:
    """The output of one container."""

    def __init__(self, container: ContainerReference, log: ContainerLog, all_lines: Allowance) -> None:
        self.container = container
        self._log = log
        self._own, self._all = Allowance(*_LINES), all_lines
        self._cursor = Cursor()
        self._gaps: list[tuple[Cursor, Cursor]] = []  # that were left out
        self._decoder = _decoder()

    @property
    def over(self) -> bool:
        """Everything is recorded, and nothing more comes."""
        return self._log.ended and self._cursor.offset >= self._log.end.offset

    def news(self, now: float) -> Iterator[ContainerOutput]:
        """Yield what has come until a time, in seconds; of what is too much only the newest."""
        log = self._log
        behind = log.end.line - self._cursor.line
        if not behind:
            return
        room = min(self._own.left(now), self._all.left(now))
        if log.ended:
            room = max(room, _LAST_LINES)
        elif behind > room < _LINES[0]:
            return  # until a second's worth has come together
        begin = max(self._cursor, log.begin, log.tail(room), key=lambda cursor: cursor.offset)
        left_out = begin.line - self._cursor.line
        if left_out:
            gaps = [(start, end) for start, end in self._gaps if end.offset > log.begin.offset]
            self._gaps = [*gaps, (self._cursor, begin)]
            self._decoder = _decoder()
        for allowance in (self._own, self._all):
            allowance.take(log.end.line - begin.line)
        self._cursor = begin
        while arrivals := (excerpt := log.read(self._cursor)).arrivals:
            data, start = b"".join(arrival.data for arrival in arrivals), self._cursor.offset
            self._cursor = excerpt.end
            text = self._decoder.decode(data, self.over)
            yield ContainerOutput(
                container=self.container, text=text, offset=start, size=len(data), left_out=left_out, last=self.over
            )
            left_out = 0

    def late(self) -> Iterator[ContainerOutput]:
        """Yield what was left out, as far as the log has it."""
        gaps, self._gaps = self._gaps, []
        for start, end in gaps:
            cursor, decoder = max(start, self._log.begin, key=lambda place: place.offset), _decoder()
            while cursor.offset < end.offset and (excerpt := self._log.read(cursor, end)).arrivals:
                data = b"".join(arrival.data for arrival in excerpt.arrivals)
                text = decoder.decode(data, excerpt.end.offset >= end.offset)
                yield ContainerOutput(
                    container=self.container, text=text, offset=cursor.offset, size=len(data), late=True
                )
                cursor = excerpt.end


class ContainerOutputs:
    """The output of all containers."""

    def __init__(self) -> None:
        self._all = Allowance(*_LINES_OF_ALL)
        self._outputs: deque[_Output] = deque()

    @property
    def expects_more(self) -> bool:
        """Whether a container may still write, or has written what is not recorded yet."""
        return any(not item.over for item in self._outputs)

    def add(self, container: ContainerReference, log: ContainerLog) -> None:
        """Record what a container writes from now on."""
        self._outputs.append(_Output(container, log, self._all))

    def news(self, now: float) -> Iterator[ContainerOutput]:
        """Yield what has come until a time, in seconds."""
        self._outputs.rotate(-1)  # that not always the same come too late
        for item in list(self._outputs):
            yield from item.news(now)

    def rest(self, now: float, pod_uid: str | None = None) -> Iterator[ContainerOutput]:
        """Yield all that is not recorded yet, of the containers of one pod or of all; forget those that are over."""
        for item in list(self._outputs):
            if pod_uid in {None, item.container.pod.uid}:
                yield from item.news(now)
                yield from item.late()
                if item.over:
                    self._outputs.remove(item)


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
