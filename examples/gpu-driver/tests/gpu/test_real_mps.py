"""What a real MPS control daemon answers is recorded, and what the driver sets is what it has."""

import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_driver.effects.mps.control import PROGRAM, MpsControl
from gpu_driver.effects.mps.limits import Limits
from gpu_driver.nvml.fake.hardware import fake_hardware
from tests import mps_session
from tests.gpu import nvidia_smi
from tests.mps_session import RECORDING, Session, differences, of_this_user

pytestmark = pytest.mark.gpu
UNPRIVILEGED_UID = 65534


@pytest.fixture
def program() -> str:
    found = shutil.which(PROGRAM)
    if found is None:
        pytest.skip(f"MPS was not tested: {PROGRAM} is not on the PATH")
    return found


@pytest.fixture
def environment() -> dict[str, str]:
    """One GPU, and no other daemon of the machine."""
    modes = dict(zip(nvidia_smi.query("uuid"), nvidia_smi.query("mig.mode.current"), strict=True))
    whole = [uuid for uuid, mode in modes.items() if mode != "Enabled"]
    if not whole:
        pytest.skip("MPS was not tested: MIG is on on every GPU")
    return {"CUDA_VISIBLE_DEVICES": whole[0]}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mps-") as made:  # pytest's folders are too long for sockets
        Path(made).chmod(0o755)
        yield Path(made)


def test_the_answers_of_the_daemon_are_recorded(program: str, environment: dict[str, str], folder: Path) -> None:
    users = {"root": None, "unprivileged": UNPRIVILEGED_UID} if mps_session.is_root() else {"unprivileged": None}
    recorded: dict[str, object] = {
        "driver": nvidia_smi.query("driver_version")[0],
        "gpu": dict(zip(nvidia_smi.query("uuid"), nvidia_smi.query("name"), strict=True))[
            environment["CUDA_VISIBLE_DEVICES"]
        ],
    }
    for name, user in users.items():
        try:
            recorded[name] = Session(program, environment, folder / name, user).record()
        except PermissionError:
            warnings.warn(f"MPS was not tested as {name} user, who may not run {program}", stacklevel=1)
    RECORDING.parent.mkdir(exist_ok=True)
    RECORDING.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


def test_the_double_gives_the_recorded_answers(program: str, environment: dict[str, str], folder: Path) -> None:
    """What differs is a warning here, where the double cannot be corrected; without a GPU it fails a test."""
    recorded = of_this_user(json.loads(RECORDING.read_text(encoding="utf-8")))
    assert recorded is not None
    hardware = fake_hardware("h100", folder / "fake")
    double = Session(hardware.needed(PROGRAM), {**hardware.environment, **environment}, folder / "double").record()
    for difference in differences(recorded, double):
        warnings.warn(f"the double of {PROGRAM} answers otherwise: {difference}", stacklevel=1)


def test_limits_are_set_and_read_back(program: str, environment: dict[str, str], folder: Path) -> None:
    session = Session(program, environment, folder / "limits")
    session.start()
    try:
        for mebibytes in (1, 1023, 1024, 1500, 6145):
            Limits(percentage=25, memory={0: f"{mebibytes}M"}).set_in(MpsControl([program], session.environment))
        session.end()
    finally:
        session.kill()
