"""The client and NRI's own runtime side, in versions that runtimes have (tests/data/nri-runtime)."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from dra_kit.kubelet.nri import client
from tests.unit.kubelet.nri.recorder import Recorder, eventually, running, update

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SOURCE: Final = Path(__file__).parents[3] / "data" / "nri-runtime"
VERSIONS: Final = ("0.8.0", "0.11.0", "0.12.0", "0.12.5")
NEWEST: Final = VERSIONS[-1]
GO: Final = shutil.which("go") or "/usr/local/go/bin/go"
EVENTS: Final = [
    ("RunPodSandbox", "s1"),
    ("CreateContainer", "s1 c1"),
    ("StopContainer", "s1 c1"),
    ("RemoveContainer", "s1 c1"),
    ("StopPodSandbox", "s1"),
    ("RemovePodSandbox", "s1"),
]


def build(version: str, folder: Path) -> Path:
    if not Path(GO).exists():
        pytest.skip("NRI's own runtime side is NOT tested: install Go")
    program = folder / f"nri-runtime-{version}"
    if program.exists():
        return program
    new = f"{program}.new"
    module = "go.mod" if version == NEWEST else f"v{version}.mod"
    command = [GO, "build", f"-modfile={module}", "-tags", "nri_no_wasm", "-o", new, "."]
    result = subprocess.run(command, check=False, cwd=SOURCE, capture_output=True, text=True, timeout=500)
    if result.returncode and "dial tcp" in result.stderr:
        pytest.skip(f"NRI's own runtime side is NOT tested: its modules cannot be downloaded: {result.stderr}")
    assert result.returncode == 0, result.stderr
    return Path(new).rename(program)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The programs; the processes of pytest-xdist build them once, since that takes seconds."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "nri-runtimes"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return {version: build(version, folder) for version in VERSIONS}


@pytest.fixture
def socket() -> Iterator[Path]:
    with TemporaryDirectory(prefix="n") as directory:
        yield Path(directory) / "nri.sock"


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_FIRST", 0.05)


class GoRuntime:
    """The program: takes commands, and sorts what it writes by kind."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._written: dict[str, asyncio.Queue[dict[str, Any]]] = defaultdict(asyncio.Queue)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            item = json.loads(line)
            self._written[item["kind"]].put_nowait(item)

    async def next(self, kind: str) -> dict[str, Any]:
        return await self._written[kind].get()

    async def event(self, method: str, ids: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{method} {ids}\n".encode())
        return await self.next(method)

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def serving(
    program: Path, socket: Path, *, timeout: float = 60, pods: int = 1, containers: int = 1, padding: int = 0
) -> AsyncIterator[GoRuntime]:
    arguments = [str(socket), str(round(timeout * 1000)), str(pods), str(containers), str(padding)]
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, limit=1 << 26
    )
    runtime = GoRuntime(process)
    try:
        await runtime.next("started")
        yield runtime
    finally:
        await runtime.stop()


@pytest.mark.parametrize("version", VERSIONS)
async def test_hooks_of_each_version(programs: dict[str, Path], socket: Path, version: str) -> None:
    plugin = Recorder()
    plugin.updates = [update("c0", "3")]
    async with serving(programs[version], socket) as runtime, running(plugin, socket):
        assert (await runtime.next("synchronized"))["updates"] == ["c0=3"]
        answers = {method: await runtime.event(method, ids) for method, ids in EVENTS}

    assert [answer["error"] for answer in answers.values()] == [""] * 6
    assert answers["CreateContainer"]["cpus"] == "2-3"
    assert answers["StopContainer"]["updates"] == ["c2=0-3"]
    assert plugin.calls == [(method, ids.split()[-1]) for method, ids in EVENTS]


@pytest.mark.parametrize("version", VERSIONS)
async def test_hook_that_raises_fails_the_request(programs: dict[str, Path], socket: Path, version: str) -> None:
    plugin = Recorder()
    async with serving(programs[version], socket) as runtime, running(plugin, socket):
        await runtime.next("synchronized")
        plugin.error = RuntimeError("no CPUs left")
        failed = await runtime.event("RunPodSandbox", "s1")
        also = await runtime.event("CreateContainer", "s1 c1")
        plugin.error = None
        created = await runtime.event("CreateContainer", "s1 c1")

    assert "pod default/pod-s1 not started: NRI plugin 00-cpu.example.com: no CPUs left" in failed["error"]
    assert "container default/pod-s1/name-c1 not created" in also["error"]
    assert (created["error"], created["cpus"]) == ("", "2-3")


@pytest.mark.parametrize("version", VERSIONS)
async def test_hook_that_hangs_fails_the_request(programs: dict[str, Path], socket: Path, version: str) -> None:
    plugin = Recorder()
    async with serving(programs[version], socket, timeout=5) as runtime, running(plugin, socket) as run:
        await runtime.next("synchronized")
        plugin.gate.clear()
        failed = await runtime.event("CreateContainer", "s1 c1")
        plugin.gate.set()
        created = await runtime.event("CreateContainer", "s1 c1")

    assert "container default/pod-s1/name-c1 not created: the hook of NRI plugin" in failed["error"]
    assert (created["error"], created["cpus"]) == ("", "2-3")
    assert (len(plugin.calls), len(plugin.synchronizations)) == (1, 1)
    assert run.client.counters.late == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_synchronization_of_more_than_a_message(programs: dict[str, Path], socket: Path, version: str) -> None:
    plugin = Recorder()
    async with (
        serving(programs[version], socket, pods=100, containers=200, padding=100_000) as runtime,
        running(plugin, socket),
    ):
        assert (await runtime.next("synchronized"))["error"] == ""

    ((pods, containers),) = plugin.synchronizations
    assert (len(pods), len({item.id for item in containers})) == (100, 200)


async def test_flood_of_empty_parts_is_ended(programs: dict[str, Path], socket: Path) -> None:
    async with (
        serving(programs[NEWEST], socket, pods=1, containers=200, padding=100_000) as runtime,
        running(Recorder(), socket) as run,
    ):
        await run.until("empty parts without end")

        assert "empty parts without end" in (await runtime.next("synchronized"))["error"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_updates(programs: dict[str, Path], socket: Path, version: str) -> None:
    async with serving(programs[version], socket) as runtime, running(Recorder(), socket) as run:
        await runtime.next("synchronized")
        failed = await run.client.update_containers([update("c0", "1"), update("c1", "2")])

        assert (await runtime.next("update"))["updates"] == ["c0=1", "c1=2"]
        assert failed == [update("c1", "2")]


@pytest.mark.parametrize("version", VERSIONS)
async def test_large_messages(programs: dict[str, Path], socket: Path, version: str) -> None:
    updates = [update(f"{number:064x}", "0-3") for number in range(40_000)]
    plugin = Recorder()
    plugin.updates = updates
    async with serving(programs[version], socket) as runtime, running(plugin, socket) as run:
        assert len((await runtime.next("synchronized"))["updates"]) == len(updates)
        failed = await run.client.update_containers(updates)

        assert len(failed) == len(updates) - 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_messages_of_each_size_near_that_of_a_frame(
    programs: dict[str, Path], socket: Path, version: str
) -> None:
    async with serving(programs[version], socket) as runtime, running(Recorder(), socket) as run:
        await runtime.next("synchronized")
        for size in (*range(3950, 4110), 8192, 70_000):
            assert await run.client.update_containers([update("x" * size, "0-3")]) == []

        assert run.client.counters.reconnects == 0


async def test_large_messages_at_the_same_time(
    programs: dict[str, Path], socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMAXPROCS", "1")  # its reader is slow
    updates = [update(f"{number:064x}", "0-3") for number in range(5900)]
    async with serving(programs[NEWEST], socket) as runtime, running(Recorder(), socket) as run:
        await runtime.next("synchronized")
        failed = await asyncio.gather(*(run.client.update_containers(updates) for _ in range(10)))

    assert [len(items) for items in failed] == [len(updates) - 1] * 10


async def test_update_in_a_hook(programs: dict[str, Path], socket: Path) -> None:
    plugin = Recorder()
    async with serving(programs[NEWEST], socket) as runtime, running(plugin, socket) as run:
        await runtime.next("synchronized")

        async def inside() -> None:
            await run.client.update_containers([update("c0", "1")])

        plugin.inside = inside
        assert (await runtime.event("RunPodSandbox", "s1"))["error"] == ""
        assert (await runtime.next("update"))["updates"] == ["c0=1"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_stopping_fails_the_request_that_is_open(programs: dict[str, Path], socket: Path, version: str) -> None:
    plugin = Recorder()
    async with serving(programs[version], socket) as runtime, running(plugin, socket) as run:
        await runtime.next("synchronized")
        plugin.gate.clear()
        request = asyncio.create_task(runtime.event("RunPodSandbox", "s1"))
        await eventually(lambda: plugin.calls)
        await run.stop()

        assert "not served" in (await request)["error"]


async def test_restart_of_the_runtime(programs: dict[str, Path], socket: Path) -> None:
    plugin = Recorder()
    async with running(plugin, socket):
        for _ in range(2):
            async with serving(programs[NEWEST], socket) as runtime:
                await runtime.next("synchronized")
                assert (await runtime.event("RunPodSandbox", "s1"))["error"] == ""

    assert len(plugin.calls) == 2


async def test_two_plugins_that_set_the_same_field(programs: dict[str, Path], socket: Path) -> None:
    async with serving(programs[NEWEST], socket) as runtime, running(Recorder(), socket, "a"):
        await runtime.next("synchronized")
        async with running(Recorder(), socket, "b"):
            await runtime.next("synchronized")
            failed = await runtime.event("CreateContainer", "s1 c1")

    assert "both tried to set" in failed["error"]
