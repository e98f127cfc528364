"""The driver is killed, replaced or started again while claims have MPS daemons, partitions and GPUs in passthrough.

The test bed fails a test that leaves anything behind: an effect, or a file of the fake GPUs' state.
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from dra_kit.testing import Harness

from gpu_driver.effects.mps.paths import MpsFolder
from tests.mps import HOUR, age, left_by_a_daemon, pid_in, runs

# steps of a claim, whatever its effects are: tried with those of MPS
_ONCE = (
    "CLAIM_FETCHED",
    "AUTHOR_RETURNED",
    "CLAIM_STORED",
    "FILES_WRITTEN",
    "PREPARED",
    "RELEASE_BEGUN",
    "FILES_REMOVED",
    "EFFECT_RELEASED",
    "CLAIM_FORGOTTEN",
)
FOR_EACH_EFFECT = ("EFFECT_INTENDED", "EFFECT_APPLIED", "OUTCOME_STORED", "EFFECT_REVERTED", "EFFECT_FORGOTTEN")


def steps_of_effects(effects: int) -> list[str]:
    """What this driver comes to for each effect of a claim with so many."""
    return [f"{step}:{number}" for step in FOR_EACH_EFFECT for number in range(1, effects + 1)]


def variables(dra: Harness, pod: str, container: str = "main") -> Mapping[str, str]:
    return dra.wait(pod, phase="Running").containers[container].environment


def pipe(dra: Harness) -> Path:
    return Path(variables(dra, "servers", "one")["CUDA_MPS_PIPE_DIRECTORY"])


def pid(dra: Harness) -> int:
    """Of the daemon that a container finds."""
    return pid_in(pipe(dra))


def another(dra: Harness, killed: int) -> bool:
    try:
        return runs(now := pid(dra)) and now != killed
    except (OSError, ValueError):
        return False  # it is not up yet


def test_clients_keep_their_daemon_while_the_driver_is_restarted(dra: Harness) -> None:
    dra.apply("serve.yaml")
    before = pid(dra)
    dra.restart()
    assert pid(dra) == before
    assert runs(before)


@pytest.mark.dra_process
def test_clients_keep_their_daemon_while_the_driver_is_upgraded_and_rolled_back(dra: Harness) -> None:
    dra.apply("serve.yaml")
    before = pid(dra)
    dra.upgrade("./src/gpu_driver/driver.py")  # comes up beside this one, and takes over
    assert pid(dra) == before
    assert runs(before)
    dra.rollback()
    assert pid(dra) == before
    assert runs(before)
    dra.delete("Pod/servers")
    dra.wait_for(lambda: not runs(before))


@pytest.mark.dra_process
def test_a_daemon_killed_with_the_driver_is_restarted(dra: Harness) -> None:
    dra.apply("serve.yaml")
    killed = pid(dra)
    dra.kill(restart=False)
    os.kill(killed, signal.SIGKILL)
    dra.start()
    dra.wait_for(lambda: another(dra, killed))


@pytest.mark.dra_process
def test_a_daemon_survives_a_killed_driver_and_stops_with_its_claim(dra: Harness) -> None:
    dra.apply("serve.yaml")
    before = pid(dra)
    dra.kill()
    assert runs(before)
    dra.delete("Pod/servers")
    dra.wait_for(lambda: not runs(before))


def test_a_folder_without_a_record_is_removed_and_that_of_a_claim_stays(dra: Harness) -> None:
    dra.apply("serve.yaml")
    folder = pipe(dra).parent
    age(MpsFolder(path=folder), HOUR)
    left = left_by_a_daemon(folder.parent)
    dra.restart()
    dra.wait_for(lambda: not left.path.exists())
    assert runs(pid(dra))


@pytest.mark.dra_process
def test_after_a_reboot_the_daemon_has_its_limits_again(dra: Harness) -> None:
    dra.apply("serve.yaml")
    before = pid(dra)
    dra.reboot(lost=["fake_folder"])
    dra.wait_for(lambda: another(dra, before))
    log = (pipe(dra).parent / "log/double.log").read_text()
    assert "set_default_active_thread_percentage 25" in log


@pytest.mark.dra_process
def test_after_a_reboot_a_partition_is_created_again(dra: Harness) -> None:
    dra.apply("train.yaml")
    assert "GPU_0_MIG_3G40GB_9_0_UUID" in variables(dra, "train")
    dra.reboot(lost=["fake_folder"])
    dra.wait_for(lambda: "GPU_0_MIG_3G40GB_9_0_UUID" in variables(dra, "train"))


@pytest.mark.dra_killed(*_ONCE, *steps_of_effects(3))
def test_mps_recovers_from_a_kill_at_any_step_without_leftovers(dra: Harness) -> None:
    """Compute mode, folder, daemon."""
    dra.apply("serve.yaml")
    dra.wait("servers", phase="Running")
    dra.delete("Pod/servers")


@pytest.mark.dra_killed(*steps_of_effects(3))
def test_a_partition_recovers_from_a_kill_at_any_step_of_its_effects(dra: Harness) -> None:
    """MIG mode, GPU instance, compute instance."""
    dra.apply("train.yaml")
    dra.wait("train", phase="Running")
    dra.delete("Pod/train")


@pytest.mark.dra_killed(*(f"{step}:{number}" for step in FOR_EACH_EFFECT for number in (3, 4)))
def test_shares_of_a_partition_recover_from_a_kill_without_leftovers(dra: Harness) -> None:
    """Two compute instances, behind MIG mode and GPU instance."""
    dra.apply("../stories/11-mig-shared-memory/two-shares.yaml")
    dra.wait("both", phase="Running")
    dra.delete("Pod/both")


@pytest.mark.dra_killed(*steps_of_effects(2))
def test_a_driver_change_recovers_from_a_kill_at_any_step_of_its_effects(dra: Harness) -> None:
    """MIG mode, driver of the kernel."""
    dra.apply("../stories/06-vfio-swap/machine.yaml")
    dra.wait("machine", phase="Running")
    dra.delete("Pod/machine")
