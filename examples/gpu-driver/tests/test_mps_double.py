"""The double of nvidia-cuda-mps-control answers what its documentation says, and what a real one was recorded to."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_driver.hardware import Hardware
from gpu_driver.nvml.fake.hardware import fake_hardware
from tests.mps_session import RECORDING, Session, differences

NOBODY = 65534


@pytest.fixture
def hardware(tmp_path: Path) -> Hardware:
    return fake_hardware("l4", tmp_path)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mps-") as made:  # pytest's folders are too long for sockets
        yield Path(made)


def session(hardware: Hardware, folder: Path) -> Session:
    program = hardware.program("nvidia-cuda-mps-control")
    assert program is not None
    return Session(program, {**hardware.environment, "CUDA_VISIBLE_DEVICES": "GPU-0"}, folder)


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
    files = found["files"]
    assert isinstance(files, dict)
    assert {name: mode[0] for name, mode in files.items()} == {
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
    recorded = json.loads(RECORDING.read_text(encoding="utf-8"))
    of_user = recorded.get("root" if os.getuid() == 0 else "nobody")
    if of_user is None:
        pytest.skip("the recording is of another user than this one")
    found = json.loads(json.dumps(session(hardware, folder).record()))
    assert differences(of_user["answers"], found["answers"]) == []
    assert set(found["files"]) == set(of_user["files"])
    assert set(found["left"]) == set(of_user["left"])
