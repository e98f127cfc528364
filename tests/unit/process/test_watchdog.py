from __future__ import annotations

import asyncio
import logging
import time

import pytest

from dra_kit.process.probes import LoopWatchdog
from tests.support.api import eventually
from tests.unit.process.clock import Clock


def block(clock: Clock) -> None:
    """Block the loop, as an author must not, long enough for several reports."""
    clock.now += 2.0
    before = clock.looks
    for _ in range(6000):
        if clock.looks > before + 10:  # only the watchdog looks: nothing else runs in the loop
            return
        time.sleep(0.01)


async def watched(caplog: pytest.LogCaptureFixture, clock: Clock, times: int) -> list[logging.LogRecord]:
    watchdog = LoopWatchdog(patience=0.02)
    with caplog.at_level(logging.ERROR):
        ready = asyncio.Event()
        task = asyncio.create_task(watchdog.run(ready))
        await ready.wait()
        for _ in range(times):
            await eventually(lambda: not watchdog.blocked())  # it beats again
            block(clock)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return [record for record in caplog.records if "the event loop is blocked" in record.getMessage()]


async def test_blocked_loop_is_logged_once_with_its_location(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    [told] = await watched(caplog, clock, 1)
    assert "test_watchdog.py" in getattr(told, "at", "")


async def test_each_blocked_period_is_logged(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    assert len(await watched(caplog, clock, 2)) == 2
