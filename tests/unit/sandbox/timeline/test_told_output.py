"""How much of containers' output the live view tells."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from dra_kit.resource.pods import PodReference
from dra_kit.sandbox.cluster.kubelet.pods.runtime import ContainerConfig, ContainerStatus
from dra_kit.sandbox.cluster.workload.container_log import ContainerLog
from dra_kit.sandbox.cluster.workload.report import ContainerReport
from dra_kit.sandbox.timeline.told_output import ToldOutputs

POD = PodReference("kitchen", "guest", "uid-1")


class View:
    """What is told of containers with these logs."""

    def __init__(self, *logs: ContainerLog) -> None:
        self._outputs = ToldOutputs()
        for number, log in enumerate(logs):
            status = ContainerStatus(f"r://{number}", "eater", 0, "x", dt.datetime.now(dt.UTC))
            config = ContainerConfig(POD, f"eater-{number}", 0, "x")
            self._outputs.add(ContainerReport(config, status, {"DOUGH": "thin"}, log, True))

    def news(self, now: float) -> dict[str, Sequence[str]]:
        return {report.config.name: lines for report, lines in self._outputs.news(now)}


def left_out(number: str) -> str:
    return f"({number} lines left out; kubectl logs has the newest)"


def numbers(log: ContainerLog, begin: int, end: int) -> list[str]:
    """Writes numbers; the lines that tell of them."""
    log.append(b"".join(b"%d\n" % number for number in range(begin, end)), 0)
    return [f"| {number}" for number in range(begin, end)]


def test_what_is_new_is_told_once() -> None:
    log = ContainerLog()
    view = View(log)
    log.append(b"one\ntw", 0)

    assert view.news(0) == {"eater-0": ["| one"]}
    assert view.news(1) == {}
    log.append(b"o\nthree", 0)
    log.finish(0)
    assert view.news(2) == {"eater-0": ["| two", "| three"]}
    assert view.news(3) == {}


def test_the_environment_is_told_already() -> None:
    log = ContainerLog()
    log.append(b"DOUGH=thin\nPWD=/tmp\n_=env\nDOUGH=thick\n", 0)

    assert View(log).news(0) == {"eater-0": ["| DOUGH=thick"]}


def test_of_a_loud_container_the_newest_lines_are_told_each_second() -> None:
    log = ContainerLog()
    view = View(log)

    assert view.news(0) == {}
    told = numbers(log, 0, 1_500)
    assert view.news(0) == {"eater-0": [left_out("500"), *told[500:]]}
    told = numbers(log, 1_500, 2_000)
    assert view.news(0.5) == {}
    assert view.news(1) == {"eater-0": [left_out("400"), *told[400:]]}
    assert view.news(1.5) == {}
    assert view.news(9) == {}


def test_what_fell_out_of_the_log_is_left_out_too() -> None:
    log = ContainerLog(1_000)
    view = View(log)
    for number in range(500):
        log.append(b"%d\n" % number, 0)

    (first, *lines) = view.news(0)["eater-0"]

    assert lines[-1] == "| 499"
    assert first == left_out(str(500 - len(lines)))


def test_the_last_lines_of_a_container_are_told_however_loud_it_was() -> None:
    log = ContainerLog()
    view = View(log)
    numbers(log, 0, 1_000)
    view.news(0)
    told = numbers(log, 0, 500)
    log.finish(0)

    assert view.news(0) == {"eater-0": [left_out("490"), *told[490:]]}


def test_many_loud_containers_get_their_turns() -> None:
    logs = [ContainerLog() for _ in range(100)]
    view = View(*logs)
    for log in logs:
        numbers(log, 0, 1_000)
    told = [view.news(0), view.news(1), view.news(2)]

    assert [sum(len([line for line in lines if line[0] == "|"]) for lines in part.values()) for part in told] == [
        5_000, 1_000, 1_000,
    ]  # fmt: skip
    assert len({name for part in told for name in part}) > len(told[0])


def test_a_long_line_is_told_by_its_beginning_once() -> None:
    log = ContainerLog()
    view = View(log)
    log.append(b"x" * 50_000, 0)
    assert view.news(0) == {"eater-0": ["| " + "x" * 2_000 + " …"]}

    log.append(b"x" * 50_000 + b"\nshort\n" + b"y" * 3_000 + b"\n", 0)

    assert view.news(1) == {"eater-0": ["| short", "| " + "y" * 2_000 + " …"]}


def test_what_a_terminal_would_obey_is_escaped() -> None:
    log = ContainerLog()
    log.append(b"\x1b]0;owned\x07\xff x\r\na\tb\n", 0)

    assert View(log).news(0) == {"eater-0": ["| \\x1b]0;owned\\x07\ufffd x\\r", "| a       b"]}
