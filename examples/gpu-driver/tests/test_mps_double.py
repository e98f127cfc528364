"""The double of nvidia-cuda-mps-control answers what a real one was recorded to."""

import copy
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_driver.doubles.nvidia_cuda_mps_control import PID_FILE, _Daemon
from gpu_driver.effects.mps.control import PROGRAM, MpsControl
from gpu_driver.effects.mps.limits import Limits
from gpu_driver.hardware import Hardware
from gpu_driver.nvml.fake.hardware import fake_hardware
from tests.mps import mps_root, pid_in, runs
from tests.mps_session import RECORDING, Session, differences, of_this_user


@pytest.fixture
def hardware(tmp_path: Path) -> Hardware:
    return fake_hardware("l4", tmp_path)


@pytest.fixture
def folder() -> Iterator[Path]:
    with mps_root() as made:
        yield made


def session(hardware: Hardware, folder: Path, within: float = 60.0) -> Session:
    environment = {**hardware.environment, "CUDA_VISIBLE_DEVICES": "GPU-0"}
    return Session(hardware.needed(PROGRAM), environment, folder, within=within)


def test_the_double_gives_the_recorded_answers(hardware: Hardware, folder: Path) -> None:
    recorded = of_this_user(json.loads(RECORDING.read_text(encoding="utf-8")))
    if recorded is None:
        pytest.skip("the recording is of another user than this one")
    assert differences(recorded, session(hardware, folder).record()) == []


def test_it_can_be_asked_as_long_as_its_pid_file_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, listen = folder / "p", _Daemon._listen

    def slow(daemon: _Daemon, name: str) -> socket.socket:
        time.sleep(0.2)
        return listen(daemon, name)

    monkeypatch.setattr(_Daemon, "_listen", slow)
    daemon = threading.Thread(target=_Daemon(pipe, folder / "l", multi_user=False).run, kwargs={"in_background": False})
    daemon.start()
    try:
        wait_until((pipe / PID_FILE).exists)
    finally:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(pipe / "control_privileged"))
            client.sendall(b"quit\n")
    wait_until(lambda: not (pipe / PID_FILE).exists())
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(str(pipe / "control_privileged"))
    daemon.join(60)
    assert not daemon.is_alive()


def test_in_the_foreground_the_double_writes_to_its_output_and_stops_with_quit(
    hardware: Hardware, folder: Path
) -> None:
    environment = session(hardware, folder).environment
    program = hardware.needed(PROGRAM)
    with subprocess.Popen([program, "-f"], env=environment, stdout=subprocess.PIPE, text=True) as daemon:
        control = MpsControl([program], environment)
        until = time.monotonic() + 60
        while not control.answers():
            assert time.monotonic() < until
        control.ask("quit -t 3")
        output, _ = daemon.communicate(timeout=60)
    assert daemon.returncode == 0
    assert "Cmd:quit -t 3" in output
    assert not (folder / "l/control.log").exists()


def test_a_signal_leaves_files_and_the_next_daemon_starts_with_them(hardware: Hardware, folder: Path) -> None:
    running = session(hardware, folder)
    running.start()
    number = pid_in(running.pipe)
    os.kill(number, signal.SIGTERM)
    wait_until_gone(number)
    assert (running.pipe / PID_FILE).exists()
    running.start()
    running.end()


def test_a_server_serves_one_user(hardware: Hardware, folder: Path) -> None:
    running = session(hardware, folder)
    control = MpsControl([hardware.needed(PROGRAM)], running.environment)
    running.start()
    try:
        pids = []
        for user in (1000, 1000, 1001):
            control.ask(f"start_server -uid {user}")
            pids.append(control.ask("get_server_list"))
        assert pids[0] == pids[1] != pids[2]
    finally:
        running.kill()


def test_limits_of_every_size_are_set_and_read_back(hardware: Hardware, folder: Path) -> None:
    """It shows whole GiB from one of them on, and drops the rest."""
    running = session(hardware, folder)
    running.start()
    try:
        for mebibytes in (1, 1023, 1024, 1500, 6145, 143771):
            Limits(percentage=25, memory={0: f"{mebibytes}M"}).set_in(
                MpsControl([hardware.needed(PROGRAM)], running.environment)
            )
    finally:
        running.kill()


def test_differences_between_sessions_are_reported_by_command(hardware: Hardware, folder: Path) -> None:
    found = session(hardware, folder).record()
    assert differences(found, found) == []
    other = copy.deepcopy(found)
    other["answers"][4]["output"] = "50.0"
    other["left"]["log"] = "prw-rw-rw-"
    del other["answers"][-1]
    lines = differences(other, found)
    assert [line.split(":")[0] for line in lines] == [
        "set_default_active_thread_percentage 0",
        "the commands differ from those of the recording; record again with make test-gpu",
        "left of the pipe directory",
    ]


def test_a_hanging_daemon_is_killed(hardware: Hardware, folder: Path, tmp_path: Path) -> None:
    running = session(hardware, folder)
    running.start()
    try:
        daemon = pid_in(running.pipe)
        (tmp_path / "mps-fault").write_text("hangs")
        with pytest.raises(subprocess.TimeoutExpired):
            session(hardware, folder, within=1).end()
    finally:
        running.kill()
    wait_until_gone(daemon)


def wait_until_gone(number: int) -> None:
    wait_until(lambda: not runs(number))


def wait_until(check: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not check():
        assert time.monotonic() < until
        time.sleep(0.05)
