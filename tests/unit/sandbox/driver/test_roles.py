from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dra_kit.author.calls import call
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.drivers.roles import HANGING_SECONDS, RoleThread
from tests.unit.sandbox.cluster.kubelet.polling import until


async def test_role_runs_in_its_own_thread_until_stopped() -> None:
    seen: list[str] = []

    async def run() -> int:
        seen.append(threading.current_thread().name)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append("drained")
        return 0

    role = RoleThread("the role", run)
    role.start()
    await until(lambda: bool(seen))

    assert await role.stop() is True
    assert seen == ["the role", "drained"]
    assert role.failure == ""


async def test_role_stores_the_reason_of_its_failure() -> None:
    async def refuse() -> int:
        raise ConfigurationError("no oven")

    async def crash() -> int:
        raise RuntimeError("no gas")

    async def end() -> int:
        return 2

    async def leave() -> int:
        async def exit_later() -> None:
            raise SystemExit(3)

        task = asyncio.create_task(exit_later())
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            drained.append(task.done())
        return 0

    async def return_early() -> int:
        return 0

    drained: list[bool] = []
    failures = []
    for run in (refuse, crash, end, leave, return_early):
        role = RoleThread("role", run)
        role.start()
        await until(lambda role=role: bool(role.failure))  # type: ignore[misc]
        failures.append(role.failure)
        await role.stop()

    assert failures == [
        "no oven [configuration]",
        "RuntimeError: no gas",
        "exit code 2",
        "SystemExit: 3",
        "exit code 0",
    ]
    assert drained == [True]


async def test_end_of_a_role_is_reported_once() -> None:
    async def end() -> int:
        return 2

    told: list[str] = []
    role = RoleThread("role", end)
    role.when_ended(lambda: told.append(role.failure))
    role.start()
    await until(lambda: bool(told))
    role.when_ended(lambda: told.append("late"))
    await until(lambda: len(told) == 2)

    assert told == ["exit code 2", "late"]


async def test_stop_does_not_wait_for_a_blocked_role() -> None:
    blocked, released = threading.Event(), threading.Event()

    async def run() -> int:
        blocked.set()
        released.wait(30)
        return 0

    role = RoleThread("role", run)
    role.start()
    await until(blocked.is_set)

    assert await role.stop(0.05) is False
    released.set()
    assert await role.stop() is True


async def test_stop_of_a_role_that_never_started_returns_at_once() -> None:
    async def run() -> int:
        return 0

    assert await RoleThread("role", run).stop(0.01) is False


@pytest.mark.processes
async def test_stop_does_not_wait_for_a_hanging_call(caplog: pytest.LogCaptureFixture) -> None:
    entered, released = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        released.wait(60)

    async def run() -> int:
        hanging = asyncio.ensure_future(call(hang))
        while not hanging.done():
            try:
                await asyncio.shield(hanging)
            except asyncio.CancelledError:
                continue  # it drains for as long as the call takes
        return 0

    role = RoleThread("the role", run)
    role.start()
    await until(entered.is_set)
    [told] = role.calls()
    begin = time.monotonic()

    assert await role.stop() is False
    assert time.monotonic() - begin >= HANGING_SECONDS
    assert "hang has not returned for" in told
    assert "the role does not end and is left behind: " in caplog.text
    released.set()
    await until(lambda: role.calls() == [])  # a call that takes longer than HANGING_SECONDS would be left behind again
    assert await role.stop() is True
