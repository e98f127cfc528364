"""The directory of a sandbox goes with it, or with the next one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_kit.sandbox.directory import sandbox_directory

HOLD = """
from dra_kit.sandbox.directory import sandbox_directory
with sandbox_directory() as directory:
    print(directory, flush=True)
    input()
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


def test_it_is_removed_in_the_end(temporary: Path) -> None:
    with sandbox_directory() as directory:
        (directory / "node-1").mkdir()
        assert directory.parent == temporary

    assert list(temporary.iterdir()) == []


def test_that_of_a_killed_process_is_removed_by_the_next_one(temporary: Path) -> None:
    abandoned = killed(temporary)
    assert abandoned.exists()

    with sandbox_directory() as directory:
        assert list(temporary.iterdir()) == [directory]


def test_that_of_a_running_one_stays(temporary: Path) -> None:
    with sandbox_directory() as first, sandbox_directory() as second:
        assert sorted(temporary.iterdir()) == sorted([first, second])


def test_what_others_made_under_such_a_name_stays(temporary: Path) -> None:
    (temporary / "dra-notes").mkdir()

    with sandbox_directory():
        pass

    assert (temporary / "dra-notes").exists()


def test_a_long_temporary_directory_is_not_used(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = temporary / "a-name-that-leaves-no-room-for-sockets"
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    with sandbox_directory() as directory:
        assert directory.parent == Path("/tmp")
