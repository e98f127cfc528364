from __future__ import annotations

import asyncio
import datetime as dt
import functools
import logging
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.client.events import EventRecorder, ObjectReference, micro_time
from tests.support.api import eventually
from tests.unit.client.wire import Handler, Wire, answer, hang_up, served, status

LUNCH = ObjectReference("resource.k8s.io/v1", "ResourceClaim", "lunch", "uid-1", "default")
NODE = ObjectReference("v1", "Node", "node-1", "uid-2")


def recorder(wire: Wire, **settings: Any) -> EventRecorder:
    return EventRecorder(wire.client(), controller="dra.pizza", instance="node-1", **{"retry": (0.0,), **settings})


def tell(events: EventRecorder, note: str = "no cheese", regarding: ObjectReference = LUNCH, **how: Any) -> None:
    events.record(regarding, "Warning", reason="PrepareFailed", action="Prepare", note=note, **how)


@asynccontextmanager
async def running(events: EventRecorder) -> AsyncIterator[None]:
    ready = asyncio.Event()
    task = asyncio.create_task(events.run(ready))
    await ready.wait()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def recording(*answers: Handler, **settings: Any) -> AsyncIterator[tuple[Wire, EventRecorder]]:
    async with served(*(answers or (answer({}, 201),))) as wire:
        events = recorder(wire, **settings)
        async with running(events):
            yield wire, events


async def test_an_event_is_written_as_the_api_wants_it() -> None:
    before = dt.datetime.now(dt.UTC)
    async with recording() as (wire, events):
        tell(events)
        assert await events.flush(60)
    body = wire.bodies[0]
    time = dt.datetime.strptime(body.pop("eventTime"), "%Y-%m-%dT%H:%M:%S.%f%z")
    assert before <= time <= dt.datetime.now(dt.UTC)
    name = body["metadata"].pop("name")
    assert re.fullmatch(r"lunch\.[0-9a-f]{16}", name)
    assert body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "default"},
        "type": "Warning",
        "reason": "PrepareFailed",
        "action": "Prepare",
        "note": "no cheese",
        "regarding": {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "namespace": "default",
            "name": "lunch",
            "uid": "uid-1",
        },
        "reportingController": "dra.pizza",
        "reportingInstance": "node-1",
    }
    assert wire.paths == ["/apis/events.k8s.io/v1/namespaces/default/events"]


async def test_events_of_cluster_scoped_objects_live_in_the_default_namespace() -> None:
    async with recording() as (wire, events):
        tell(events, regarding=NODE)
        assert await events.flush(60)
    assert wire.paths == ["/apis/events.k8s.io/v1/namespaces/default/events"]
    assert wire.bodies[0]["regarding"]["namespace"] == ""


async def test_events_of_any_thread_are_written_without_a_flush() -> None:
    async with recording() as (wire, events):
        thread = threading.Thread(target=tell, args=(events,))
        thread.start()
        await eventually(lambda: wire.bodies)
        thread.join()
    assert [body["note"] for body in wire.bodies] == ["no cheese"]


async def test_a_repeated_event_is_counted_in_a_series() -> None:
    async with recording() as (wire, events):
        tell(events)
        await eventually(lambda: wire.bodies)
        tell(events)
        await eventually(lambda: len(wire.bodies) == 2)
        for _ in range(3):
            tell(events)
        assert await events.flush(60)
    created, first, last = wire.requests
    name = wire.bodies[0]["metadata"]["name"]
    assert (created.method, first.method, last.method) == ("POST", "PATCH", "PATCH")
    assert first.path == last.path == f"/apis/events.k8s.io/v1/namespaces/default/events/{name}"
    assert [body["series"]["count"] for body in wire.bodies[1:]] == [2, 5]
    times = [wire.bodies[0]["eventTime"], *(body["series"]["lastObservedTime"] for body in wire.bodies[1:])]
    assert times == sorted(set(times))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", time) for time in times)


async def test_events_that_repeat_before_they_are_written_are_one() -> None:
    async with served(answer({}, 201)) as wire:
        events = recorder(wire)
        for _ in range(4):
            tell(events)
        async with running(events):
            assert await events.flush(60)
    assert [body["series"]["count"] for body in wire.bodies] == [4]


async def test_a_series_is_updated_by_itself_after_its_interval() -> None:
    async with recording(series_interval=0.01) as (wire, events):

        def told(count: int) -> bool:
            return len(wire.bodies) == count

        for count in range(1, 5):
            tell(events)
            await eventually(functools.partial(told, count))
    assert [body["series"]["count"] for body in wire.bodies[1:]] == [2, 3, 4]


async def test_a_series_that_paused_for_long_is_a_new_event() -> None:
    async with recording(series_end=-1) as (wire, events):
        tell(events)
        await eventually(lambda: wire.bodies)
        tell(events)
        assert await events.flush(60)
    assert [request.method for request in wire.requests] == ["POST", "POST"]


async def test_different_events_are_not_counted_together() -> None:
    async with recording() as (wire, events):
        tell(events)
        tell(events, note="no olives")
        tell(events, regarding=NODE)
        assert await events.flush(60)
    assert [request.method for request in wire.requests] == ["POST"] * 3


async def test_a_series_the_server_has_forgotten_starts_over() -> None:
    async with recording(answer({}, 201), status(404, "NotFound", "gone"), answer({}, 201)) as (wire, events):
        tell(events)
        await eventually(lambda: wire.bodies)
        tell(events)
        assert await events.flush(60)
    assert [request.method for request in wire.requests] == ["POST", "PATCH", "POST"]
    assert wire.bodies[0]["metadata"]["name"] != wire.bodies[2]["metadata"]["name"]


async def test_a_series_that_starts_over_waits_for_an_api_server_that_is_down() -> None:
    gone, down = status(404, "NotFound", "gone"), status(503, "ServiceUnavailable", "starting")
    async with recording(answer({}, 201), gone, down, answer({}, 201)) as (wire, events):
        tell(events)
        await eventually(lambda: wire.bodies)
        tell(events)
        assert await events.flush(60)
    assert [request.method for request in wire.requests] == ["POST", "PATCH", "POST", "POST"]


async def test_events_wait_for_an_api_server_that_is_down(caplog: pytest.LogCaptureFixture) -> None:
    down = status(503, "ServiceUnavailable", "starting")
    with caplog.at_level(logging.WARNING):
        async with recording(down, down, answer({}, 201)) as (wire, events):
            tell(events)
            tell(events, note="no olives")
            await eventually(lambda: len(wire.bodies) == 4)
    assert [body["note"] for body in wire.bodies] == ["no cheese"] * 3 + ["no olives"]
    assert len({body["metadata"]["name"] for body in wire.bodies[:3]}) == 1
    assert len(caplog.records) == 1


async def test_an_event_whose_answer_was_lost_is_not_written_twice() -> None:
    async with recording(hang_up, status(409, "AlreadyExists", "exists"), answer({}, 201)) as (wire, events):
        tell(events)
        assert await events.flush(60)
        tell(events)
        assert await events.flush(60)
    assert [request.method for request in wire.requests] == ["POST", "POST", "PATCH"]
    assert events.dropped == 0


async def test_event_without_a_response_is_counted_again() -> None:
    async with served(status(503, "Timeout", "?"), status(409, "AlreadyExists", "exists"), answer({})) as wire:
        events = recorder(wire)
        tell(events)
        tell(events)
        async with running(events):
            await eventually(lambda: len(wire.bodies) == 3)
    assert [request.method for request in wire.requests] == ["POST", "POST", "PATCH"]
    assert wire.bodies[2]["series"]["count"] == 2


async def test_when_too_many_wait_the_oldest_are_dropped() -> None:
    async with served(answer({}, 201)) as wire:
        events = recorder(wire, capacity=3)
        for number in range(5):
            tell(events, note=str(number))
        assert events.dropped == 2
        async with running(events):
            assert await events.flush(60)
    assert [body["note"] for body in wire.bodies] == ["2", "3", "4"]


async def test_rejected_event_is_logged_once_and_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with recording(status(403, "Forbidden", 'User "x" cannot create resource "events"')) as (wire, events):
            tell(events)
            tell(events, note="no olives")
            assert await events.flush(60)
    assert len(wire.requests) == 2
    assert events.dropped == 2
    assert len(caplog.records) == 1
    assert 'verbs: ["create"]' in caplog.text


async def test_a_flush_gives_up_in_time() -> None:
    async with recording(status(503, "ServiceUnavailable", "starting"), retry=(1000.0,)) as (wire, events):
        tell(events)
        await eventually(lambda: wire.bodies)
        assert not await events.flush(0.01)


async def test_a_flush_works_after_the_worker_has_stopped() -> None:
    async with served(answer({}, 201)) as wire:
        events = recorder(wire)
        task = asyncio.create_task(events.run(asyncio.Event()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        tell(events)
        assert await events.flush(60)
    assert len(wire.bodies) == 1


async def test_a_worker_that_is_cancelled_while_writing_loses_nothing() -> None:
    arrived = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        arrived.set()
        await asyncio.Event().wait()
        return web.Response()

    async with served(hang, answer({}, 201)) as wire:
        events = recorder(wire)
        async with running(events):
            tell(events)
            await arrived.wait()
        assert await events.flush(60)
    assert [body["note"] for body in wire.bodies] == ["no cheese"] * 2


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=1500))
async def test_a_note_keeps_what_fits(note: str) -> None:
    async with recording() as (wire, events):
        tell(events, note=note)
        assert await events.flush(60)
    written = wire.bodies[0]["note"]
    assert len(written.encode()) <= 1024
    if len(note.encode()) <= 1024:
        assert written == note
    else:
        assert written.endswith("…")
        assert note.startswith(written[:-1])
        assert len(written.encode()) > 1024 - 4


async def test_reason_action_and_instance_are_cut() -> None:
    async with served(answer({}, 201)) as wire:
        events = EventRecorder(wire.client(), controller="dra.pizza", instance="n" * 200)
        async with running(events):
            events.record(LUNCH, "Normal", reason="R" * 200, action="A" * 200, note="")
            assert await events.flush(60)
    assert {len(wire.bodies[0][key]) for key in ("reason", "action", "reportingInstance")} == {128}


@given(st.datetimes(timezones=st.just(dt.UTC)).filter(lambda time: time.year >= 1970))
def test_micro_times_have_six_digits(time: dt.datetime) -> None:
    text = micro_time(time)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z") == time


def test_a_reference_to_an_object() -> None:
    metadata = {"name": "lunch", "namespace": "default", "uid": "uid-1"}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
    assert ObjectReference.to(claim) == LUNCH


async def test_two_processes_that_record_one_event_write_it_once() -> None:
    async with served(answer({}, 201), status(409, "AlreadyExists", "exists")) as wire:
        for instance in ("controller-0", "controller-1"):
            events = EventRecorder(wire.client(), controller="dra.pizza", instance=instance)
            tell(events, identity="claim-1")
            assert await events.flush(60)
            assert events.dropped == 0
    first, second = (body["metadata"]["name"] for body in wire.bodies)
    assert first == second


async def test_a_conflict_that_is_not_about_the_name_does_not_mean_that_the_event_exists() -> None:
    """Quotas answer 409 Conflict when two requests are counted at once."""
    async with served(status(409, "Conflict", "the quota was changed"), answer({}, 201)) as wire:
        events = recorder(wire)
        tell(events)
        assert await events.flush(60)
    assert [request.method for request in wire.requests] == ["POST", "POST"]


async def test_written_event_without_repetition_is_not_counted() -> None:
    async with served(answer({}, 201)) as wire:
        events = recorder(wire)
        for repeat in (True, False):
            tell(events, identity="claim-1", repeat=repeat)
            assert await events.flush(60)
    assert [request.method for request in wire.requests] == ["POST"]


@pytest.mark.parametrize("name", ["x" * 253, "x." * 126 + "x"])
async def test_the_name_of_an_event_is_no_longer_than_the_api_takes(name: str) -> None:
    async with recording() as (wire, events):
        tell(events, regarding=ObjectReference("v1", "Pod", name, "uid-3", "default"))
        assert await events.flush(60)
    written = wire.bodies[0]["metadata"]["name"]
    assert len(written) <= 253
    assert re.fullmatch(r"x[x.]*x\.[0-9a-f]{16}|x+\.[0-9a-f]{16}", written)


ANSWERS = ((503, "ServiceUnavailable"), (409, "AlreadyExists"), (403, "Forbidden"))


def told_when_written(events: EventRecorder, note: str, seen: list[str], **how: Any) -> None:
    """Record an event of that note, which notes itself when it is settled."""
    tell(events, note, identity=note, written=lambda: seen.append(note), **how)


async def test_recorder_reports_when_an_event_is_written_or_dropped() -> None:
    seen: list[str] = []
    down, there, refused = (status(code, reason, "no") for code, reason in ANSWERS)
    async with recording(down, answer({}, 201), there, refused) as (_, events):
        for note in ("written", "there already", "refused"):
            told_when_written(events, note, seen)
        assert seen == []
        assert await events.flush(60)
        assert seen == ["written", "there already", "refused"]
        told_when_written(events, "written", seen, repeat=False)
        assert seen[-1] == "written"
        assert len(seen) == 4


async def test_recorder_reports_both_of_two_equal_events() -> None:
    seen: list[str] = []
    async with served(answer({}, 201)) as wire:
        events = recorder(wire)
        told_when_written(events, "once", seen)
        told_when_written(events, "once", seen)
        told_when_written(events, "once", seen, repeat=False)
        assert await events.flush(60)
    assert seen == ["once"] * 3


async def test_full_queue_drops_the_oldest_unless_the_caller_waits() -> None:
    seen: list[str] = []
    async with served(answer({}, 201)) as wire:
        events = recorder(wire, capacity=4)
        for number in range(6):
            told_when_written(events, str(number), seen)
        assert seen == ["0", "1"]
        async with running(events):
            await events.room()
            assert len(events._waiting) <= 2


async def test_event_being_written_is_not_counted_again_without_repetition() -> None:
    seen: list[str] = []
    recorded = asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        await recorded.wait()
        return web.json_response({}, status=201)

    async with served(slow, status(404, "NotFound", "no"), slow) as wire:
        events = recorder(wire)
        told_when_written(events, "once", seen)
        for requests in (1, 3):  # it is written, and again after the API server has deleted it
            recorded.clear()
            flushed = asyncio.create_task(events.flush(60))
            await eventually(lambda: len(wire.requests) == requests)  # noqa: B023 - it ends before the next one
            told_when_written(events, "once", seen, repeat=False)
            recorded.set()
            assert await flushed
            assert len(wire.requests) == requests
            told_when_written(events, "once", seen)  # it has happened again
    assert seen == ["once"] * 4
