"""The timeline on disk."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import re
import stat
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import ConfigurationError
from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.sandbox.containers.runtime import HookResources
from dra_kit.sandbox.records import DriverLogged, ObjectChanged, Record, RecordsLost
from dra_kit.sandbox.timeline.recording import QUEUE, Timeline, TimelineFile, read_timeline, timeline_schema
from tests.unit.sandbox.cluster.kubelet.polling import until

KIB = 1 << 10
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.dictionaries(TEXTS, TEXTS | st.integers(-(2**53), 2**53) | st.lists(TEXTS | st.none()))
NUMBERS = st.dictionaries(TEXTS, st.integers(0, 2**53))
st.register_type_strategy(
    HookResources,
    st.builds(HookResources, cpus=TEXTS, hugepages=NUMBERS, unified=st.dictionaries(TEXTS, TEXTS)),
)
st.register_type_strategy(SpecEdits, st.builds(SpecEdits, env=st.lists(TEXTS).map(tuple)))


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
        objects: dict[str, st.SearchStrategy[object]] = {name: JSON for name in ("object", "spec") if name in types}
        seconds = {name: stamps["seconds"] for name, annotation in types.items() if annotation is float}
        return {**texts, **objects, **seconds, **stamps}

    return st.one_of([st.builds(kind, **fields(kind)) for kind in get_args(Record)])


@given(st.lists(records(), max_size=5))
def test_timeline_file_round_trip(written: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "timeline"
        write(path, *written)

        assert (list(read_timeline(path)) if written else []) == written


def test_file_is_private_and_replaces_an_existing_one(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "timeline"
    other.write_text("other content")
    path.symlink_to(other)

    write(path, logged(1))

    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert other.read_text() == "other content"
    assert list(read_timeline(path)) == [logged(1)]


def test_torn_last_line_is_ignored_and_an_invalid_line_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    write(path, logged(1), logged(2))
    whole = path.read_bytes()

    path.write_bytes(whole[:-10])
    assert list(read_timeline(path)) == [logged(1)]

    path.write_bytes(b'{"kind": "Lunch"}\n' + whole)
    with pytest.raises(ConfigurationError, match=r"timeline: line 1 is not a record of a timeline: .*; give a file"):
        list(read_timeline(path))


@pytest.mark.parametrize(
    "text",
    [b'"message":"\xff"', b'"message":"","more":' + b"[" * 100_000 + b"]" * 100_000],
    ids=["no Unicode", "too deep"],
)
def test_undecodable_line_is_rejected_with_a_one_line_error(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "timeline"
    path.write_bytes(b'{"kind":"ManifestsApplied",' + text + b"}\n")

    with pytest.raises(ConfigurationError, match=r"\A[^\n]*timeline: line 1 is not a record of a timeline: [^\n]*\Z"):
        list(read_timeline(path))


async def test_full_file_keeps_the_newer_half_and_counts_dropped_records(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    file = TimelineFile(path, limit=64 * KIB)
    for number in range(1, 201):
        file.write(logged(number))
        if number % 20 == 0:
            await until(partial(has, path, f"line {number} "))
    file.close()

    first, *kept = read_timeline(path)

    assert path.stat().st_size <= 64 * KIB
    assert len(kept) > 30
    assert first == RecordsLost(number=kept[0].number - 1, lost=kept[0].number - 1)
    assert [item.number for item in kept] == list(range(kept[0].number, 201))


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

    assert list(read_timeline(path)) == [RecordsLost(number=2, lost=2), logged(3)]
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

    assert list(read_timeline(path)) == [logged(1), RecordsLost(number=2, lost=1), logged(3)]


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

    found = list(read_timeline(path))
    assert found[-3:] == [logged(QUEUE + 1), RecordsLost(number=QUEUE + 11, lost=10), logged(QUEUE + 12)]
    assert len(found) == QUEUE + 3


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "timeline"
    file = write(path, logged(1))
    file.write(logged(2))
    file.close()

    assert list(read_timeline(path)) == [logged(1)]
    assert file.lost == 0


def test_only_a_record_with_invalid_unicode_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "timeline"
    write(path, *(DriverLogged(text=text) for text in ("one", "\ud800", "two")))

    assert [getattr(record, "text", "") for record in read_timeline(path)] == ["one", "two"]
    assert len(caplog.messages) == 1


def test_only_a_too_deeply_nested_record_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "timeline"
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    write(path, *(ObjectChanged(change="ADDED", resource="pods", object=obj) for obj in ({}, deep, {})))

    assert len(list(read_timeline(path))) == 2
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
