"""The directory of a sandbox goes with it, or with the next one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.containers.processes import MARK_VARIABLE
from dra_kit.sandbox.directory import mark_of, remove_abandoned, sandbox_directory
from tests.support.processes import is_alive

HOLD = """
from dra_kit.sandbox.directory import sandbox_directory
with sandbox_directory() as directory:
    print(directory, flush=True)
    input()
"""


LOCK_UP = """
import os, sys, tempfile
from dra_kit.sandbox.directory import sandbox_directory
tempfile.tempdir = sys.argv[1]
if os.geteuid() == 0:  # to whom nothing is forbidden
    os.chown(tempfile.tempdir, 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
with sandbox_directory() as directory:
    inner = directory / "node-1" / "locked"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    inner.chmod(0o500)
    inner.parent.chmod(0o100)
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as directory:  # a short one is used as it is
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def killed(temporary: Path) -> Path:
    """The directory of a process that was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={"TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        process.kill()
    assert directory.parent == temporary
    return directory


def test_sandbox_directory_is_removed(temporary: Path) -> None:
    with sandbox_directory() as directory:
        (directory / "node-1").mkdir()
        assert directory.parent == temporary

    assert list(temporary.iterdir()) == []


def test_read_only_folders_are_removed(temporary: Path) -> None:
    subprocess.run([sys.executable, "-c", LOCK_UP, str(temporary)], check=True, timeout=240)

    assert list(temporary.iterdir()) == []


def test_directory_of_a_killed_sandbox_is_removed_by_the_next(temporary: Path) -> None:
    abandoned = killed(temporary)
    assert abandoned.exists()

    with sandbox_directory() as directory:
        assert list(temporary.iterdir()) == [directory]


def test_directory_of_a_running_sandbox_is_kept(temporary: Path) -> None:
    with sandbox_directory() as first, sandbox_directory() as second:
        assert sorted(temporary.iterdir()) == sorted([first, second])


@pytest.mark.parametrize("name", ["dra-mywork", "dra-abcd1234"])
@pytest.mark.parametrize(
    "files",
    [
        {},
        {"lock": ""},
        {".dra-kit-sandbox": ""},
        {".dra-kit-sandbox": "mine"},
        {".dra-kit-sandbox": '{"sandbox": "dra-other", "mark": "0123"}'},
        {".dra-kit-sandbox": '{"sandbox": 1, "mark": []}'},
        {".dra-kit-sandbox": "[" * 50_000},
    ],
)
def test_unmarked_directory_is_kept(temporary: Path, name: str, files: dict[str, str]) -> None:
    work = temporary / name
    work.mkdir(0o700)
    for file, text in {"thesis": "years of work", **files}.items():
        (work / file).write_text(text)
        (work / file).chmod(0o600)

    with sandbox_directory():
        pass

    assert (work / "thesis").read_text() == "years of work"
    assert {path.name for path in work.iterdir()} == {"thesis", *files}


def test_copy_of_a_sandbox_directory_is_kept(temporary: Path) -> None:
    abandoned = killed(temporary)
    copy = temporary / "dra-copy"
    shutil.copytree(abandoned, copy)
    copy.chmod(0o700)

    with sandbox_directory() as directory:
        assert sorted(temporary.iterdir()) == sorted([copy, directory])


def test_link_to_an_abandoned_directory_is_not_followed(temporary: Path) -> None:
    abandoned = killed(temporary)
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    moved = elsewhere / abandoned.name
    abandoned.rename(moved)
    abandoned.symlink_to(moved)

    with sandbox_directory():
        pass

    assert abandoned.is_symlink()
    assert moved.is_dir()


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_directory_that_others_can_access_is_not_trusted(temporary: Path, mode: int) -> None:
    abandoned = killed(temporary)
    abandoned.chmod(mode)

    with sandbox_directory():
        assert abandoned.exists()


def test_links_in_an_abandoned_directory_are_removed_and_not_followed(temporary: Path) -> None:
    abandoned = killed(temporary)
    mine = temporary / "mine"
    mine.mkdir()
    (mine / "thesis").touch()
    (abandoned / "link").symlink_to(mine)
    (abandoned / "node-1").mkdir()
    (abandoned / "node-1" / "link").symlink_to(mine)

    with sandbox_directory() as directory:
        assert sorted(temporary.iterdir()) == sorted([mine, directory])
    assert (mine / "thesis").exists()


def test_interrupted_removal_is_completed_by_the_next_sandbox(temporary: Path) -> None:
    abandoned = killed(temporary)
    (abandoned / "node-1").mkdir()
    abandoned.rename(abandoned.with_suffix(".gone"))

    with sandbox_directory() as directory:
        assert list(temporary.iterdir()) == [directory]


def test_sandbox_directory_is_private(temporary: Path) -> None:
    with sandbox_directory() as directory:
        assert directory.stat().st_mode & 0o777 == 0o700
        assert (directory / ".dra-kit-sandbox").stat().st_mode & 0o777 == 0o600


def test_all_processes_of_a_killed_sandbox_are_killed(temporary: Path) -> None:
    abandoned = killed(temporary)
    environment = {**os.environ, MARK_VARIABLE: mark_of(abandoned)}
    nested = "import subprocess, sys; print(subprocess.Popen(['setsid', 'sleep', '3600'], stdout=2).pid, flush=True)"
    # its parent has ended, and it is in a session of its own
    orphan = int(subprocess.check_output([sys.executable, "-c", nested], env=environment, stderr=subprocess.DEVNULL))
    others = {**os.environ, MARK_VARIABLE: "0123"}
    with subprocess.Popen(["/bin/sleep", "3600"], env=others) as bystander:
        try:
            assert is_alive(orphan)

            ended = remove_abandoned()

            assert ended == 1
            assert not is_alive(orphan)
            assert not abandoned.exists()
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_processes_of_a_running_sandbox_are_kept(temporary: Path) -> None:
    with sandbox_directory() as directory:
        environment = {**os.environ, MARK_VARIABLE: mark_of(directory)}
        with subprocess.Popen(["/bin/sleep", "3600"], env=environment) as process:
            assert remove_abandoned() == 0
            assert process.poll() is None
            process.kill()


def test_orphans_of_a_killed_reaper_end_with_the_sandbox(temporary: Path) -> None:
    with sandbox_directory() as directory:
        environment = {**os.environ, MARK_VARIABLE: mark_of(directory)}
        process = subprocess.Popen(["/bin/sleep", "3600"], env=environment)

    assert process.wait(60) == -signal.SIGKILL


def test_a_long_temporary_directory_is_not_used(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = temporary / "a-name-that-leaves-no-room-for-sockets"
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    with sandbox_directory() as directory:
        assert directory.parent == Path("/tmp")


def _has_mounts() -> bool:
    """Whether this process may mount file systems."""
    unshare = shutil.which("unshare")
    command = [str(unshare), "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return unshare is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _has_mounts(), reason="what a driver mounts is NOT tested: this process may not mount")
@pytest.mark.parametrize("abandoned", [False, True], ids=["in order", "killed"])
def test_mounts_in_the_directory_are_unmounted(temporary: Path, abandoned: bool) -> None:
    directory = killed(temporary) if abandoned else None
    with sandbox_directory() if directory is None else nullcontext(directory) as made:
        outer = made / "node-1" / "memory"
        inner = outer / "shm"
        for place in (outer, inner):
            place.mkdir(parents=True)
            subprocess.run(["/bin/mount", "-t", "tmpfs", "none", str(place)], check=True)
        (inner / "file").write_text("of a container")
    remove_abandoned()
    assert list(temporary.iterdir()) == []
    assert str(temporary) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("nodes", [1, 12])
async def test_directories_of_nodes_are_no_longer_than_that_of_a_kubelet(
    monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")

    async with Sandbox([], SandboxSettings(nodes=nodes)) as sandbox:
        longest = max(len(str(node.directory)) for node in sandbox.nodes)

    assert longest <= len("/var/lib/kubelet")
