"""Active parts: they run while this replica is the active one, and not a moment longer than it can be helped."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dra_kit.author.calls import call
from dra_kit.controller.election import ActiveParts, Leadership
from dra_kit.errors import InternalError
from tests.support.api import eventually
from tests.unit.controller.cluster import cancelled


class Counting:
    """Counts its lives."""

    name = "counting"

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0

    async def run(self, ready: asyncio.Event) -> None:
        self.begun += 1
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1


class Failing:
    name = "failing"

    async def run(self, ready: asyncio.Event) -> None:
        raise ValueError("no dough")


class Blocked:
    """Calls an author's ``def`` that does not return."""

    name = "blocked"

    def __init__(self) -> None:
        self.called = threading.Event()
        self.free = threading.Event()

    async def run(self, ready: asyncio.Event) -> None:
        await call(self._hook)

    def _hook(self) -> None:
        self.called.set()
        self.free.wait()


async def test_a_standby_is_ready_and_runs_no_parts() -> None:
    part, ready = Counting(), asyncio.Event()
    active = ActiveParts(Leadership())
    active.add(part)
    task = asyncio.create_task(active.run(ready))
    await ready.wait()
    await asyncio.sleep(0)
    assert part.begun == 0
    task.cancel()


async def test_parts_start_again_each_time_the_replica_becomes_active() -> None:
    part, leadership = Counting(), Leadership()
    active = ActiveParts(leadership)
    active.add(part)
    task = asyncio.create_task(active.run(asyncio.Event()))
    for life in (1, 2):
        leadership.set(leading=True)
        await eventually(lambda life=life: part.begun == life)  # type: ignore[misc]
        leadership.set(leading=False)
        await eventually(lambda life=life: part.ended == life)  # type: ignore[misc]
    await cancelled(task)


async def test_a_failed_part_stops_the_process_and_all_other_parts() -> None:
    part = Counting()
    active = ActiveParts(Leadership(alone=True))
    active.add(part)
    active.add(Failing())
    with pytest.raises(ValueError, match="no dough"):
        await active.run(asyncio.Event())
    assert part.ended == part.begun


async def test_a_blocking_call_that_outlives_the_lease_exits_the_process() -> None:
    part, leadership = Blocked(), Leadership()
    active = ActiveParts(leadership, stop_seconds=0.2)
    active.add(part)
    task = asyncio.create_task(active.run(asyncio.Event()))
    leadership.set(leading=True)
    try:
        await asyncio.to_thread(part.called.wait)
        leadership.set(leading=False)
        with pytest.raises(InternalError, match=r"blocked did not stop within 0\.2 s after the lease was lost"):
            await task
    finally:
        part.free.set()
