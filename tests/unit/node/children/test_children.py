"""Programs of effects: real processes, real files, and a second process of the driver."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

import dra_kit as dra
from dra_kit.author.effect import ChildProcess, RunningProcess
from dra_kit.errors import StoreError
from dra_kit.node.effects.children import ChildProcesses
from dra_kit.node.effects.program import Program, ProgramOutput, find_marked, identify, is_running, session_of
from dra_kit.node.locks import NamedLocks
from tests.support.api import eventually


class Shell(ChildProcess, id="shell"):
    """Runs a script until it ends; ready when a file is there."""

    script: str
    ready_file: Path | None = None

    end_within = 1.0

    def keys(self) -> list[str]:
        return ["shell"]

    def command(self) -> list[str]:
        return ["/bin/sh", "-c", self.script]

    def environment(self) -> dict[str, str]:
        return {"OVEN": "hot"}

    def ready(self) -> bool:
        return self.ready_file is None or self.ready_file.exists()


pytestmark = pytest.mark.processes
SLEEPS = "exec sleep 1000"


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> object:
    """Whatever a test starts ends with it."""
    yield
    for process in find_marked(tmp_path / "children"):
        for pid in session_of(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def driver(directory: Path, ended: Callable[[], None] = lambda: None) -> AsyncIterator[ChildProcesses]:
    """What a driver's process does for programs; two at once are the two processes of a rolling update."""
    children = ChildProcesses(directory / "children", NamedLocks(directory / "locks"), calm=0)
    children.listen(ended)
    part = asyncio.ensure_future(children.run(asyncio.Event()))
    try:
        yield children
    finally:
        part.cancel()
        await asyncio.gather(part, return_exceptions=True)


async def applied(daemon: Shell, previous: RunningProcess | None) -> RunningProcess:
    """The program, once no other process owns it."""
    async with asyncio.timeout(30):
        while True:
            with suppress(dra.NotYet):
                return await daemon.apply(previous)
            await asyncio.sleep(0.02)


async def test_a_program_is_started_once_for_all_claims(tmp_path: Path) -> None:
    async with driver(tmp_path) as children:
        daemon = Shell(script=SLEEPS).with_runner(children)
        first = await daemon.apply(None)
        assert is_running(first)
        assert await daemon.apply(first) == first
        assert await daemon.holds(first)


async def test_a_program_gets_the_environment_of_the_driver_and_the_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KITCHEN", "open")
    out = tmp_path / "out"
    async with driver(tmp_path) as children:
        await (
            Shell(script=f"echo $KITCHEN $OVEN > {out}.new; mv {out}.new {out}; {SLEEPS}")
            .with_runner(children)
            .apply(None)
        )
        await eventually(out.exists)
    assert out.read_text() == "open hot\n"


async def test_prepare_waits_until_a_program_is_ready_and_gets_its_answer(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with driver(tmp_path) as children:
        daemon = Shell(script=f"echo heating; {SLEEPS}", ready_file=flag).with_runner(children)
        with pytest.raises(dra.NotYet, match="is not ready yet"):
            await daemon.apply(None)
        said = ""
        while "it says: heating" not in said:
            with pytest.raises(dra.NotYet) as raised:
                await daemon.apply(None)
            said = str(raised.value)
        flag.touch()
        assert await daemon.holds(await daemon.apply(None))


async def test_a_program_that_exits_early_is_reported_with_its_last_output(tmp_path: Path) -> None:
    async with driver(tmp_path) as children:
        daemon = Shell(script="echo no gas; exit 3", ready_file=tmp_path / "never").with_runner(children)

        async def asked_until_it_fails() -> None:
            while True:
                with suppress(dra.NotYet):
                    await daemon.apply(None)

        with pytest.raises(dra.TransientError) as raised:
            await asked_until_it_fails()
    assert "exited with code 3 before it was ready; its last output: no gas" in str(raised.value)
    assert raised.value.code == "child-ended"


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    class Missing(Shell, id="missing"):
        def title(self) -> str:
            raise AssertionError("the author's own mistake hides no other")

        def command(self) -> list[str]:
            return ["no-such-oven", "-f"]

    async with driver(tmp_path) as children:
        with pytest.raises(
            dra.TransientError,
            match=r"program 'no-such-oven' cannot be started: No such file or directory; correct Missing.command",
        ):
            await Missing(script="").with_runner(children).apply(None)


async def test_an_unwritable_disk_is_named_instead_of_the_program(tmp_path: Path) -> None:
    async with driver(tmp_path) as children:
        daemon = Shell(script=SLEEPS).with_runner(children)
        process = await daemon.apply(None)
        [output] = (tmp_path / "children").glob("*.log")
        await daemon.revert(process)
        output.mkdir()  # in the way
        with pytest.raises(StoreError, match=r"children cannot be written: .*--state-dir"):
            await daemon.apply(None)


async def test_a_killed_program_does_not_hold_and_is_restarted(tmp_path: Path) -> None:
    ended = asyncio.Event()
    async with driver(tmp_path, ended.set) as children:
        daemon = Shell(script=SLEEPS).with_runner(children)
        first = await daemon.apply(None)
        os.kill(first.pid, signal.SIGKILL)
        await eventually(ended.is_set)
        assert not await daemon.holds(first)
        second = await daemon.apply(first)
        assert second != first
        assert await daemon.holds(second)


async def test_children_of_a_killed_program_are_killed_before_the_restart(tmp_path: Path) -> None:
    ended = asyncio.Event()
    async with driver(tmp_path, ended.set) as children:
        daemon = Shell(script="sleep 1000 & wait").with_runner(children)
        first = await daemon.apply(None)
        await eventually(lambda: len(session_of(first.pid)) == 2)
        os.kill(first.pid, signal.SIGKILL)
        await eventually(ended.is_set)
        await daemon.apply(first)
        assert session_of(first.pid) == []


async def test_revert_terminates_a_program_with_its_children(tmp_path: Path) -> None:
    async with driver(tmp_path) as children:
        daemon = Shell(script="sleep 1000 & wait").with_runner(children)
        process = await daemon.apply(None)
        await eventually(lambda: len(session_of(process.pid)) == 2)
        await daemon.revert(process)
        assert session_of(process.pid) == []
        await daemon.revert(process)  # there is nothing to do
    assert list((tmp_path / "children").iterdir()) == []


async def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "ready"
    async with driver(tmp_path) as children:
        daemon = Shell(script=f"trap '' TERM; touch {out}; while :; do sleep 1; done").with_runner(children)
        process = await daemon.apply(None)
        await eventually(out.exists)
        await daemon.revert(process)
        assert not is_running(process)


async def test_the_output_of_a_program_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with driver(tmp_path) as children:
        daemon = Shell(script=f"printf 'one\\ntwo'; {SLEEPS}").with_runner(children)
        process = await daemon.apply(None)
        await eventually(lambda: lines(caplog) == ["one"])
        await daemon.revert(process)
        assert lines(caplog) == ["one", "two"], "a line has no end until the program has"


class Chatty(Shell, id="chatty"):
    """Has an opinion about what it writes."""

    def log_level(self, line: str) -> int:
        return {"hello": logging.DEBUG, "fire": logging.ERROR}[line]


async def test_log_level_sets_the_level_of_a_line_and_an_error_loses_no_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with driver(tmp_path) as children:
        daemon = Chatty(script=f"echo hello; echo fire; echo unknown; {SLEEPS}").with_runner(children)
        process = await daemon.apply(None)
        await said(caplog, "unknown")
        await daemon.revert(process)
    levels = {item.line: item.levelname for item in caplog.records if hasattr(item, "line")}
    assert levels == {"hello": "DEBUG", "fire": "ERROR", "unknown": "INFO"}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [item.line for item in caplog.records if hasattr(item, "line")]


async def said(caplog: pytest.LogCaptureFixture, line: str) -> None:
    await eventually(lambda: line in lines(caplog))


KILLED = """
import asyncio, os, sys
from pathlib import Path
from dra_kit.node.effects.children import ChildProcesses
from dra_kit.node.locks import NamedLocks
from tests.unit.node.children.test_children import SLEEPS, Shell

async def main():
    directory = Path(sys.argv[1])
    children = ChildProcesses(directory / "children", NamedLocks(directory / "locks"))
    process = await Shell(script=SLEEPS).with_runner(children).apply(None)
    print(process.pid, process.started, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def start_and_kill_the_driver(directory: Path) -> RunningProcess:
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(directory), stdout=subprocess.PIPE)
    out, _ = await run.communicate()
    assert run.returncode == -signal.SIGKILL
    pid, started = map(int, out.split())
    return RunningProcess(pid, started)


async def test_a_program_survives_a_killed_driver_and_is_taken_over(tmp_path: Path) -> None:
    before = await start_and_kill_the_driver(tmp_path)
    assert is_running(before)
    async with driver(tmp_path) as children:
        daemon = Shell(script=SLEEPS).with_runner(children)
        assert await daemon.holds(before)
        assert await daemon.apply(before) == before
        await daemon.revert(before)
    assert not is_running(before)


async def test_an_unrecorded_program_is_found(tmp_path: Path) -> None:
    before = await start_and_kill_the_driver(tmp_path)
    async with driver(tmp_path) as children:
        assert await Shell(script=SLEEPS).with_runner(children).apply(None) == before


async def test_an_unrecorded_program_is_terminated(tmp_path: Path) -> None:
    before = await start_and_kill_the_driver(tmp_path)
    async with driver(tmp_path) as children:
        await Shell(script=SLEEPS).with_runner(children).revert(None)
    assert not is_running(before)


async def test_a_foreign_process_with_the_mark_name_is_ignored(tmp_path: Path) -> None:
    async with driver(tmp_path) as children:
        daemon = Shell(script=SLEEPS).with_runner(children)
        await daemon.apply(None)
        [output] = (tmp_path / "children").glob("*.log")
        await daemon.revert(None)
        marks = [str(output.with_suffix("")), str(output.with_suffix("") / "0123456789abcdef")]
        others = [
            await asyncio.create_subprocess_exec("sleep", "1000", env={"DRA_KIT_CHILD": mark}, start_new_session=True)
            for mark in marks
        ]
        started = await daemon.apply(None)
        assert started.pid not in {other.pid for other in others}
        await daemon.revert(None)
        for other in others:
            assert other.returncode is None
            other.kill()
            await other.wait()


async def test_a_program_is_found_during_execve(tmp_path: Path) -> None:
    for number in range(50):
        mark = tmp_path / "children" / str(number)
        script = "exec /bin/sh -c 'exec /bin/sleep 1000'"
        other = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", script), env={"DRA_KIT_CHILD": str(mark)}, start_new_session=True
        )
        assert [found.pid for found in find_marked(mark)] == [other.pid]
        other.kill()
        await other.wait()


async def test_a_program_killed_together_with_the_driver_does_not_hold(tmp_path: Path) -> None:
    before = await start_and_kill_the_driver(tmp_path)
    os.kill(before.pid, signal.SIGKILL)
    await eventually(lambda: not is_running(before))
    async with driver(tmp_path) as children:
        daemon = Shell(script=SLEEPS).with_runner(children)
        assert not await daemon.holds(before)
        assert await daemon.apply(before) != before


async def test_the_other_process_takes_a_program_over_only_after_its_owner(tmp_path: Path) -> None:
    async with AsyncExitStack() as both:
        owner = await both.enter_async_context(driver(tmp_path))
        process = await Shell(script=SLEEPS).with_runner(owner).apply(None)
        async with driver(tmp_path) as other:
            daemon = Shell(script=SLEEPS).with_runner(other)
            assert await daemon.holds(process)
            with pytest.raises(dra.NotYet, match="the driver's other process"):
                await daemon.apply(None)
            await both.aclose()  # the owner ends, its program does not
            assert await daemon.holds(process)
            assert await daemon.apply(process) == process
            os.kill(process.pid, signal.SIGKILL)
            await eventually(lambda: not is_running(process))
            assert not await daemon.holds(process), "it is watched by who took it over"


async def test_the_owner_terminates_a_program_after_the_other_process_released_its_last_claim(tmp_path: Path) -> None:
    async with driver(tmp_path) as owner, driver(tmp_path) as other:
        process = await Shell(script=SLEEPS).with_runner(owner).apply(None)
        await Shell(script=SLEEPS).with_runner(other).revert(process)
        assert not is_running(process)
        assert await Shell(script=SLEEPS).with_runner(other).apply(None) != process


async def test_a_termination_request_does_not_affect_the_next_program(tmp_path: Path) -> None:
    """The other process gave up waiting, and the owner ended it later."""
    async with driver(tmp_path) as owner:
        daemon = Shell(script=SLEEPS).with_runner(owner)
        process = await daemon.apply(None)
        [output] = (tmp_path / "children").glob("*.log")
        output.with_suffix(".end").touch()
        await eventually(lambda: not is_running(process))
        again = await applied(daemon, process)
        assert not output.with_suffix(".end").exists()
        assert await daemon.holds(again)


async def test_termination_for_the_other_process_respects_end_within(tmp_path: Path) -> None:
    class Brief(Shell, id="brief"):
        end_within = 0.2

    out, ended = tmp_path / "ready", tmp_path / "ended"
    async with driver(tmp_path) as owner, driver(tmp_path) as other:
        trap = f"trap 'sleep 2; touch {ended}; exit' TERM; touch {out}; while :; do sleep 0.1; done"
        await Brief(script=trap).with_runner(owner).apply(None)
        await eventually(out.exists)
        await Brief(script=trap).with_runner(other).revert(None)
        assert not ended.exists(), "it was killed after its own time"


class Polite(Shell, id="polite"):
    """Ends when its file is gone; SIGTERM leaves a trace."""

    flag: Path
    asked: str = "unlinks"

    @property
    def terminated(self) -> Path:
        return self.flag.with_name("terminated")

    def command(self) -> list[str]:
        trap = f"trap 'touch {self.terminated}; exit' TERM; touch {self.flag}"
        return ["/bin/sh", "-c", f"{trap}; while [ -e {self.flag} ]; do sleep 0.1; done"]

    def ready(self) -> bool:
        return self.flag.exists()

    def alive(self) -> bool:
        return self.asked != "hangs"

    async def stop(self) -> bool:
        match self.asked:
            case "unlinks" | "hangs":
                self.flag.unlink()
            case "fails":
                raise OSError("no socket")
            case "waits":
                await asyncio.sleep(1000)
        return True


@pytest.mark.parametrize(
    ("asked", "terminated"), [("unlinks", False), ("fails", True), ("waits", True), ("ends not", True)]
)
async def test_a_program_is_asked_to_stop_before_it_gets_a_signal(tmp_path: Path, asked: str, terminated: bool) -> None:
    async with driver(tmp_path) as children:
        daemon = Polite(script="", flag=tmp_path / "flag", asked=asked).with_runner(children)
        process = await applied(daemon, None)
        await daemon.revert(process)
        assert not is_running(process)
    assert daemon.terminated.exists() is terminated


async def test_a_hanging_program_is_not_asked_to_stop(tmp_path: Path) -> None:
    async with driver(tmp_path) as children:
        daemon = Polite(script="", flag=tmp_path / "flag", asked="hangs").with_runner(children)
        process = await applied(daemon, None)
        assert await applied(daemon, process) != process
    assert daemon.terminated.exists()


async def test_termination_for_the_other_process_calls_stop(tmp_path: Path) -> None:
    async with driver(tmp_path) as owner, driver(tmp_path) as other:
        daemon = Polite(script="", flag=tmp_path / "flag")
        await applied(daemon.with_runner(owner), None)
        await daemon.with_runner(other).revert(None)
        assert not daemon.flag.exists()
        assert not daemon.terminated.exists()


async def test_output_is_logged_once_across_restarts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    ended = asyncio.Event()
    async with driver(tmp_path, ended.set) as children:
        daemon = Shell(script=f"echo up $$; {SLEEPS}").with_runner(children)
        process = await daemon.apply(None)
        for _ in range(2):
            await said(caplog, f"up {process.pid}")
            ended.clear()
            os.kill(process.pid, signal.SIGKILL)
            await eventually(ended.is_set)
            process = await daemon.apply(process)
        await said(caplog, f"up {process.pid}")
    assert len(lines(caplog)) == 3


async def test_a_program_that_floods_its_output_does_not_delay_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with driver(tmp_path) as children:
        daemon = Shell(script="yes flood | head -c 20000000; exec sleep 1000").with_runner(children)
        process = await daemon.apply(None)
        await eventually(lambda: any("lines more" in line for line in lines(caplog)))
        async with asyncio.timeout(30):
            await daemon.revert(process)
    assert not is_running(process)


async def test_an_exited_program_fails_the_prepare_even_if_ready_returns_true(tmp_path: Path) -> None:
    """What it looks at may be left of the one before."""

    class Stale(Shell, id="stale"):
        async def ready(self) -> bool:  # type: ignore[override]
            [output] = (tmp_path / "children").glob("*.log")
            await eventually(lambda: bool(output.read_text()) and not find_marked(tmp_path / "children"))
            return True

    async with driver(tmp_path) as children:
        with pytest.raises(dra.TransientError, match="exited with code 3 before it was ready"):
            await Stale(script="echo bye; exit 3").with_runner(children).apply(None)


async def test_a_program_whose_restart_was_interrupted_can_be_started_later(tmp_path: Path) -> None:
    """What the one before has started takes its time to go."""
    ended = asyncio.Event()
    async with driver(tmp_path, ended.set) as children:
        daemon = Shell(script="sleep 1000 & wait").with_runner(children)
        first = await daemon.apply(None)
        await eventually(lambda: len(session_of(first.pid)) == 2)
        os.kill(first.pid, signal.SIGKILL)
        await eventually(ended.is_set)
        again = asyncio.ensure_future(daemon.apply(first))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        assert await daemon.holds(await daemon.apply(first))


async def test_a_killed_program_leaves_no_zombie(tmp_path: Path) -> None:
    out = tmp_path / "ready"
    async with driver(tmp_path) as children:
        for _ in range(10):
            daemon = Shell(script=f"trap '' TERM; touch {out}; while :; do sleep 1; done").with_runner(children)
            process = await daemon.apply(None)
            await eventually(out.exists)
            out.unlink()
            Shell.end_within, before = 0.0, Shell.end_within
            await daemon.revert(process)
            Shell.end_within = before
            assert not Path(f"/proc/{process.pid}").exists()


async def not_asked() -> bool:
    return False


async def test_a_process_with_a_reused_id_is_not_killed(tmp_path: Path) -> None:
    """It has ended, and IDs come around."""
    output = ProgramOutput(tmp_path / "log", written=True)
    stranger = await asyncio.create_subprocess_exec("/bin/sleep", "1000", start_new_session=True)
    program = Program(
        "shell",
        RunningProcess(stranger.pid, 1),
        ours=False,
        end_within=0.1,
        output=output,
        lock=NamedLocks(tmp_path / "locks").hold("shell"),
        ended=lambda _: None,
        stop=not_asked,
        level=lambda _: logging.INFO,
    )
    assert await program.end()
    assert identify(stranger.pid) is not None
    stranger.kill()
    await stranger.wait()


class Tidy(Shell, id="tidy"):
    """Ready when its file is there, which one that is killed leaves behind."""

    def clear(self) -> None:
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)


async def test_clear_runs_before_a_program_is_started(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    file.touch()
    async with driver(tmp_path) as children:
        with pytest.raises(dra.NotYet, match="not ready yet"):
            await Tidy(script=SLEEPS, ready_file=file).with_runner(children).apply(None)
        file.touch()
        await Tidy(script=SLEEPS, ready_file=file).with_runner(children).apply(None)
        assert file.exists()  # it runs already


async def test_clear_runs_after_a_program_is_terminated(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    async with driver(tmp_path) as children:
        daemon = Tidy(script=f"touch {file}; {SLEEPS}", ready_file=file).with_runner(children)
        with suppress(dra.NotYet):
            await daemon.apply(None)
        await eventually(file.exists)
        await daemon.revert(None)
    assert not file.exists()
