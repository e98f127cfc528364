"""The driver is killed, replaced or started again while claims have MPS daemons and GPUs in passthrough."""

import os
import signal
from pathlib import Path

import pytest
from dra_kit.testing import Harness

MPS = "../stories/05-mps/pod.yaml"
MACHINE = "../stories/06-vfio-swap/machine.yaml"


def pid(dra: Harness) -> int:
    """Of the daemon that a container was told of."""
    pipe = dra.wait("servers").containers["one"].environment["CUDA_MPS_PIPE_DIRECTORY"]
    return int(Path(pipe, "nvidia-cuda-mps-control.pid").read_text())


def runs(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def another(dra: Harness, killed: int) -> bool:
    try:
        return runs(now := pid(dra)) and now != killed
    except (OSError, ValueError):
        return False  # it is not up yet


def test_clients_keep_their_daemon_while_the_driver_is_updated(dra: Harness) -> None:
    dra.apply(MPS)
    before = pid(dra)
    dra.restart()
    assert pid(dra) == before
    assert runs(before)


@pytest.mark.dra_process
def test_a_daemon_that_was_killed_with_the_driver_comes_back(dra: Harness) -> None:
    dra.apply(MPS)
    killed = pid(dra)
    dra.kill(restart=False)
    os.kill(killed, signal.SIGKILL)
    dra.start()
    dra.wait_for(lambda: another(dra, killed))


@pytest.mark.dra_process
def test_a_daemon_outlives_a_driver_that_is_killed_and_ends_with_its_claim(dra: Harness) -> None:
    dra.apply(MPS)
    before = pid(dra)
    dra.kill()
    assert runs(before)
    dra.delete("Pod/servers")
    dra.wait_for(lambda: not runs(before))


@pytest.mark.dra_killed
def test_killed_at_any_step_mps_comes_up_and_leaves_nothing(dra: Harness) -> None:
    dra.apply(MPS)
    dra.wait("servers")
    dra.delete("Pod/servers")


@pytest.mark.dra_killed
def test_killed_at_any_step_a_gpu_changes_hands_and_comes_back(dra: Harness) -> None:
    dra.apply(MACHINE)
    dra.wait("machine")
    dra.delete("Pod/machine")
