"""What is reported of a run and its pods."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from msgspec.structs import replace

from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.sandbox.containers.runtime import HookResources
from dra_kit.sandbox.records import (
    PREPARE,
    CallEnded,
    CallStarted,
    ContainerUpdated,
    ExitStatus,
    HookFailed,
    PodDeletionExplained,
    PodExplained,
    PodScheduled,
    PodTerminating,
    PodUnschedulable,
    Record,
    RunEnded,
)
from dra_kit.sandbox.timeline.recording import Recording, Timeline, TimelineFile
from dra_kit.sandbox.timeline.report import PodProblems, RunReport, writes_by_agent
from dra_kit.sandbox.views.live import LiveView
from tests.unit.sandbox.timeline.runs import (
    LUNCH,
    changed,
    ended,
    output,
    pod,
    records,
    started,
    who,
)

KIB = 1 << 10


def report_of(found: Iterable[Record]) -> dict[str, Any]:
    report = RunReport()
    for record in found:
        report.read(record)
    return report.report()


def pod_of(*found: Record) -> dict[str, Any]:
    [one] = report_of(found)["pods"]
    assert isinstance(one, dict)
    return one


def container_of(*found: Record) -> dict[str, Any]:
    [one] = pod_of(changed(pod(), "ADDED"), *found)["containers"]
    assert isinstance(one, dict)
    return one


@given(records())
def test_report_and_view_of_a_file_equal_the_live_ones(found: Sequence[Record]) -> None:
    clock = itertools.count()
    timeline = Timeline(wall=lambda: dt.datetime(2026, 1, 1, tzinfo=dt.UTC), clock=lambda: next(clock) / 3)
    live, shown = RunReport(), io.StringIO()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "timeline"
        file = TimelineFile(path)
        for reader in (live.read, LiveView(shown).read, file.write):
            timeline.subscribe(reader)
        for record in found:
            timeline.append(record)
        file.close()
        again = io.StringIO()
        view = LiveView(again)
        for record in Recording(path).records():
            view.read(record)

        assert report_of(Recording(path).records()) == live.report()
        assert again.getvalue() == shown.getvalue()


def test_deleted_pod_is_reported_with_its_last_state() -> None:
    found = pod_of(
        changed(pod(), "ADDED"),
        changed(pod(phase="Running")),
        started(),
        output("one\n", 0),
        changed(pod(phase="Running", deletionTimestamp="now")),
        output("two\n", 4),
        ended(code=137),
        changed(pod(phase="Failed", deletionTimestamp="now"), "DELETED"),
    )

    assert (found["phase"], found["node"], found["message"]) == ("Running", "node-1", "")
    [container] = found["containers"]
    assert (container["reason"], container["exitCode"], container["output"]) == ("Running", None, "one\n")


def test_evicted_pod_is_reported_with_the_cause() -> None:
    evicted = PodDeletionExplained(pod=who(), by="kubectl", cause="a request to the Eviction API", evicted=True)
    leaving = changed(pod(phase="Running", deletionTimestamp="now"))

    found = pod_of(changed(pod(), "ADDED"), evicted, leaving, changed(pod(), "DELETED"))

    assert found["message"] == "evicted by kubectl: a request to the Eviction API"


def test_deleted_pod_is_reported_if_the_kubelet_sees_the_deletion_first() -> None:
    found = container_of(
        started(), PodTerminating(node="node-1", pod=who()), ended(code=137), changed(pod(), "DELETED")
    )

    assert (found["reason"], found["exitCode"]) == ("Running", None)


def test_newest_attempt_of_a_container_is_reported() -> None:
    found = container_of(
        started(), output("one\n", 0), ended(code=3), started(attempt=1), output("two\n", 0, attempt=1)
    )

    assert (found["restarts"], found["exitCode"], found["output"]) == (1, None, "two\n")


def test_container_edits_are_reported() -> None:
    found = container_of(started(), ended(code=3))

    assert found == {
        "name": "eater",
        "exitCode": 3,
        "reason": "Error",
        "restarts": 0,
        "environment": {"CHEESE": "brie", "HOME": "/"},
        "fromClaims": {
            "environment": ["CHEESE=brie"],
            "mounts": [],
            "deviceNodes": [],
            "cdiDevices": ["dra.pizza/claim=1"],
        },
        "editsApplied": False,
        "fromHooks": {"environment": [], "mounts": [], "deviceNodes": [], "resources": {}, "interfaces": []},
        "output": "",
        "outputDropped": 0,
    }


def test_last_resources_from_hooks_are_reported() -> None:
    begun = replace(
        started(),
        from_hooks=SpecEdits(env=("PLATE=1",)),
        resources=HookResources(cpus="0-3", hugepages={"2MB": 4}),
        interfaces=("net1",),
    )
    found = container_of(begun)
    assert found["fromHooks"] == {
        "environment": ["PLATE=1"],
        "mounts": [],
        "deviceNodes": [],
        "resources": {"cpus": "0-3", "hugepages": {"2MB": 4}},
        "interfaces": ["net1"],
    }
    updated = ContainerUpdated(node="node-1", container=begun.container, resources=HookResources(cpus="0"))
    assert container_of(begun, updated)["fromHooks"]["resources"] == {"cpus": "0"}


def test_a_failed_hook_is_the_problem_of_its_pod_until_a_container_starts() -> None:
    begun = started()
    problems = PodProblems()
    problems.read(HookFailed(node="node-1", pod=begun.container.pod, message="no plate"))
    assert problems.by_uid == {begun.container.pod.uid: "no plate"}
    problems.read(HookFailed(node="node-1", pod=begun.container.pod, container="eater", message="no chair"))
    assert problems.by_uid == {begun.container.pod.uid: "container eater: no chair"}
    problems.read(begun)
    assert problems.by_uid == {}


def test_late_output_is_reported_at_its_position() -> None:
    found = container_of(started(), output("one\n", 0), output("three\n", 8), output("two\n", 4, late=True))
    assert (found["output"], found["outputDropped"]) == ("one\ntwo\nthree\n", 0)

    found = container_of(started(), output("one\n", 0), output("three\n", 8))
    assert (found["output"], found["outputDropped"]) == ("three\n", 8)


def test_newest_part_of_long_output_is_reported() -> None:
    parts = [output(f"{number:09d}\n" * 1_000, number * 10_000) for number in range(200)]

    found = container_of(started(), *parts)

    assert found["output"].endswith("000000199\n")
    assert 1024 * KIB <= len(found["output"]) < 1040 * KIB
    assert found["outputDropped"] + len(found["output"]) == 200 * 10_000


def test_old_deleted_pods_are_only_counted() -> None:
    deleted = [changed(pod(number), change) for number in range(1_005) for change in ("ADDED", "DELETED")]

    found = report_of(deleted)

    assert (len(found["pods"]), found["pods"][0]["name"], found["podsLeftOut"]) == (1_000, "guest-5", 5)


def test_the_output_of_pods_that_were_deleted_long_ago_is_dropped() -> None:
    text = "x" * 1024 * KIB
    deleted = [
        record
        for number in range(66)
        for record in (
            changed(pod(number), "ADDED"), started(number), output(text, 0, number), changed(pod(number), "DELETED"),
        )
    ]  # fmt: skip

    found = report_of(deleted)["pods"]

    assert [len(item["containers"][0]["output"]) for item in found] == [0, 0, *[len(text)] * 64]


def test_problem_of_a_pod_is_found() -> None:
    problems = PodProblems()

    def after(record: Record) -> str:
        problems.read(record)
        return problems.by_uid.get(who().uid, "")

    assert after(PodExplained(pod=who(), causes=("no claim", "more"))) == "no claim"
    assert after(PodUnschedulable(pod=who(), reason="Unschedulable", message="no node")) == "no node"
    assert after(PodExplained(pod=who(), causes=("no claim",))) == "no node"
    assert after(PodScheduled(pod=who(), node="node-1")) == ""
    call = CallStarted(node="node-1", driver="dra.pizza", method=PREPARE, pod_uid=who().uid, claims=(LUNCH,))
    assert after(call) == "driver dra.pizza has not answered NodePrepareResources for ResourceClaim lunch"
    answer = CallEnded(node="node-1", driver="dra.pizza", method=PREPARE, claims=(LUNCH,), pod=who(), duration=1.0)
    assert after(replace(answer, error="no oven")) == "no oven"
    assert problems.unprepared == {who().uid}
    assert after(call) == "no oven"
    assert after(answer) == ""
    assert problems.unprepared == set()
    assert (
        after(started(end=ExitStatus(128, "StartError", "no such file")))
        == "container eater cannot start: no such file"
    )
    assert after(changed(pod(), "DELETED")) == ""


def test_deleted_pod_is_reported_with_its_problem() -> None:
    found = pod_of(
        changed(pod(), "ADDED"),
        PodUnschedulable(pod=who(), reason="Unschedulable", message="no node"),
        changed(pod(), "DELETED"),
    )
    assert found["message"] == "no node"


def test_the_end_of_the_run_is_reported() -> None:
    end = RunEnded(
        drivers=("dra.pizza",), passed=True, duration=30.00004, leftovers=("a file",), api_writes={"b": 4, "a": 2}
    )

    assert report_of([end]) == {
        "drivers": ["dra.pizza"],
        "passed": True,
        "seconds": 30.0,
        "pods": [],
        "podsLeftOut": 0,
        "failures": [],
        "leftovers": ["a file"],
        "apiWrites": {"total": 6, "perMinute": 12.0, "by": {"b": 4, "a": 2}},
    }


def test_only_writes_are_counted() -> None:
    requests = {("a", "get", "pods"): 7, ("a", "create", "pods"): 2, ("b", "patch", "pods/status"): 4}

    assert writes_by_agent(requests) == {"b": 4, "a": 2}
    assert list(writes_by_agent(requests)) == ["b", "a"]
