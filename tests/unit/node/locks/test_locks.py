from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kit.errors import StoreError
from dra_kit.node.locks import NamedLocks

HOLDER = """
import asyncio, sys
from pathlib import Path
from dra_kit.node.locks import NamedLocks

async def main():
    async with NamedLocks(Path(sys.argv[1])).hold(sys.argv[2]):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""

LOOKER = """
import select
import sys
from pathlib import Path
from dra_kit.node.locks import NamedLocks

locks = NamedLocks(Path(sys.argv[1]))
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:  # until its parent has exited
    locks.held_elsewhere("a")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "locks" / "names.lock"


@pytest.fixture
def locks(file: Path) -> NamedLocks:
    return NamedLocks(file)


def other_process(file: Path, name: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process that holds the lock until its stdin is closed."""
    return python(HOLDER, str(file), name)


@contextmanager
def python(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process, once it has said that it is ready; it exits when its stdin is closed, as at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)


async def test_lock_of_a_name_has_one_holder(locks: NamedLocks) -> None:
    log: list[str] = []

    async def work(name: str, mark: str) -> None:
        async with locks.hold(name):
            log.append(f"+{mark}")
            await asyncio.sleep(0)
            log.append(f"-{mark}")

    await asyncio.gather(work("a", "1"), work("a", "2"), work("a", "3"))
    assert log == ["+1", "-1", "+2", "-2", "+3", "-3"]


async def test_locks_of_other_names_are_independent(locks: NamedLocks) -> None:
    async with locks.hold("a"), asyncio.timeout(60), locks.hold("b"):
        pass


async def test_cancelled_waiter_leaves_nothing_behind(locks: NamedLocks) -> None:

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


async def test_error_releases_the_lock(locks: NamedLocks) -> None:
    with pytest.raises(RuntimeError):
        async with locks.hold("a"):
            raise RuntimeError
    async with asyncio.timeout(60), locks.hold("a"):
        pass


async def test_lock_excludes_other_processes(locks: NamedLocks, file: Path) -> None:
    with other_process(file, "a") as process:
        assert locks.held_elsewhere("a")
        async with locks.try_hold("a") as held:
            assert not held
        waiting = asyncio.ensure_future(locks.hold("a").__aenter__())
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(waiting, 60)
    assert not NamedLocks(file.with_name("elsewhere.lock")).held_elsewhere("a")


async def test_lock_of_a_killed_process_is_released(file: Path) -> None:
    with other_process(file, "a") as process:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        async with asyncio.timeout(60), NamedLocks(file).hold("a"):
            pass


async def test_child_of_a_killed_holder_keeps_no_lock(locks: NamedLocks, file: Path) -> None:
    async with locks.hold("a"):
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=subprocess.PIPE)
    assert not NamedLocks(file).held_elsewhere("a")
    await asyncio.wait_for(child.communicate(b"\n"), 60)


async def test_forked_process_keeps_no_lock(locks: NamedLocks, file: Path) -> None:
    async with locks.hold("a"):
        [held] = [int(item.name) for item in Path("/proc/self/fd").iterdir() if _target(item) == file]
        forked = os.dup(held)  # fork(2) shares descriptors just so
    try:
        assert not locks.held_elsewhere("a")
        async with locks.try_hold("a") as free:
            assert free
    finally:
        os.close(forked)


def _target(link: Path) -> Path | None:
    try:
        return link.readlink()
    except OSError:
        return None  # closed meanwhile


async def test_checking_a_lock_does_not_take_it(locks: NamedLocks, file: Path) -> None:
    with python(LOOKER, str(file)):
        for _ in range(3000):
            async with locks.try_hold("a") as held:
                assert held


async def test_removed_directory_is_created_again(locks: NamedLocks, file: Path) -> None:
    async with locks.hold("a"):
        file.unlink()
        file.parent.rmdir()
    async with locks.hold("a"):
        assert NamedLocks(file).held_elsewhere("a")


async def test_directory_of_a_removed_node_is_not_created_again(tmp_path: Path) -> None:
    directory = tmp_path / "kubelet" / "plugins" / "dra.pizza" / "locks"
    with pytest.raises(StoreError, match=r"lock .*names.lock cannot be taken: "):
        async with NamedLocks(directory / "names.lock").hold("a"):
            pass
    assert not (tmp_path / "kubelet").exists()


async def test_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"lock .*file/names.lock cannot be taken: .*--state-dir"):
        async with NamedLocks(tmp_path / "file" / "names.lock").hold("a"):
            pass


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(names=st.lists(st.text(min_size=1, max_size=400), min_size=1, unique=True))
def test_each_name_has_its_own_lock(file: Path, names: list[str]) -> None:
    async def hold_all() -> None:
        ours, others = NamedLocks(file), NamedLocks(file)
        held = []
        for name in names:
            assert not others.held_elsewhere(name)
            held.append(ours.hold(name))
            await asyncio.wait_for(held[-1].__aenter__(), 60)
            assert others.held_elsewhere(name)
        for name, lock in zip(names, held, strict=True):
            await lock.__aexit__(None, None, None)
            assert not others.held_elsewhere(name)

    asyncio.run(hold_all())


async def test_own_lock_is_not_held_elsewhere(locks: NamedLocks, file: Path) -> None:
    async with locks.hold("a"):
        assert not locks.held_elsewhere("a")
        assert NamedLocks(file).held_elsewhere("a"), "another one's"


async def test_lock_file_closed_by_the_author_blocks_no_claim(locks: NamedLocks, file: Path) -> None:
    """Libraries that become daemons close every file they find."""
    async with locks.hold("a"):
        [descriptor] = [int(item.name) for item in Path("/proc/self/fd").iterdir() if _target(item) == file]
        os.close(descriptor)
    async with asyncio.timeout(30), locks.hold("a") as held:
        assert held
