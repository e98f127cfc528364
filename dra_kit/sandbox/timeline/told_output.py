"""What the live view tells of containers' output: what is new, and only as much of it as a person can read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from dra_kit.sandbox.cluster.workload.log_segment import Arrival, Cursor
from dra_kit.sandbox.cluster.workload.orphans import MARK_VARIABLE
from dra_kit.sandbox.cluster.workload.report import ContainerReport
from dra_kit.values.printable import printable

# variables that the shell sets itself, and the one that is the sandbox's own
_NOT_OF_THE_POD: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_", MARK_VARIABLE})
_LINES: Final = (100, 1_000)  # of one container, in a second, and at once after silence
_LINES_OF_ALL: Final = (1_000, 5_000)
_LAST_LINES: Final = 10  # of one that has ended, however loud it was
_WIDTH: Final = 2_000  # bytes of a line


class Allowance:
    """So many in a second; what was not taken is saved.

    Args:
        each_second: how many come to it.
        most: that are saved, and that there are in the beginning.
    """

    def __init__(self, each_second: int, most: int) -> None:
        self._each_second, self._most = each_second, most
        self._left: float = most
        self._at: float | None = None

    def left(self, now: float) -> int:
        """How many there are, at a time in seconds."""
        if self._at is not None:
            self._left = min(self._left + (now - self._at) * self._each_second, self._most)
        self._at = now
        return int(self._left)

    def take(self, number: int) -> None:
        """Take some; more than there are have to be made up for."""
        self._left -= number


class ToldOutput:
    """The output of one container, for people.

    Args:
        report: of the container.
        all_lines: what it may tell together with others.
    """

    def __init__(self, report: ContainerReport, all_lines: Allowance) -> None:
        self.report = report
        self._own, self._all = Allowance(*_LINES), all_lines
        self._cursor = Cursor()
        self._in_line = False  # the line that was told last goes on
        # a container that prints its environment says nothing new by it
        self._known = {f"{name}={value}" for name, value in report.environment.items()}

    @property
    def over(self) -> bool:
        """Everything is told, and nothing more comes."""
        return self.report.log.ended and self._cursor.offset >= self.report.log.end.offset

    def news(self, now: float) -> Sequence[str]:
        """The lines to tell at a time, in seconds; of what is too much only the newest, and how many were left out."""
        log = self.report.log
        behind = log.end.line - self._cursor.line
        if not behind:
            return ()
        room = min(self._own.left(now), self._all.left(now))
        if log.ended:
            room = max(room, _LAST_LINES)
        elif behind > room < _LINES[0]:
            return ()  # until a second's worth has come together
        told: list[str] = []
        begin = max(self._cursor, log.begin, log.tail(room), key=lambda cursor: cursor.offset)
        if left_out := begin.line - self._cursor.line:
            told.append(f"({left_out:,} lines left out; kubectl logs has the newest)")
            self._in_line = False
        self._cursor = begin
        for allowance in (self._own, self._all):
            allowance.take(log.end.line - begin.line)
        while arrivals := (excerpt := log.read(self._cursor)).arrivals:
            self._cursor = excerpt.end
            told += [f"| {line}" for arrival in arrivals for line in self._lines(arrival)]
        return told

    def _lines(self, arrival: Arrival) -> Iterator[str]:
        *lines, rest = arrival.data.split(b"\n")
        for line in lines:
            if not self._in_line:
                yield from self._shown(line, len(line) > _WIDTH)
            self._in_line = False
        if rest and not self._in_line:
            yield from self._shown(rest, not self.over)
            self._in_line = True

    def _shown(self, line: bytes, cut: bool) -> Iterator[str]:
        text = line.decode(errors="replace")
        if text not in self._known and text.partition("=")[0] not in _NOT_OF_THE_POD:
            yield printable(line[:_WIDTH].decode(errors="replace").expandtabs()) + (" …" if cut else "")


class ToldOutputs:
    """The output of all containers."""

    def __init__(self) -> None:
        self._all = Allowance(*_LINES_OF_ALL)
        self._told: deque[ToldOutput] = deque()

    def add(self, report: ContainerReport) -> None:
        """Tell of a container from now on."""
        self._told.append(ToldOutput(report, self._all))

    def news(self, now: float) -> Iterator[tuple[ContainerReport, Sequence[str]]]:
        """The containers that have something to tell at a time, in seconds, with the lines."""
        self._told.rotate(-1)  # that not always the same come too late
        for item in list(self._told):
            if lines := item.news(now):
                yield item.report, lines
            if item.over:
                self._told.remove(item)
