"""How much of containers' output becomes records, and what the live view shows of it."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.resource.objects import PodReference
from dra_kit.sandbox.containers.log import ContainerLog
from dra_kit.sandbox.records import ContainerOutput, ContainerReference, ContainerStarted
from dra_kit.sandbox.timeline.feed import ContainerOutputs
from dra_kit.sandbox.views.live import OutputLines

POD = PodReference("kitchen", "guest", "uid-1")


class Watched:
    """The output of containers with these logs."""

    def __init__(self, *logs: ContainerLog) -> None:
        self._outputs = ContainerOutputs()
        self._lines: dict[str, OutputLines] = {}
        for number, log in enumerate(logs):
            container = ContainerReference(POD, f"eater-{number}", f"r://{number}")
            started = ContainerStarted(node="node-1", container=container, environment={"DOUGH": "thin"})
            self._lines[container.name] = OutputLines(started)
            self._outputs.add(container, log)

    def news(self, now: float) -> list[ContainerOutput]:
        return list(self._outputs.news(now))

    def rest(self, now: float) -> list[ContainerOutput]:
        return list(self._outputs.rest(now))

    def shown(self, now: float) -> dict[str, list[str]]:
        """What the live view shows at a time."""
        found: dict[str, list[str]] = {}
        for record in self.news(now):
            lines = self._lines[record.container.name].read(record)
            if lines:
                found.setdefault(record.container.name, []).extend(lines)
        return found


def left_out(number: str) -> str:
    return f"({number} lines left out; kubectl logs has the newest)"


def numbers(log: ContainerLog, begin: int, end: int) -> list[str]:
    """Write numbers; the lines that show them."""
    log.append(b"".join(b"%d\n" % number for number in range(begin, end)), 0)
    return [f"| {number}" for number in range(begin, end)]


def test_changes_are_shown_once() -> None:
    log = ContainerLog()
    watched = Watched(log)
    log.append(b"one\ntw", 0)

    assert watched.shown(0) == {"eater-0": ["| one"]}
    assert watched.shown(1) == {}
    log.append(b"o\nthree", 0)
    log.finish(0)
    assert watched.shown(2) == {"eater-0": ["| two", "| three"]}
    assert watched.shown(3) == {}


def test_unchanged_environment_is_not_repeated() -> None:
    log = ContainerLog()
    log.append(b"DOUGH=thin\nPWD=/tmp\n_=env\nDOUGH=thick\n", 0)

    assert Watched(log).shown(0) == {"eater-0": ["| DOUGH=thick"]}


def test_newest_lines_of_a_noisy_container_are_recorded_each_second() -> None:
    log = ContainerLog()
    watched = Watched(log)

    assert watched.shown(0) == {}
    told = numbers(log, 0, 1_500)
    assert watched.shown(0) == {"eater-0": [left_out("500"), *told[500:]]}
    told = numbers(log, 1_500, 2_000)
    assert watched.shown(0.5) == {}
    assert watched.shown(1) == {"eater-0": [left_out("400"), *told[400:]]}
    assert watched.shown(1.5) == {}
    assert watched.shown(9) == {}


def test_lines_dropped_by_the_log_are_counted_as_left_out() -> None:
    log = ContainerLog(1_000)
    watched = Watched(log)
    for number in range(500):
        log.append(b"%d\n" % number, 0)

    (first, *lines) = watched.shown(0)["eater-0"]

    assert lines[-1] == "| 499"
    assert first == left_out(str(500 - len(lines)))


def test_last_lines_of_a_noisy_container_are_always_recorded() -> None:
    log = ContainerLog()
    watched = Watched(log)
    numbers(log, 0, 1_000)
    watched.shown(0)
    told = numbers(log, 0, 500)
    log.finish(0)

    assert watched.shown(0) == {"eater-0": [left_out("490"), *told[490:]]}


def test_noisy_containers_share_the_limit() -> None:
    logs = [ContainerLog() for _ in range(100)]
    watched = Watched(*logs)
    for log in logs:
        numbers(log, 0, 1_000)
    told = [watched.shown(0), watched.shown(1), watched.shown(2)]

    assert [sum(len([line for line in lines if line[0] == "|"]) for lines in part.values()) for part in told] == [
        5_000, 1_000, 1_000,
    ]  # fmt: skip
    assert len({name for part in told for name in part}) > len(told[0])


def test_long_line_is_shown_once_and_truncated() -> None:
    log = ContainerLog()
    watched = Watched(log)
    log.append(b"x" * 50_000, 0)
    assert watched.shown(0) == {"eater-0": ["| " + "x" * 2_000 + " …"]}

    log.append(b"x" * 50_000 + b"\nshort\n" + b"y" * 3_000 + b"\n", 0)

    assert watched.shown(1) == {"eater-0": ["| short", "| " + "y" * 2_000 + " …"]}


def test_terminal_control_characters_are_escaped() -> None:
    log = ContainerLog()
    log.append(b"\x1b]0;owned\x07\xff x\r\na\tb\n", 0)

    assert Watched(log).shown(0) == {"eater-0": ["| \\x1b]0;owned\\x07\ufffd x\\r", "| a       b"]}


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 60)), max_size=20), st.integers(1, 2_000))
def test_rest_of_the_log_is_recorded_at_the_end(parts: list[tuple[bytes, int]], limit: int) -> None:
    log = ContainerLog(limit)
    watched = Watched(log)
    found: list[ContainerOutput] = []
    for now, (data, times) in enumerate(parts):
        log.append(data * times, 0)
        found += watched.news(now / 50)
    log.finish(0)
    found += watched.rest(len(parts))

    pieces = sorted(found, key=lambda record: record.offset)
    assert all(one.offset + one.size <= other.offset for one, other in itertools.pairwise(pieces))
    kept = [record for record in pieces if record.offset + record.size > log.begin.offset]
    assert sum(record.size for record in kept) >= log.end.offset - log.begin.offset
    assert all(one.offset + one.size == other.offset for one, other in itertools.pairwise(kept))
    assert not kept or kept[-1].offset + kept[-1].size == log.end.offset
    if not any(record.late for record in found) and not log.begin.offset:
        assert "".join(record.text for record in kept) == log.text


def test_character_split_between_records_is_decoded_in_the_second() -> None:
    log = ContainerLog()
    watched = Watched(log)
    text = "ü" * 20_000
    log.append(b"x" + text.encode(), 0)  # an entry ends within a letter
    first = watched.news(0)
    log.finish(0)

    assert "".join(record.text for record in [*first, *watched.rest(1)]) == f"x{text}"


def test_expects_more_until_an_exited_container_is_fully_recorded() -> None:
    log, outputs = ContainerLog(), ContainerOutputs()
    expected = [outputs.expects_more]
    outputs.add(ContainerReference(POD, "eater-0", "r://0"), log)
    expected.append(outputs.expects_more)
    log.append(b"one\n", 0)
    log.finish(0)
    expected.append(outputs.expects_more)

    assert [record.text for record in outputs.news(0)] == ["one\n"]

    assert [*expected, outputs.expects_more] == [False, True, True, False]
