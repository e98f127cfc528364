"""The double of nvidia-cuda-mps-control answers what its documentation says, and what a real one was recorded to."""

import copy
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_driver.doubles.nvidia_cuda_mps_control import PID_FILE
from gpu_driver.effects.mps.control import PROGRAM, MpsControl
from gpu_driver.hardware import Hardware
from gpu_driver.nvml.fake.hardware import fake_hardware
from tests.mps_session import RECORDING, Session, differences, of_this_user
from tests.test_mps import runs


@pytest.fixture
def hardware(tmp_path: Path) -> Hardware:
    return fake_hardware("l4", tmp_path)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mps-") as made:  # pytest's folders are too long for sockets
        yield Path(made)


def session(hardware: Hardware, folder: Path, within: float = 60.0) -> Session:
    environment = {**hardware.environment, "CUDA_VISIBLE_DEVICES": "GPU-0"}
    return Session(hardware.needed(PROGRAM), environment, folder, within=within)


def test_it_answers_as_documented(hardware: Hardware, folder: Path) -> None:
    recorded = session(hardware, folder)
    found = recorded.record()
    answers = {answer.input: answer.output for answer in recorded.answers if answer.input.startswith("get_")}
    assert answers["get_default_active_thread_percentage"] == "25.0"
    assert answers["get_default_device_pinned_mem_limit 0"] == "1G"
    first, _, second, *_, last = recorded.answers
    assert (first.exit_code, first.output) == (1, "Cannot find MPS control daemon process")
    assert last == first
    assert "already running" in second.output
    assert {name: mode[0] for name, mode in found["files"].items()} == {
        "control": "s",
        "control_lock": "-",
        "control_privileged": "s",
        "log": "p",
        "nvidia-cuda-mps-control.pid": "-",
    }
    assert found["left"] == {}


def test_it_answers_as_a_real_one_did(hardware: Hardware, folder: Path) -> None:
    if not RECORDING.exists():
        pytest.skip(f"no real MPS was recorded yet: {RECORDING.name} comes of `make test-gpu` on a machine with a GPU")
    recorded = of_this_user(json.loads(RECORDING.read_text(encoding="utf-8")))
    if recorded is None:
        pytest.skip("the recording is of another user than this one")
    assert differences(recorded, session(hardware, folder).record()) == []


def test_a_server_is_listed_until_it_is_shut_down(hardware: Hardware, folder: Path) -> None:
    running = session(hardware, folder)
    control = MpsControl([hardware.needed(PROGRAM)], running.environment)
    running.start()
    try:
        control.ask("start_server -uid 1000")
        control.ask("start_server -uid 1000")
        pid = control.ask("get_server_list")
        assert pid.isdigit()
        control.ask(f"shutdown_server {pid}")
        assert control.ask("get_server_list") == ""
    finally:
        running.kill()


def test_what_differs_between_two_sessions_is_named_by_its_command(hardware: Hardware, folder: Path) -> None:
    found = session(hardware, folder).record()
    assert differences(found, found) == []
    other = copy.deepcopy(found)
    other["answers"][4]["output"] = "50.0"
    other["left"]["control"] = "srw-rw-rw-"
    del other["answers"][-1]
    told = differences(other, found)
    assert [line.split(":")[0] for line in told] == [
        "set_default_active_thread_percentage 0",
        "the commands are others than those of the recording; make it anew with make test-gpu",
        "left of the pipe directory",
    ]


def test_a_daemon_that_hangs_is_killed(hardware: Hardware, folder: Path, tmp_path: Path) -> None:
    running = session(hardware, folder)
    running.start()
    try:
        daemon = int((running.pipe / PID_FILE).read_text())
        (tmp_path / "mps-fault").write_text("hangs")
        with pytest.raises(subprocess.TimeoutExpired):
            session(hardware, folder, within=1).end()
    finally:
        running.kill()
    wait_until_gone(daemon)


def wait_until_gone(number: int) -> None:
    until = time.monotonic() + 60
    while runs(number):
        assert time.monotonic() < until
        time.sleep(0.05)
