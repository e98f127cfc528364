from __future__ import annotations

import asyncio
import logging
import time

import pytest

from dra_kit.process.watchdog import Watchdog


async def watched(caplog: pytest.LogCaptureFixture, seconds: float, times: int) -> list[logging.LogRecord]:
    with caplog.at_level(logging.ERROR):
        ready = asyncio.Event()
        task = asyncio.create_task(Watchdog(patience=0.2).run(ready))
        await ready.wait()
        for _ in range(times):
            await asyncio.sleep(0.3)  # it beats again
            time.sleep(seconds)  # noqa: ASYNC251 - what an author must not do
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return [record for record in caplog.records if "the event loop is blocked" in record.getMessage()]


async def test_a_blocked_loop_is_told_once_with_the_place(caplog: pytest.LogCaptureFixture) -> None:
    [told] = await watched(caplog, 2.0, 1)
    assert "test_watchdog.py" in getattr(told, "at", "")


async def test_each_time_it_is_blocked_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert len(await watched(caplog, 2.0, 2)) == 2
