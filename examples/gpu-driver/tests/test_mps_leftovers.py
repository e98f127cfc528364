"""MPS folders whose records were lost are removed, and those of effects in force and of live daemons never are."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_driver.effects.mps.control import PROGRAM
from gpu_driver.effects.mps.leftovers import remove_leftovers
from gpu_driver.effects.mps.paths import MakeMpsFolder, MpsFolder
from gpu_driver.nvml.fake.hardware import fake_hardware
from gpu_driver.settings import Settings
from tests.conftest import Node
from tests.mps import HOUR, SOON, age, left_by_a_daemon, mps_root, pid, pipe, prepare


@pytest.fixture
def root() -> Iterator[Path]:
    with mps_root() as made:
        yield made


def test_an_unused_folder_is_removed(root: Path) -> None:
    left = left_by_a_daemon(root)
    remove_leftovers(root, lambda: ())
    assert not left.path.exists()


def test_a_recently_changed_folder_stays(root: Path) -> None:
    left = left_by_a_daemon(root, seconds_ago=60)
    remove_leftovers(root, lambda: ())
    assert left.path.exists()


def test_a_folder_of_another_driver_stays(root: Path) -> None:
    other = left_by_a_daemon(root, "of-another-driver")
    remove_leftovers(root, lambda: ())
    assert other.path.exists()


def test_a_missing_root_folder_is_ignored(root: Path) -> None:
    remove_leftovers(root / "none", lambda: ())
    assert not (root / "none").exists()


@pytest.mark.parametrize("state", ["answers", "hangs"])
def test_the_folder_of_a_running_daemon_without_a_record_stays(root: Path, tmp_path: Path, state: str) -> None:
    hardware = fake_hardware("l4", tmp_path)
    folder = MpsFolder(path=root / "0123456789ab")
    folder.make()
    environment = {**os.environ, **hardware.environment, **folder.environment}
    daemon = subprocess.Popen([hardware.needed(PROGRAM), "-f"], env=environment)
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
        prepared = prepare(node)
        folder = MpsFolder(path=pipe(prepared).parent)
        assert any(isinstance(known.effect, MakeMpsFolder) for known in node.bench.effects)
        os.kill(pid(prepared), signal.SIGKILL)
        age(folder, HOUR)
        remove_leftovers(root, lambda: node.bench.effects)
        assert folder.pipe.is_dir()
        node.bench.unprepare("serve")
        assert not folder.path.exists()
