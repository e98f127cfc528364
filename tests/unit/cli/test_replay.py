"""``dra-kit replay``: recordings of sandboxes, whole and corrupt."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.cli.app import cli
from dra_kit.sandbox.records import (
    ObjectChanged,
    PodUnschedulable,
    Record,
    RecordingStarted,
    RunReported,
    StoryBegan,
)
from dra_kit.sandbox.timeline.recording import RecordFile, Timeline, record_line
from dra_kit.sandbox.views.live import LiveView
from tests.support.page_world import PageWorld, gpu_cluster
from tests.unit.sandbox.timeline import runs
from tests.unit.sandbox.timeline.runs import changed, pod, who

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["replay", *map(str, arguments)])


def write(path: Path, found: Iterable[Record], *, shown: io.StringIO | None = None) -> Path:
    """A recording in which a third of a second passes between records; ``shown`` gets what was printed meanwhile."""
    clock = itertools.count()
    timeline = Timeline(wall=lambda: START, clock=lambda: next(clock) / 3)
    file = RecordFile(path, 1 << 20)
    timeline.subscribe(lambda record: file.append(record_line(record)))
    if shown is not None:
        LiveView(shown).follow(timeline)
    for record in found:
        timeline.append(record)
    file.close()
    return path


def reported() -> st.SearchStrategy[Record]:
    text = st.sampled_from(["", "everything runs", "a\x1bb", "chart is ready"])
    return st.one_of(
        st.builds(RunReported, text=text, details=st.lists(st.sampled_from(["one", "two\nthree"])).map(tuple)),
        st.just(StoryBegan(story="order-by-claim", namespace="story-1")),
    )


@given(st.lists(reported(), max_size=5), runs.records(), st.integers(0, 30))
def test_a_recorded_run_replays_to_the_same_text(own: list[Record], found: Sequence[Record], position: int) -> None:
    shown = io.StringIO()
    with tempfile.TemporaryDirectory() as directory:
        records = [RecordingStarted(version="v1.37.1"), *found[:position], *own, *found[position:]]
        path = write(Path(directory) / "run.jsonl", records, shown=shown)

        result = run(path)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == shown.getvalue()


def test_until_ends_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [RunReported(text=f"line {number}") for number in range(1, 9)])

    assert re.findall(r"line \d", run(path, "--until", "+1s").stdout) == ["line 1", "line 2", "line 3"]


def test_speed_plays_in_proportion_to_the_recorded_time(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [RunReported(text=f"line {number}") for number in range(1, 10)])  # 3 seconds
    begin = time.monotonic()

    result = run(path, "--speed", "10")

    assert result.stdout.count("line") == 9
    assert time.monotonic() - begin >= 0.3


@pytest.mark.parametrize("text", ["", "soon", "+", "-1", "1d", "1e9", "nan", "s", "12.5.1"])
def test_time_that_cannot_be_read_is_rejected_with_an_example(tmp_path: Path, text: str) -> None:
    result = run(write(tmp_path / "run.jsonl", [RunReported(text="one")]), "--at", text)

    assert result.exit_code == 2
    assert "is not a time; write it like +12.5s, 90, 10m or 1h30m." in result.stderr


@pytest.mark.parametrize(
    "options", [("--ui", "--speed", "2"), ("--at", "1", "--until", "2"), ("--ui-port", "0", "--at", "1")]
)
def test_options_that_exclude_each_other(tmp_path: Path, options: tuple[str, ...]) -> None:
    result = run(write(tmp_path / "run.jsonl", [RunReported(text="one")]), *options)

    assert result.exit_code == 2
    assert "cannot be combined with" in result.stderr


# --- at a moment


def test_a_moment_shows_devices_claims_pods_and_explains_pending_pods(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    path.write_bytes(b"".join(record_line(record) for record in gpu_cluster().records))

    result = run(path, "--at", "1h")

    assert result.exit_code == 0
    for text in ("Devices of gpu.example.com  ", "\nClaims  ", "\nPods  "):
        assert text in result.stdout
    assert re.search(r"^  gpu-0 +train-1 ", result.stdout, re.MULTILINE)
    assert re.search(r"^  train-9 +pending +0/2 nodes are available$", result.stdout, re.MULTILINE)
    assert "request gpu: needs 9 devices on one node, but no node has more than 7 that fit" in result.stdout
    assert result.stdout.endswith("pod default/train-9 cannot be scheduled\n")


def test_a_moment_shows_the_state_of_then(tmp_path: Path) -> None:
    waits = PodUnschedulable(pod=who(1), reason="Unschedulable", message="0/1 nodes are available")
    path = write(tmp_path / "run.jsonl", [changed(pod(1), "ADDED"), waits, changed(pod(1, "Running")), waits])

    assert re.search(r"guest-1 +Pending +node-1 +0/1 nodes are available", run(path, "--at", "0.7").stdout)
    assert re.search(r"guest-1 +Running", run(path, "--at", "+1s").stdout)


def test_a_moment_before_the_first_record_is_rejected(tmp_path: Path) -> None:
    result = run(write(tmp_path / "run.jsonl", [RunReported(text="one")]), "--at", "0.1")

    assert result.exit_code == 2
    assert "has no record up to this time; use a later time" in result.stderr


@pytest.mark.parametrize(("gates", "explained"), [(("DRADeviceTaints",), True), ((), False)])
def test_explanations_use_the_gates_of_the_recording(
    tmp_path: Path, gates: tuple[str, ...], *, explained: bool
) -> None:
    path = tmp_path / "gpu.jsonl"
    header = RecordingStarted(number=1, version="v1.37.1", gates=gates)
    found = [header, *tainted_cluster()]
    path.write_bytes(b"".join(record_line(record) for record in found))

    assert ("taint" in explanation(run(path, "--at", "1h").stdout)) is explained


def explanation(text: str) -> str:
    return text.partition("\nPods  ")[2].partition("\n\n")[2]


def tainted_cluster() -> list[Record]:
    """A cluster whose only device has a taint, and a pod that waits for it."""
    world = PageWorld()
    world.start("gpu.example.com")
    world.node("node-1")
    world.devices("node-1", count=1, gpu_0={"taints": [{"key": "example.com/xid-79", "effect": "NoSchedule"}]})
    world.claim("train")
    world.pod("train")
    return world.records


# --- corrupt files


def test_recording_that_was_cut_off_is_played_to_its_end(tmp_path: Path) -> None:
    path = write(
        tmp_path / "run.jsonl",
        [RecordingStarted(version="v1.37.1"), *(RunReported(text=f"line {n}") for n in range(3))],
    )
    path.write_bytes(path.read_bytes()[:-20])

    result = run(path)

    assert result.exit_code == 0
    assert re.findall(r"line \d", result.stdout) == ["line 0", "line 1"]
    assert result.stderr == f"{path}: the last line is incomplete, because the recording was interrupted there\n"


@given(st.data())
def test_any_corruption_of_a_recording_is_reported_without_a_traceback(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = write(Path(directory) / "run.jsonl", [RecordingStarted(version="v1.37.1"), *gpu_cluster().records][:40])
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 5))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        path.write_bytes(content)
        options = data.draw(st.sampled_from([(), ("--at", "1h")]))

        result = run(path, *options)

    assert result.exit_code in {0, 2}
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("resource", "obj"),
    [
        ("pods", {"spec": 1}),
        ("resourceslices.resource.k8s.io", {}),
        ("resourceslices.resource.k8s.io", {"spec": {"driver": [], "pool": 3}}),
        ("resourceclaims.resource.k8s.io", {"spec": {"devices": {"requests": 1}}, "status": {"allocation": [1]}}),
        ("devicetaintrules.resource.k8s.io", {"spec": {"taint": None}}),
    ],
)
@pytest.mark.parametrize("options", [(), ("--at", "1h")])
def test_objects_of_another_shape_are_reported(
    tmp_path: Path, resource: str, obj: dict[str, Any], options: tuple[str, ...]
) -> None:
    named = {"metadata": {"name": "odd", "namespace": "default", "uid": "u"}, **obj}
    odd = ObjectChanged(change="ADDED", resource=resource, object=named)
    path = write(tmp_path / "run.jsonl", [RecordingStarted(version="v1.37.1"), odd, RunReported(text="the end")])

    result = run(path, *options)

    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.stderr


def test_names_in_messages_cannot_control_the_terminal(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [RecordingStarted(version="v1.37.1")])
    path.write_bytes(path.read_bytes() + b'{"kind":"\\u001b[31mLunch"}\n')

    assert "\x1b" not in run(path).stderr


def test_folders_and_pipes_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert run(tmp_path).exit_code == 2
    assert "is not a regular file" in run(tmp_path / "pipe").stderr


# --- the page


@pytest.mark.processes
def test_the_page_plays_a_recording_until_it_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    found = [RecordingStarted(number=1, version="v1.37.1", gates=("DRADeviceTaints",)), *gpu_cluster().records]
    path.write_bytes(b"".join(record_line(record) for record in found))  # two records have the number 1
    command = [str(Path(sys.executable).with_name("dra-kit")), "replay", str(path), "--ui"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.fullmatch(r"page: (http://127\.0\.0\.1:\d+/)#token=([\w-]+)\n", process.stdout.readline())
        assert address

        def get(what: str) -> Any:
            header = {"Authorization": f"Bearer {address[2]}"}
            request = Request(f"{address[1]}api/{what}", headers=header)  # noqa: S310 - of this machine
            with urlopen(request, timeout=60) as answer:  # noqa: S310
                return json.loads(answer.read())

        try:
            page = get("records")
            waiting = get(f"explanation?uid=pod-train-9&at={page['last']}")
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0

    assert (page["mode"], page["title"]) == ("replay", "gpu.jsonl")
    assert {"RecordingStarted", "ClusterStarted", "CallEnded"} <= {record["kind"] for record in page["records"]}
    numbers = [record["number"] for record in page["records"]]
    assert numbers == sorted(set(numbers))
    assert "example.com/xid-79" in waiting["text"]
