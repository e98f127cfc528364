"""MPS control daemons in pods of their own, in the sandbox: they outlive the driver, and go with their claim."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dra_kit.testing import Harness, TestBed, sandbox

from gpu_driver.effects.mps import serve
from gpu_driver.effects.mps.paths import MpsFolder
from tests.mps import mps_root, runs
from tests.test_lives import FOR_EACH_EFFECT, pid


@pytest.fixture(scope="module")
def dra_bed() -> Iterator[TestBed]:
    with mps_root() as root:
        settings = {"mps_daemon": "pod", "mps_image": "gpu-driver:1", "mps_namespace": "default", "mps_root": str(root)}
        with sandbox(".", settings=settings) as bed:
            yield bed


def is_up(dra: Harness) -> bool:
    """The sandbox asks no probes: a pod is ready before its daemon answers."""
    try:
        return runs(pid(dra)) and "percentage 25" in control_log(dra)
    except (OSError, ValueError):
        return False


def control_log(dra: Harness) -> str:
    pipe = dra.wait("servers").containers["one"].environment["CUDA_MPS_PIPE_DIRECTORY"]
    return Path(pipe).with_name("log").joinpath("double.log").read_text()


@pytest.mark.dra_process
def test_clients_keep_the_daemon_pod_during_upgrade_and_kill_of_the_driver(dra: Harness) -> None:
    dra.apply("serve.yaml")
    dra.wait_for(lambda: is_up(dra))
    before = pid(dra)
    dra.upgrade(".")
    dra.kill()
    assert pid(dra) == before
    assert runs(before)
    dra.delete("Pod/servers")
    dra.wait_for(lambda: not runs(before))


@pytest.mark.dra_process
def test_after_a_reboot_the_daemon_pod_has_its_limits_again(dra: Harness) -> None:
    dra.apply("serve.yaml")
    dra.wait_for(lambda: is_up(dra))
    before = pid(dra)
    dra.reboot(lost=["fake_folder", "mps_root"])  # on a node the sockets lie below /run, which is gone then
    dra.wait_for(lambda: is_up(dra) and pid(dra) != before)
    dra.delete("Pod/servers")


@pytest.mark.dra_process
def test_a_daemon_killed_with_the_driver_is_restarted_in_its_pod(dra: Harness) -> None:
    dra.apply("serve.yaml")
    dra.wait_for(lambda: is_up(dra))
    before = pid(dra)
    dra.kill(restart=False)
    os.kill(before, signal.SIGKILL)
    dra.start()
    dra.wait_for(lambda: is_up(dra) and pid(dra) != before)
    dra.delete("Pod/servers")


@pytest.mark.dra_killed(*(f"{step}:3" for step in FOR_EACH_EFFECT))
def test_a_daemon_pod_recovers_from_a_kill_at_each_step(dra: Harness) -> None:
    """Compute mode and folder are there before it."""
    dra.apply("serve.yaml")
    dra.wait_for(lambda: is_up(dra))
    dra.delete("Pod/servers")


def test_the_program_of_the_pod_reports_a_missing_daemon(tmp_path: Path) -> None:
    folder = MpsFolder(path=tmp_path / "mps")
    folder.make()
    done = subprocess.run(
        [sys.executable, "-m", serve.__name__],
        env={"PYTHONPATH": os.pathsep.join(sys.path), **folder.environment, "MPS_DRIVER_ROOT": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "nvidia-cuda-mps-control cannot be run: No such file or directory; set driver_root of the driver's settings "
        "to where NVIDIA's driver has nvidia-cuda-mps-control\n"
    )
