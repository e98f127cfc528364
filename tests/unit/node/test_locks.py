from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kit.errors import StoreError
from dra_kit.node.locks import Locks

HOLDER = """
import asyncio, sys
from pathlib import Path
from dra_kit.node.locks import Locks

async def main():
    async with Locks(Path(sys.argv[1])).hold(sys.argv[2]):
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@contextmanager
def other_process(directory: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)


async def test_one_at_a_time_for_each_name(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    log: list[str] = []

    async def work(name: str, mark: str) -> None:
        async with locks.hold(name):
            log.append(f"+{mark}")
            await asyncio.sleep(0)
            log.append(f"-{mark}")

    await asyncio.gather(work("a", "1"), work("a", "2"), work("a", "3"))
    assert log == ["+1", "-1", "+2", "-2", "+3", "-3"]


async def test_other_names_are_not_waited_for(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    async with locks.hold("a"), asyncio.timeout(60), locks.hold("b"):
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []


async def test_whoever_gives_up_waiting_leaves_nothing_behind(tmp_path: Path) -> None:
    locks = Locks(tmp_path)

    async def wait() -> None:
        async with locks.hold("a"):
            raise AssertionError("never gets it")

    async with locks.hold("a"):
        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with locks.try_hold("a") as held:
            assert not held
    async with locks.try_hold("a") as held:
        assert held


async def test_an_error_frees_the_lock(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    with pytest.raises(RuntimeError):
        async with locks.hold("a"):
            raise RuntimeError
    async with asyncio.timeout(60), locks.hold("a"):
        pass


async def test_another_process_is_waited_for(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    with other_process(tmp_path, "a") as process:
        assert locks.held_elsewhere("a")
        async with locks.try_hold("a") as held:
            assert not held
        waiting = asyncio.ensure_future(locks.hold("a").__aenter__())
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(waiting, 60)
    assert not Locks(tmp_path / "elsewhere").held_elsewhere("a")


async def test_a_killed_process_gives_its_lock_up(tmp_path: Path) -> None:
    with other_process(tmp_path, "a") as process:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        async with asyncio.timeout(60), Locks(tmp_path).hold("a"):
            pass
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_removed_under_us_is_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "locks"
    locks = Locks(directory)
    async with locks.hold("a"):
        (directory / "a.lock").unlink()
        directory.rmdir()
    async with locks.hold("a"):
        assert [item.name for item in directory.iterdir()] == ["a.lock"]


async def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"lock .*file/a.lock cannot be taken: .*--state-dir"):
        async with Locks(tmp_path / "file").hold("a"):
            pass


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    names=st.lists(st.text(min_size=1, max_size=400).filter(lambda text: text.isprintable()), min_size=1, unique=True)
)
def test_every_name_has_a_lock_of_its_own(tmp_path: Path, names: list[str]) -> None:
    async def hold_all() -> None:
        locks = Locks(tmp_path)
        held = [locks.hold(name) for name in names]
        for lock in held:
            await asyncio.wait_for(lock.__aenter__(), 60)
        assert len(list(tmp_path.glob("*.lock"))) == len(names)
        for lock in held:
            await lock.__aexit__(None, None, None)
        assert list(tmp_path.glob("*.lock")) == []

    asyncio.run(hold_all())


async def test_a_lock_of_this_process_is_not_held_elsewhere(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    async with locks.hold("a"):
        assert not locks.held_elsewhere("a")
        assert Locks(tmp_path).held_elsewhere("a"), "another one's"


async def test_files_of_killed_processes_are_swept(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    with other_process(tmp_path, "a") as killed, other_process(tmp_path, "b"):
        killed.send_signal(signal.SIGKILL)
        killed.wait(60)
        async with locks.hold("c"):
            assert locks.sweep() == (1, 1)
            assert sorted(path.name for path in tmp_path.iterdir()) == ["b.lock", "c.lock"]
    assert locks.sweep() == (0, 0)
