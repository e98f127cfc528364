"""The timeline on disk."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import random
import re
import stat
import tempfile
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dra_kit.errors import ConfigurationError
from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.sandbox.containers.runtime import HookResources
from dra_kit.sandbox.records import (
    FORMAT,
    DriverLogged,
    ObjectChanged,
    Record,
    RecordingStarted,
    RecordsLost,
    object_uid,
)
from dra_kit.sandbox.timeline.recording import (
    QUEUE,
    RecordFile,
    Recording,
    Timeline,
    TimelineFile,
    record_line,
    timeline_schema,
)
from tests.unit.sandbox.cluster.kubelet.polling import until

KIB = 1 << 10
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.dictionaries(TEXTS, TEXTS | st.integers(-(2**53), 2**53) | st.lists(TEXTS | st.none()))
OBJECTS = st.builds(lambda name, more: {**more, "metadata": {"name": name}}, TEXTS, JSON)
NUMBERS = st.dictionaries(TEXTS, st.integers(0, 2**53))
st.register_type_strategy(
    HookResources,
    st.builds(HookResources, cpus=TEXTS, hugepages=NUMBERS, unified=st.dictionaries(TEXTS, TEXTS)),
)
st.register_type_strategy(SpecEdits, st.builds(SpecEdits, env=st.lists(TEXTS).map(tuple)))


NAMED = {"metadata": {"name": "a"}}


def logged(number: int) -> DriverLogged:
    return DriverLogged(number=number, text=f"line {number}".ljust(900))


def write(path: Path, *records: Record) -> TimelineFile:
    """A file with records, which is closed."""
    file = TimelineFile(path)
    for record in records:
        file.write(record)
    file.close()
    return file


def has(path: Path, text: str) -> bool:
    return path.exists() and text.encode() in path.read_bytes()


def loses(file: TimelineFile, number: int) -> bool:
    return file.lost == number


def records() -> st.SearchStrategy[Record]:
    """Records of every kind."""
    stamps: dict[str, st.SearchStrategy[object]] = {
        "number": st.integers(1, 10**9),
        "at": st.datetimes(timezones=st.just(dt.UTC)),
        "seconds": st.floats(0, 10**6),
    }

    def fields(kind: type) -> dict[str, st.SearchStrategy[object]]:
        types = {field.name: field.type for field in msgspec.structs.fields(kind)}
        texts = {name: TEXTS for name, annotation in types.items() if annotation is str}
        contents = {"object": OBJECTS, "spec": JSON}
        objects: dict[str, st.SearchStrategy[object]] = {
            name: content for name, content in contents.items() if name in types
        }
        seconds = {name: stamps["seconds"] for name, annotation in types.items() if annotation is float}
        return {**texts, **objects, **seconds, **stamps}

    return st.one_of([st.builds(kind, **fields(kind)) for kind in get_args(Record)])


@given(st.lists(records(), max_size=5))
def test_timeline_file_round_trip(written: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "timeline"
        write(path, *written)

        assert (list(Recording(path).records()) if written else []) == written


def test_file_is_private_and_replaces_an_existing_one(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "timeline"
    other.write_text("other content")
    path.symlink_to(other)

    write(path, logged(1))

    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert other.read_text() == "other content"
    assert list(Recording(path).records()) == [logged(1)]


def test_torn_last_line_is_ignored_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    write(path, logged(1), logged(2))
    path.write_bytes(path.read_bytes()[:-10])

    recording = Recording(path)

    assert list(recording.records()) == [logged(1)]
    assert recording.problems[-1] == "the last line is incomplete, because the recording was interrupted there"


@pytest.mark.parametrize(
    "text",
    [
        b'"message":"\xff"}',
        b'"message":"","more":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'"message":1}',
        b'"message":"" \0}',
        b'"message":"' + b"x" * (17 << 20) + b'"}',
    ],
    ids=["no Unicode", "too deep", "wrong type", "not JSON", "too long"],
)
def test_corrupt_line_is_skipped_and_reported_in_one_line(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "timeline"
    write(path, logged(1), logged(3))
    first, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b'{"kind":"ManifestsApplied",' + text + b"\n" + last)

    recording = Recording(path)

    assert list(recording.records()) == [logged(1), logged(3)]
    assert re.fullmatch(r"1 corrupt record skipped; the first is line 2: [^\n]{5,200}", recording.problems[-1])


@pytest.mark.parametrize(
    "obj", [{}, {"metadata": []}, {"metadata": {"name": 1}}, {"metadata": {"name": "a", "uid": {}}}]
)
def test_object_without_identity_is_a_corrupt_record(tmp_path: Path, obj: dict[str, object]) -> None:
    path = tmp_path / "timeline"
    write(path, logged(1), ObjectChanged(number=2, change="ADDED", resource="pods", object=obj))

    recording = Recording(path)

    assert list(recording.records()) == [logged(1)]
    assert recording.problems[-1].startswith("1 corrupt record skipped; the first is line 2: ")


def test_records_of_unknown_kinds_are_skipped_and_named(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    write(path, logged(1))
    newer = b"".join(b'{"kind":"%s","number":2}\n' % kind for kind in (b"Lunch", b"Lunch", b"Dinner"))
    path.write_bytes(path.read_bytes() + newer)

    recording = Recording(path)

    assert list(recording.records()) == [logged(1)]
    assert recording.problems[-1] == (
        "3 records of unknown kinds skipped (Dinner, Lunch): a newer release of dra-kit has written them"
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is empty"),
        (b'{"kind":"Driver', "it has only an incomplete line"),
        (b"apiVersion: v1\nkind: Pod\n", "line 1: JSON is malformed"),
    ],
)
def test_file_without_a_record_is_not_a_recording(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "timeline"
    path.write_bytes(content)

    with pytest.raises(ConfigurationError, match=rf"timeline is not a recording: {problem}.*; use a file that"):
        Recording(path)


def test_newer_format_is_rejected_with_the_release_that_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    write(path, RecordingStarted(number=1, format=FORMAT + 1, release="9.1"), logged(2))

    with pytest.raises(ConfigurationError, match=rf"has format {FORMAT + 1}, which dra-kit 9\.1 writes"):
        Recording(path)


def test_header_says_what_a_file_was_recorded_with(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    header = RecordingStarted(number=1, version="v1.36.2", gates=("DRADeviceTaints",))
    write(path, header, logged(2))

    recording = Recording(path)

    assert recording.header == header
    assert list(recording.records()) == [header, logged(2)]
    assert recording.problems == []


async def test_full_file_keeps_the_newer_half_and_counts_dropped_records(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    file = TimelineFile(path, limit=68 * KIB)
    for number in range(1, 201):
        file.write(logged(number))
        if number % 20 == 0:
            await until(partial(has, path, f"line {number} "))
    file.close()

    first, *kept = Recording(path).records()

    assert path.stat().st_size <= 68 * KIB
    assert len(kept) > 30
    assert first == RecordsLost(number=kept[0].number - 1, lost=kept[0].number - 1)
    assert [item.number for item in kept] == list(range(kept[0].number, 201))


def claim(number: int, name: str, change: Any = "MODIFIED") -> ObjectChanged:
    content = {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"number": number, "more": "x" * 100}}
    return ObjectChanged(number=number, change=change, resource="resourceclaims.resource.k8s.io", object=content)


def state(found: Iterable[Record]) -> dict[str, Any]:
    """The objects at the end."""
    objects: dict[str, Any] = {}
    for record in found:
        if isinstance(record, ObjectChanged):
            objects.pop(object_uid(record.object), None)
            if record.change != "DELETED":
                objects[object_uid(record.object)] = record.object
    return objects


@given(st.integers(0, 2**32))
@example(21199457)  # an object without another UID comes again
def test_full_file_keeps_the_state_of_all_objects(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    kinds: tuple[Any, ...] = ("MODIFIED", "DELETED")
    changes = [(chance.choice("abc"), chance.choice(kinds)) for _ in range(80)]
    header = RecordingStarted(number=1)
    written: list[Record] = [header, *(claim(number, *change) for number, change in enumerate(changes, 2))]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "timeline"
        file = RecordFile(path, 8 * KIB, fixed=True)
        for record in written:
            file.append(record_line(record))
            assert path.stat().st_size <= 8 * KIB
        file.close()
        recording = Recording(path)
        found = list(recording.records())

    assert state(found) == state(written)
    assert recording.header == header
    lost = sum(record.lost for record in found if isinstance(record, RecordsLost))
    assert lost + sum(not isinstance(record, RecordsLost) for record in found) == len(written)


def test_fixed_file_is_full_when_the_objects_alone_need_it(tmp_path: Path) -> None:
    def fill() -> None:
        for number in range(1_000):
            file.append(record_line(claim(number, f"claim-{number}")))

    file = RecordFile(tmp_path / "timeline", 16 * KIB, fixed=True)
    with pytest.raises(OSError, match="the newest state of all objects takes most of"):
        fill()
    file.close()

    assert len(state(Recording(tmp_path / "timeline").records())) > 20


def test_fixed_file_is_not_full_of_a_third_however_often_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    written = [claim(number, f"claim-{number % 30:02}") for number in range(1, 1_001)]
    limit = len(record_line(written[0])) * 30 * 3
    file = RecordFile(path, limit, fixed=True)
    for record in written:
        file.append(record_line(record))
        assert path.stat().st_size <= limit
    file.close()

    found = list(Recording(path).records())
    assert state(found) == state(written)
    lost = sum(record.lost for record in found if isinstance(record, RecordsLost))
    assert lost + sum(not isinstance(record, RecordsLost) for record in found) == len(written)


def test_growing_file_keeps_the_state_of_all_objects(tmp_path: Path) -> None:
    path, written = tmp_path / "timeline", [claim(number, f"claim-{number}") for number in range(1, 101)]
    file = RecordFile(path, 16 * KIB)
    for record in written:
        file.append(record_line(record))
    file.close()

    assert state(Recording(path).records()) == state(written)


async def test_failing_disk_loses_records_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)  # the sandbox's default log level
    path = tmp_path / "missing" / "timeline"
    file = TimelineFile(path)
    for number in (1, 2):
        file.write(logged(number))
        await until(partial(loses, file, number))
    path.parent.mkdir()
    file.write(logged(3))
    file.close()

    assert list(Recording(path).records()) == [RecordsLost(number=2, lost=2), logged(3)]
    [message] = caplog.messages
    assert message == f"timeline {path} loses records: No such file or directory; free some space, or name another file"


async def test_full_disk_does_not_tear_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "timeline"
    file = TimelineFile(path)
    file.write(logged(1))
    await until(lambda: path.exists() and path.stat().st_size > 0)
    really, room = os.write, [100, 0]

    def write(descriptor: int, data: memoryview) -> int:
        if not room:
            return really(descriptor, data)
        if left := room.pop(0):
            return really(descriptor, data[:left])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    file.write(logged(2))
    await until(lambda: not room)
    file.write(logged(3))
    file.close()

    assert list(Recording(path).records()) == [logged(1), RecordsLost(number=2, lost=1), logged(3)]


async def test_slow_disk_does_not_block_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, goes_on, waits = tmp_path / "timeline", threading.Event(), threading.Event()
    really = os.write

    def write(descriptor: int, data: memoryview) -> int:
        waits.set()
        goes_on.wait()
        return really(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    file = TimelineFile(path)
    file.write(logged(1))
    waits.wait()
    for number in range(2, QUEUE + 12):
        file.write(logged(number))
    goes_on.set()
    await until(lambda: path.read_bytes().count(b"\n") == QUEUE + 1)
    file.write(logged(QUEUE + 12))
    file.close()

    found = list(Recording(path).records())
    assert found[-3:] == [logged(QUEUE + 1), RecordsLost(number=QUEUE + 11, lost=10), logged(QUEUE + 12)]
    assert len(found) == QUEUE + 3


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    file = write(path, logged(1))
    file.write(logged(2))
    file.close()

    assert list(Recording(path).records()) == [logged(1)]
    assert file.lost == 0


def test_only_a_record_with_invalid_unicode_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "timeline"
    write(path, *(DriverLogged(text=text) for text in ("one", "\ud800", "two")))

    assert [getattr(record, "text", "") for record in Recording(path).records()] == ["one", "two"]
    assert len(caplog.messages) == 1


def test_only_a_record_that_cannot_be_redacted_is_lost(tmp_path: Path) -> None:
    def redact(record: Record) -> Record:
        if isinstance(record, ObjectChanged):
            raise RecursionError("nested too deeply")
        return record

    file = TimelineFile(tmp_path / "t.jsonl", redact=redact)
    file.write(DriverLogged(text="before"))
    file.write(ObjectChanged(change="ADDED", resource="pods", object=NAMED))
    file.write(DriverLogged(text="after"))
    file.close()

    texts = [record.text for record in Recording(tmp_path / "t.jsonl").records() if isinstance(record, DriverLogged)]
    assert texts == ["before", "after"]


def test_only_a_too_deeply_nested_record_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "timeline"
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    write(path, *(ObjectChanged(change="ADDED", resource="pods", object=NAMED | obj) for obj in ({}, deep, {})))

    assert len(list(Recording(path).records())) == 2
    assert len(caplog.messages) == 1


def test_records_are_numbered_and_stamped_in_order() -> None:
    day, clock = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901, dt.UTC), iter([10.0, 10.5, 12.0])
    timeline, found = Timeline(wall=lambda: day, clock=lambda: next(clock)), list[Record]()
    timeline.subscribe(found.append)

    timeline.append(DriverLogged(text="one"))
    timeline.append(ObjectChanged(change="ADDED", resource="pods", object={}))

    assert [(item.number, item.at, item.seconds) for item in found] == [(1, day, 0.5), (2, day, 2.0)]


def test_every_kind_has_its_schema() -> None:
    schema = timeline_schema()
    kinds = {kind.__name__ for kind in get_args(Record)}
    assert set(schema["discriminator"]["mapping"]) == kinds
    assert "fromClaims" in schema["$defs"]["ContainerStarted"]["properties"]


def test_everything_that_the_schema_refers_to_is_in_it() -> None:
    schema = timeline_schema()
    named = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema)))
    assert {"ContainerStarted", "DeviceNode"} <= named
    assert named <= schema["$defs"].keys()


def test_the_schema_says_how_a_time_is_written() -> None:
    assert timeline_schema()["$defs"]["DriverLogged"]["properties"]["at"]["format"] == "date-time"
