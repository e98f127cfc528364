from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.client.informer import Informer, ObjectChange
from dra_kit.client.resources import PODS
from dra_kit.errors import Forbidden
from tests.unit.client.wire import Handler, Wire, answer, event, served, status, stream

HANG = stream(hang=True)


def pod(name: str, version: int, uid: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}", "resourceVersion": str(version)},
    }


def pods(version: int, *items: Mapping[str, Any]) -> Handler:
    return answer({"metadata": {"resourceVersion": str(version)}, "items": list(items)})


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


def informer(wire: Wire, **options: Any) -> Informer:
    return Informer(wire.client(), PODS, retry=(0.0,), **options)


async def take(informer: Informer, count: int) -> list[tuple[str, str, str]]:
    """The next changes, as (type, name, resource version)."""
    taken: list[tuple[str, str, str]] = []
    async with asyncio.timeout(60), aclosing(informer.changes()) as changes:
        async for change in changes:
            metadata = change.object["metadata"]
            taken.append((change.type, metadata["name"], metadata["resourceVersion"]))
            if len(taken) == count:
                return taken
    raise AssertionError("changes ended")


async def test_a_list_and_then_the_watch_from_its_version() -> None:
    events = stream(event("ADDED", pod("b", 8)), event("MODIFIED", pod("a", 9)), event("DELETED", pod("b", 10)))
    async with served(pods(7, pod("a", 5)), events, HANG) as wire:
        follower = informer(wire, field_selector="spec.nodeName=n", label_selector="app=x")
        assert await take(follower, 4) == [
            ("ADDED", "a", "5"),
            ("ADDED", "b", "8"),
            ("MODIFIED", "a", "9"),
            ("DELETED", "b", "10"),
        ]
        assert list(follower.objects) == [("ns", "a")]
        for query in wire.queries:
            assert (query["fieldSelector"], query["labelSelector"]) == ("spec.nodeName=n", "app=x")
        assert wire.queries[1]["resourceVersion"] == "7"


async def test_a_change_comes_with_the_state_before_it() -> None:
    events = stream(event("MODIFIED", pod("a", 6)), hang=True)
    async with served(pods(5, pod("a", 5)), events) as wire, aclosing(informer(wire).changes()) as changes:
        assert await anext(changes) == ObjectChange("ADDED", pod("a", 5))
        assert await anext(changes) == ObjectChange("MODIFIED", pod("a", 6), pod("a", 5))


async def test_a_watch_that_ended_goes_on_after_its_last_event() -> None:
    async with served(pods(5), stream(event("ADDED", pod("a", 6)), bookmark(9)), HANG) as wire:
        follower = informer(wire)
        async with aclosing(follower.changes()) as changes:
            await anext(changes)
            following = asyncio.ensure_future(anext(changes))
            async with asyncio.timeout(60):
                while len(wire.requests) < 3:  # noqa: ASYNC110 (the server sets no asyncio.Event)
                    await asyncio.sleep(0.01)
            following.cancel()
            await asyncio.wait([following])
        assert wire.queries[2]["resourceVersion"] == "9"


async def test_expired_version_leads_to_a_list_that_reports_missed_changes() -> None:
    expired = stream(event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}))
    again = pods(20, pod("b", 12), pod("c", 13, "another"), pod("d", 14))
    before = pods(5, pod("a", 1), pod("b", 2), pod("c", 3))
    async with served(before, expired, again, HANG) as wire:
        assert (await take(informer(wire), 8))[3:] == [
            ("DELETED", "a", "1"),
            ("MODIFIED", "b", "12"),
            ("DELETED", "c", "3"),
            ("ADDED", "c", "13"),
            ("ADDED", "d", "14"),
        ]


async def test_known_objects_are_not_reported_again() -> None:
    async with served(pods(5, pod("a", 1)), status(410, "Gone", "old"), pods(9, pod("a", 1), pod("b", 8))) as wire:
        assert await take(informer(wire), 2) == [("ADDED", "a", "1"), ("ADDED", "b", "8")]


async def test_a_broken_connection_is_made_again() -> None:
    cut = stream(event("ADDED", pod("a", 6)), b'{"type": "MOD', cut=True)
    async with served(pods(5), cut, stream(event("MODIFIED", pod("a", 7)), hang=True)) as wire:
        assert await take(informer(wire), 2) == [("ADDED", "a", "6"), ("MODIFIED", "a", "7")]
        assert wire.queries[2]["resourceVersion"] == "6"


async def test_server_without_the_version_is_listed_again() -> None:
    busy = status(504, "Timeout", "Too large resource version: 5, current: 1")
    async with served(pods(5, pod("a", 5)), busy, pods(1, pod("a", 1)), HANG) as wire:
        assert await take(informer(wire), 2) == [("ADDED", "a", "5"), ("MODIFIED", "a", "1")]


@pytest.mark.parametrize(
    ("refusal", "waits"),
    [
        (status(410, "Expired", "too old"), ["0.02", "0.03"]),  # after the first one it is listed at once
        (status(500, "InternalError", "no"), ["0.01", "0.02", "0.03"]),
    ],
)
async def test_rejected_watches_back_off_although_lists_succeed(
    refusal: Handler, waits: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    refused = [step for _ in range(3) for step in (pods(5, pod("a", 5)), refusal)]
    async with served(*refused, pods(6, pod("a", 5), pod("b", 6)), HANG) as wire:
        follower = Informer(wire.client(), PODS, retry=(0.01, 0.02, 0.03, 0.04))
        assert await take(follower, 2) == [("ADDED", "a", "5"), ("ADDED", "b", "6")]
    told = [text.split()[3] for text in caplog.messages if text.startswith("watching again in")]
    assert told == waits


async def test_long_watch_resets_the_backoff(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("dra_kit.client.informer.SHORT_WATCH_SECONDS", 0.0)
    away = status(503, "ServiceUnavailable", "away")
    async with served(away, away, pods(5), stream(), away, pods(6, pod("a", 6)), HANG) as wire:
        follower = Informer(wire.client(), PODS, retry=(0.01, 0.02, 0.03))
        assert await take(follower, 1) == [("ADDED", "a", "6")]
    told = [text.split()[3] for text in caplog.messages if text.startswith("watching again in")]
    assert told == ["0.01", "0.02", "0.01"]


async def test_rejected_list_raises() -> None:
    async with served(status(403, "Forbidden", "no")) as wire:
        with pytest.raises(Forbidden):
            await take(informer(wire), 1)


async def test_synced_after_the_first_list_was_taken() -> None:
    async with served(pods(5, pod("a", 5)), stream(event("ADDED", pod("b", 6)), hang=True)) as wire:
        follower = informer(wire)
        async with aclosing(follower.changes()) as changes:
            await anext(changes)
            assert not follower.synced.is_set()
            await anext(changes)
            assert follower.synced.is_set()


class History:
    """A server with a history of two pods; it forgets, breaks off and ends watches as a plan says.

    Args:
        steps: states one after the other; each a UID for every pod that there is then.
        faults: what happens at each watch; after these, watches work.
    """

    def __init__(self, steps: list[dict[str, str]], faults: list[str]) -> None:
        self.states: list[dict[str, dict[str, Any]]] = [{}]
        self.events: list[list[bytes]] = [[]]
        self.faults = faults
        self.told = 0
        for version, step in enumerate(steps, start=1):
            before = self.states[-1]
            after = {name: pod(name, version, uid) for name, uid in step.items()}
            gone = [name for name, obj in before.items() if obj["metadata"]["uid"] != step.get(name)]
            self.events.append([event("DELETED", {**before[name], **pod(name, version, "old")}) for name in gone])
            self.events[-1] += [event("MODIFIED", obj) for obj in after.values()]
            self.states.append(after)

    async def answer(self, request: Any) -> Any:
        if "watch" not in request.query:
            # every list shows a later state, the last one the last
            self.told = len(self.states) - 1 if not self.faults else min(self.told + 1, len(self.states) - 1)
            return await pods(self.told, *self.states[self.told].values())(request)
        fault = self.faults.pop(0) if self.faults else "none"
        if fault == "gone":
            return await status(410, "Expired", "too old")(request)
        begin = int(request.query["resourceVersion"])
        end = len(self.events) if fault == "none" else min(begin + 2, len(self.events))
        chunks = [line for step in self.events[begin + 1 : end] for line in step]
        self.told = max(self.told, end - 1)
        return await stream(*chunks, hang=fault == "none", cut=fault == "cut")(request)


async def _applied(changes: AsyncIterator[ObjectChange], final: Mapping[str, Any]) -> dict[str, Any]:
    """What a consumer knows that applies the changes until it knows the final state."""
    known: dict[str, Any] = {}
    async with asyncio.timeout(60):
        while known != final:
            change = await anext(changes)
            name = change.object["metadata"]["name"]
            assert (change.type == "ADDED") == (name not in known)
            assert change.previous == known.get(name)
            if change.type == "DELETED":
                del known[name]
            else:
                known[name] = change.object
    return known


@given(
    st.lists(st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"])), min_size=1, max_size=6),
    st.lists(st.sampled_from(["gone", "cut", "end"]), max_size=4),
)
async def test_the_changes_lead_to_the_servers_state_whatever_breaks(
    steps: list[dict[str, str]], faults: list[str]
) -> None:
    history = History([*steps, {"last": "1"}], list(faults))
    async with served(history.answer) as wire:
        follower = informer(wire)
        async with aclosing(follower.changes()) as changes:
            assert await _applied(changes, history.states[-1]) == history.states[-1]
        assert {name: obj for (_, name), obj in follower.objects.items()} == history.states[-1]
