"""MPS folders whose records were lost are removed, and those of effects in force and of live daemons never are."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_driver.effects.mps.leftovers import remove_leftovers
from gpu_driver.effects.mps.paths import MakeMpsFolder, MpsFolder
from gpu_driver.nvml.fake.hardware import fake_hardware
from gpu_driver.settings import Settings
from tests.conftest import Node, mps_root
from tests.test_mps import SOON, config, pipe

HOUR = 3600.0


@pytest.fixture
def root() -> Iterator[Path]:
    with mps_root() as made:
        yield made


def left_by_a_daemon(root: Path, name: str = "0123456789ab", *, seconds_ago: float = HOUR) -> MpsFolder:
    """A folder with what a daemon that was killed leaves: sockets, a PID file and a log."""
    folder = MpsFolder(path=root / name)
    folder.make()
    for name in ("control", "control_privileged"):
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(str(folder.pipe / name))
    (folder.pipe / "nvidia-cuda-mps-control.pid").write_text("4194303\n")
    (folder.log / "control.log").write_text("Exit\n")
    return age(folder, seconds_ago)


def age(folder: MpsFolder, seconds: float) -> MpsFolder:
    then = time.time() - seconds
    for path in (folder.path, folder.pipe, folder.log):
        os.utime(path, (then, then))
    return folder


def test_a_folder_that_no_effect_names_and_no_daemon_uses_is_removed(root: Path) -> None:
    left = left_by_a_daemon(root)
    remove_leftovers(root, lambda: ())
    assert not left.path.exists()


def test_a_folder_in_which_something_has_just_changed_stays(root: Path) -> None:
    left = left_by_a_daemon(root, seconds_ago=60)
    remove_leftovers(root, lambda: ())
    assert left.path.exists()


def test_a_folder_that_is_none_of_this_drivers_stays(root: Path) -> None:
    other = left_by_a_daemon(root, "of-somebody-else")
    remove_leftovers(root, lambda: ())
    assert other.path.exists()


def test_where_no_folder_was_ever_made_there_is_nothing_to_do(root: Path) -> None:
    remove_leftovers(root / "none", lambda: ())
    assert not (root / "none").exists()


@pytest.mark.parametrize("state", ["answers", "hangs"])
def test_the_folder_of_a_live_daemon_stays_although_its_record_is_lost(root: Path, tmp_path: Path, state: str) -> None:
    hardware = fake_hardware("l4", tmp_path)
    folder = MpsFolder(path=root / "0123456789ab")
    folder.make()
    environment = {**os.environ, **hardware.environment, **folder.environment}
    daemon = subprocess.Popen([hardware.needed("nvidia-cuda-mps-control"), "-f"], env=environment)
    try:
        until = time.monotonic() + SOON
        while not (folder.pipe / "control").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        if state == "hangs":
            daemon.send_signal(signal.SIGSTOP)
        remove_leftovers(root, lambda: ())
        age(folder, HOUR)
        remove_leftovers(root, lambda: ())
        assert (folder.pipe / "control").exists()
    finally:
        daemon.kill()
        daemon.wait()
    age(folder, HOUR)
    remove_leftovers(root, lambda: ())
    assert not folder.path.exists()


class TestOfClaims:
    @pytest.fixture
    def settings(self, root: Path) -> Settings:
        return Settings(mps_root=root)

    def test_the_folder_of_a_claim_stays_although_its_daemon_was_killed(self, node: Node, root: Path) -> None:
        [prepared] = node.bench.prepare("serve", [node.devices["gpu-0"]], config=config(), within=SOON)
        folder = MpsFolder(path=pipe(prepared).parent)
        assert any(isinstance(known.effect, MakeMpsFolder) for known in node.bench.effects)
        os.kill(int((folder.pipe / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
        age(folder, HOUR)
        remove_leftovers(root, lambda: node.bench.effects)
        assert folder.pipe.is_dir()
        node.bench.unprepare("serve")
        assert not folder.path.exists()
