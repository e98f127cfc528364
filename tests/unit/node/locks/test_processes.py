from __future__ import annotations

import fcntl
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dra_kit.errors import StoreError
from dra_kit.node import processes
from dra_kit.node.processes import DriverProcesses
from tests.unit.node.locks.test_locks import python

OTHER = """
import sys
from pathlib import Path
from dra_kit.node.processes import DriverProcesses

with DriverProcesses(Path(sys.argv[1])).present():
    print("ready", flush=True)
    sys.stdin.read()
"""


def other(directory: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process, which exits cleanly at the end."""
    return python(OTHER, str(directory))


def test_only_other_processes_are_counted(tmp_path: Path) -> None:
    processes = DriverProcesses(tmp_path)
    assert processes.sweep() == (0, 0)
    with processes.present(), other(tmp_path), other(tmp_path):
        assert processes.sweep() == (0, 2)


def test_process_that_exits_cleanly_leaves_no_file(tmp_path: Path) -> None:
    with DriverProcesses(tmp_path).present(), other(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_killed_process_is_counted_once(tmp_path: Path) -> None:
    processes = DriverProcesses(tmp_path)
    with processes.present(), other(tmp_path) as killed, other(tmp_path):
        killed.send_signal(signal.SIGKILL)
        killed.wait(60)
        assert processes.sweep() == (1, 1)
        assert processes.sweep() == (0, 1)


def test_process_is_found_again_after_its_directory_was_removed(tmp_path: Path) -> None:
    directory = tmp_path / "processes"
    processes = DriverProcesses(directory)
    with processes.present():
        shutil.rmtree(directory)
        assert processes.sweep() == (0, 0)
        assert DriverProcesses(directory).sweep() == (0, 1)
        assert processes.sweep() == (0, 0)
    assert DriverProcesses(directory).sweep() == (0, 0)
    assert list(directory.iterdir()) == []


def test_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(
            StoreError, match=r"lock .*/file/processes/.* cannot be taken: Not a directory; check .*--state-dir"
        ),
        DriverProcesses(tmp_path / "file" / "processes").present(),
    ):
        pass


def test_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    (tmp_path / "folder.lock").mkdir()
    with pytest.raises(StoreError, match=r"lock .*folder.lock cannot be taken: "):
        DriverProcesses(tmp_path).sweep()


def test_unreadable_file_does_not_lose_the_count_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.lock", "b.lock"):
        (tmp_path / name).touch()
    locked, tried = processes._locked, list[Path]()

    def second_fails(path: Path, flags: int) -> int | None:
        tried.append(path)
        if len(tried) == 2:
            raise OSError("input/output error")
        return locked(path, flags)

    monkeypatch.setattr(processes, "_locked", second_fails)
    with pytest.raises(StoreError, match="input/output error"):
        DriverProcesses(tmp_path).sweep()
    assert DriverProcesses(tmp_path).sweep() == (2, 0)


def test_older_process_is_succeeded_while_a_younger_one_publishes(tmp_path: Path) -> None:
    elder, younger = DriverProcesses(tmp_path), DriverProcesses(tmp_path)
    with elder.present():
        elder.publishes()
        assert not elder.is_succeeded()
        with younger.present():
            assert not elder.is_succeeded(), "it has nothing to publish yet"
            younger.publishes()
            assert elder.is_succeeded()
            assert not younger.is_succeeded()
        assert not elder.is_succeeded()


def test_process_with_an_empty_file_counts_as_publishing(tmp_path: Path) -> None:
    elder = DriverProcesses(tmp_path)
    with elder.present(), (tmp_path / "other.lock").open("x") as file:
        assert not elder.is_succeeded(), "no process holds it"
        fcntl.flock(file, fcntl.LOCK_EX)
        assert elder.is_succeeded()
        younger = DriverProcesses(tmp_path)
        with younger.present():
            assert not younger.is_succeeded()


def test_killed_process_does_not_succeed_another(tmp_path: Path) -> None:
    elder = DriverProcesses(tmp_path)
    with elder.present(), (tmp_path / "other.lock").open("x") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert elder.is_succeeded()
        file.close()
        assert not elder.is_succeeded()
        assert elder.sweep() == (1, 0)


def test_order_is_known_after_the_directory_was_removed(tmp_path: Path) -> None:
    directory = tmp_path / "processes"
    elder, younger = DriverProcesses(directory), DriverProcesses(directory)
    with elder.present(), younger.present():
        younger.publishes()
        shutil.rmtree(directory)
        elder.sweep()
        younger.sweep()
        assert elder.is_succeeded()
        assert not younger.is_succeeded()


def test_younger_process_is_preceded_until_the_older_one_stops_or_exits(tmp_path: Path) -> None:
    elder, younger = DriverProcesses(tmp_path), DriverProcesses(tmp_path)
    with elder.present():
        with younger.present():
            assert not elder.is_preceded()
            assert younger.is_preceded()
            elder.publishes()
            assert younger.is_preceded()
            elder.stops()
            assert not younger.is_preceded(), "it accepts no more calls"
        with DriverProcesses(tmp_path).present():
            pass
    with younger.present():
        assert not younger.is_preceded()


def test_killed_process_does_not_precede_another(tmp_path: Path) -> None:
    with other(tmp_path) as killed:
        processes = DriverProcesses(tmp_path)
        with processes.present():
            assert processes.is_preceded()
            killed.send_signal(signal.SIGKILL)
            killed.wait(60)
            assert not processes.is_preceded()


def test_older_process_of_another_release_precedes(tmp_path: Path) -> None:
    with (tmp_path / "other.lock").open("x") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        processes = DriverProcesses(tmp_path)
        with processes.present():
            assert processes.is_preceded()
            file.close()
            assert not processes.is_preceded()


def test_stopping_process_does_not_succeed_another(tmp_path: Path) -> None:
    elder, younger = DriverProcesses(tmp_path), DriverProcesses(tmp_path)
    with elder.present(), younger.present():
        younger.publishes()
        assert elder.is_succeeded()
        younger.stops()
        assert not elder.is_succeeded()


def test_takeovers_are_counted_while_the_older_process_runs(tmp_path: Path) -> None:
    elder = DriverProcesses(tmp_path)
    with elder.present():
        elder.publishes()
        for number in range(12):
            younger = DriverProcesses(tmp_path)
            with younger.present():
                assert younger.outlived() == number
                younger.takes_over()
                assert not elder.is_succeeded(), "it has published nothing yet"
                younger.publishes()
                assert elder.is_succeeded()
        waiting = DriverProcesses(tmp_path)
        with waiting.present():
            assert waiting.outlived() == 12
    with waiting.present():
        assert waiting.outlived() == 0
    assert list(tmp_path.iterdir()) == []


def test_oldest_process_removes_the_files_of_killed_processes(tmp_path: Path) -> None:
    elder, younger = DriverProcesses(tmp_path), DriverProcesses(tmp_path)
    with elder.present(), other(tmp_path) as killed, younger.present():
        killed.send_signal(signal.SIGKILL)
        killed.wait(60)
        assert younger.sweep() == (0, 1)
        assert elder.sweep() == (1, 1)
