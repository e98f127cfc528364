"""Starting, watching and stopping the parts of a process."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import ConfigurationError, InternalError, StoreError
from dra_kit.process.probes import unready_parts
from dra_kit.process.supervisor import PartState, Supervisor
from tests.support.api import eventually


class Recorder:
    """A part that gets ready at once and records its life in a list shared by all."""

    def __init__(self, name: str, journal: list[str], *, ready: bool = True) -> None:
        self.name = name
        self.journal = journal
        self.gets_ready = ready

    async def run(self, ready: asyncio.Event) -> None:
        self.journal.append(f"+{self.name}")
        if self.gets_ready:
            ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # draining takes a moment
            self.journal.append(f"-{self.name}")


class Scripted:
    """A part that ends at once, with an error if there is one."""

    name = "scripted"

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        if self.error is not None:
            raise self.error


def supervised(*names: str) -> tuple[Supervisor, list[str]]:
    """A supervisor of recorders, and their journal."""
    supervisor, journal = Supervisor(), list[str]()
    for name in names:
        supervisor.add(Recorder(name, journal))
    return supervisor, journal


async def running(supervisor: Supervisor) -> asyncio.Task[int]:
    """The supervisor's task, once all parts are ready."""
    task = asyncio.create_task(supervisor.run())
    await eventually(lambda: all(part.state is PartState.READY for part in supervisor.status().values()))
    return task


async def run_until_ready_then_stop(supervisor: Supervisor) -> int:
    task = await running(supervisor)
    supervisor.stop()
    return await task


async def test_a_part_starts_after_all_that_it_waits_for() -> None:
    journal: list[str] = []
    supervisor, first, second = Supervisor(), Recorder("first", journal), Recorder("second", journal, ready=False)
    last = Recorder("last", journal)
    supervisor.add(first)
    supervisor.add(second, waits_for=lambda: "an oven")
    supervisor.add(last, after=(first, second))
    assert supervisor.before(second) == {"first"}
    task = asyncio.create_task(supervisor.run())
    await eventually(lambda: journal == ["+first", "+second"])
    status = supervisor.status()
    assert (status["second"].waits_for, status["second"].after) == ("an oven", ())
    assert (status["last"].state, status["last"].after) == (PartState.WAITING, ("second",))
    assert unready_parts(supervisor) == ["second is waiting: an oven"]
    assert unready_parts(supervisor, supervisor.before(second)) == []
    supervisor.stop()
    await task
    assert "+last" not in journal


class TestOrder:
    @given(names=st.lists(st.text("abcdef", min_size=1), unique=True, min_size=1, max_size=8))
    def test_parts_stop_in_the_reverse_of_the_order_they_start_in(self, names: list[str]) -> None:
        async def scenario() -> list[str]:
            supervisor, journal = supervised(*names)
            assert await run_until_ready_then_stop(supervisor) == 0
            return journal

        started, stopped = [f"+{name}" for name in names], [f"-{name}" for name in reversed(names)]
        assert asyncio.run(scenario()) == started + stopped

    async def test_a_part_waits_for_the_one_it_comes_after(self) -> None:
        journal: list[str] = []
        first = Recorder("first", journal, ready=False)
        supervisor = Supervisor()
        supervisor.add(first)
        supervisor.add(Recorder("second", journal), after=first)
        supervisor.add(Recorder("third", journal))
        task = asyncio.create_task(supervisor.run())
        await eventually(lambda: supervisor.status()["third"].state is PartState.READY)
        assert journal == ["+first", "+third"]
        assert [status.state for status in supervisor.status().values()] == [
            PartState.WAITING,
            PartState.WAITING,
            PartState.READY,
        ]
        supervisor.stop()
        assert await task == 0
        assert journal == ["+first", "+third", "-third", "-first"]

    async def test_part_starts_when_the_previous_one_is_ready(self) -> None:
        journal: list[str] = []
        opened = asyncio.Event()

        class Slow(Recorder):
            async def run(self, ready: asyncio.Event) -> None:
                await opened.wait()
                await super().run(ready)

        slow = Slow("slow", journal)
        supervisor = Supervisor()
        supervisor.add(slow)
        supervisor.add(Recorder("second", journal), after=slow)
        opened.set()
        task = await running(supervisor)
        assert journal == ["+slow", "+second"]
        supervisor.stop()
        assert await task == 0

    def test_a_chain_starts_in_its_order(self) -> None:
        async def scenario() -> list[str]:
            journal: list[str] = []
            parts = [Recorder(str(number), journal) for number in range(5)]
            supervisor = Supervisor()
            supervisor.add(parts[0])
            for former, part in pairwise(parts):
                supervisor.add(part, after=former)
            await run_until_ready_then_stop(supervisor)
            return journal

        assert asyncio.run(scenario())[:5] == ["+0", "+1", "+2", "+3", "+4"]

    async def test_part_names_are_unique(self) -> None:
        supervisor, _ = supervised("a")
        with pytest.raises(InternalError, match="'a' is added twice"):
            supervisor.add(Recorder("a", []))

    async def test_a_part_cannot_come_after_one_that_was_not_added(self) -> None:
        with pytest.raises(InternalError, match="waits for 'a', which was not added"):
            Supervisor().add(Recorder("b", []), after=Recorder("a", []))


class TestFailure:
    async def test_expected_error_stops_the_process_with_one_line(self, caplog: pytest.LogCaptureFixture) -> None:
        supervisor, journal = supervised("other")
        supervisor.add(Scripted(StoreError("state.db cannot be written: make room on the disk")))
        assert await supervisor.run() == 1
        assert journal == ["+other", "-other"]
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.message == "part failed"
        assert vars(record)["error"] == "state.db cannot be written: make room on the disk"
        assert vars(record)["code"] == "store"
        assert record.exc_info is None
        assert supervisor.status()["scripted"].state is PartState.FAILED
        assert supervisor.status()["other"].state is PartState.STOPPED

    async def test_bug_stops_the_process_with_a_traceback(self, caplog: pytest.LogCaptureFixture) -> None:
        supervisor = Supervisor()
        supervisor.add(Scripted(ZeroDivisionError("division by zero")))
        assert await supervisor.run() == 1
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.exc_info is not None
        assert record.exc_info[0] is ZeroDivisionError

    async def test_a_configuration_error_has_its_own_exit_code(self) -> None:
        supervisor = Supervisor()
        supervisor.add(Scripted(ConfigurationError("set NODE_NAME")))
        assert await supervisor.run() == 2

    @pytest.mark.parametrize("end", [None, asyncio.CancelledError()])
    async def test_part_that_returns_early_is_a_failure(self, end: BaseException | None) -> None:
        supervisor = Supervisor()
        supervisor.add(Scripted(end))
        assert await supervisor.run() == 1
        assert supervisor.status()["scripted"].error

    async def test_an_error_while_stopping_counts_and_the_rest_still_stops(self) -> None:
        class Clumsy(Recorder):
            async def run(self, ready: asyncio.Event) -> None:
                try:
                    await super().run(ready)
                finally:
                    raise StoreError("the last write failed")

        supervisor, journal = supervised("first")
        supervisor.add(Clumsy("clumsy", journal))
        assert await run_until_ready_then_stop(supervisor) == 1
        assert journal[-2:] == ["-clumsy", "-first"]
        assert supervisor.status()["clumsy"].error == "the last write failed"


class TestStop:
    async def test_part_that_does_not_stop_is_cancelled_again(self, caplog: pytest.LogCaptureFixture) -> None:
        journal: list[str] = []

        class Endless(Recorder):
            async def run(self, ready: asyncio.Event) -> None:
                try:
                    await super().run(ready)
                finally:
                    await asyncio.Event().wait()

        supervisor = Supervisor(drain=0.0)
        supervisor.add(Recorder("first", journal))
        supervisor.add(Endless("endless", journal))
        assert await run_until_ready_then_stop(supervisor) == 0
        assert journal[-1] == "-first"
        assert [vars(record)["part"] for record in caplog.records if "in time" in record.message] == ["endless"]

    async def test_parts_that_stop_first_have_stopped_before_others_are_cancelled(self) -> None:
        supervisor, journal = supervised("store")
        supervisor.add(Recorder("server", journal), stops_first=True)
        supervisor.add(Recorder("registration", journal), stops_first=True)
        supervisor.add(Recorder("operator", journal))
        assert await run_until_ready_then_stop(supervisor) == 0
        assert journal[4:] == ["-registration", "-server", "-operator", "-store"]

    async def test_cancelling_the_supervisor_stops_the_parts_in_order(self) -> None:
        supervisor, journal = supervised("a", "b")
        task = await running(supervisor)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert journal == ["+a", "+b", "-b", "-a"]
        assert supervisor.stopping.is_set()

    async def test_no_task_is_left(self) -> None:
        before = asyncio.all_tasks()
        supervisor, _ = supervised("a")
        supervisor.add(Scripted(StoreError("no")))
        await supervisor.run()
        assert asyncio.all_tasks() == before


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    async def test_a_signal_stops_in_order_and_the_handlers_come_back(self, number: signal.Signals) -> None:
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        supervisor, journal = supervised("a", "b")
        task = await running(supervisor)
        signal.raise_signal(number)
        assert await task == 0
        assert journal[-2:] == ["-b", "-a"]
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

    @pytest.mark.parametrize("turns", range(6))
    async def test_a_signal_in_the_last_moment_is_known(self, turns: int) -> None:
        """However many turns of the event loop before or after the end: this handler gets it, or the former one."""

        class Signalled(Recorder):
            async def run(self, ready: asyncio.Event) -> None:
                try:
                    await super().run(ready)
                finally:
                    self.after(turns)

            def after(self, more: int) -> None:
                if more:
                    asyncio.get_running_loop().call_soon(self.after, more - 1)
                else:
                    signal.raise_signal(signal.SIGTERM)

        former: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, _: former.append(number))
        try:
            supervisor = Supervisor()
            supervisor.add(Signalled("signalled", []))
            assert await run_until_ready_then_stop(supervisor) == 0
            known = supervisor.signalled
            await asyncio.sleep(0.01)
            assert known + len(former) == 1
        finally:
            signal.signal(signal.SIGTERM, before)

    async def test_signals_sent_twice_are_one(self) -> None:
        supervisor, journal = supervised("a")
        task = await running(supervisor)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert await task == 0
        assert journal == ["+a", "-a"]

    async def test_signal_handlers_are_restored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dra_kit.process.supervisor._ONE_SIGNAL", 0.05)
        before = signal.getsignal(signal.SIGINT)
        supervisor, _ = supervised("a")
        task = await running(supervisor)
        signal.raise_signal(signal.SIGTERM)
        assert await task == 0
        await asyncio.sleep(0.2)
        assert signal.getsignal(signal.SIGINT) == before

    def test_second_signal_stops_the_process_at_once(self) -> None:
        code = """
            import asyncio, signal, threading
            from dra_kit.process.supervisor import Supervisor

            class Draining:
                name = "draining"
                async def run(self, ready):
                    ready.set()
                    print("ready", flush=True)
                    try:
                        await asyncio.Event().wait()
                    finally:
                        print("draining", flush=True)
                        await asyncio.Event().wait()

            supervisor = Supervisor(drain=3600)
            supervisor.add(Draining())
            asyncio.run(supervisor.run())
        """
        command = [sys.executable, "-c", textwrap.dedent(code)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                process.send_signal(signal.SIGTERM)
                assert process.stdout.readline() == "draining\n"
                for _ in range(600):  # within two seconds it is the same signal
                    process.send_signal(signal.SIGTERM)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(0.1)
                        break
                assert process.returncode == -signal.SIGTERM
            finally:
                process.kill()

    async def test_off_the_main_thread_signals_are_left_alone(self) -> None:
        during: list[object] = []
        before = signal.getsignal(signal.SIGTERM)

        async def scenario() -> int:
            supervisor, _ = supervised("a")
            task = await running(supervisor)
            during.append(signal.getsignal(signal.SIGTERM))
            supervisor.stop()
            return await task

        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(asyncio.run(scenario())))
        thread.start()
        await asyncio.to_thread(thread.join, 60)
        assert codes == [0]
        assert during == [before]
