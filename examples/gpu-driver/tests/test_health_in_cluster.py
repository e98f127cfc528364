"""What becomes of a GPU's illness in a cluster: a taint for the scheduler, health for the pod, and the end of both."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from dra_kit.testing import Harness, sandbox

from gpu_driver.nvml.backend import RecoveryAction
from gpu_driver.nvml.fake import injection
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.profile import load

PROJECT = Path(__file__).parents[1]
POD = "01-controlled-sharing"


@dataclass
class Cluster:
    """One with a node of fake GPUs, which a test breaks from outside."""

    dra: Harness
    nvml: FakeNvml

    @property
    def first(self) -> str:
        return self.nvml.profile.gpus[0].uuid

    def taints(self, device: str) -> set[tuple[str, str, str]]:
        """Key, value and effect."""
        found = self.dra.devices()[device].taints
        return {(taint["key"], taint.get("value", ""), taint["effect"]) for taint in found}

    def health(self) -> tuple[str, ...]:
        """Of the device of the pod, as the kubelet tells it."""
        return self.dra.wait("server", phase="Running").containers["serve"].health["gpu"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    settings = {"fake_gpus": "l4", "fake_folder": str(tmp_path), "passthrough": False}
    with (
        sandbox(str(PROJECT), settings=settings, timeout=120) as bed,
        bed.harness("health", directory=PROJECT / "stories" / POD) as dra,
    ):
        dra.apply("claim.yaml", "server.yaml")
        dra.wait("server", phase="Running")
        nvml = FakeNvml(load("l4", "node-1"), tmp_path)
        yield Cluster(dra, nvml)
        with nvml.state.changing() as node:  # what has happened is remembered, and is nothing that the driver left
            node.events.clear()


def test_a_fatal_xid_taints_the_gpu_until_it_recovers(cluster: Cluster) -> None:
    state = cluster.nvml.state
    injection.want_recovery(state, cluster.first, RecoveryAction.GPU_RESET)
    injection.xid(state, cluster.first, 79)
    cluster.dra.wait_for(
        lambda: (
            {
                ("gpu.nvidia.com/xid", "79", "NoSchedule"),
                ("gpu.nvidia.com/recovery", "gpu_reset", "NoSchedule"),
            }
            == cluster.taints("gpu-0")
        )
    )
    assert cluster.taints("gpu-1") == set()
    cluster.dra.wait_for(lambda: cluster.health() == ("Unhealthy",))
    cluster.dra.restart()  # a taint outlives the driver
    assert ("gpu.nvidia.com/xid", "79", "NoSchedule") in cluster.taints("gpu-0")
    injection.want_recovery(state, cluster.first, RecoveryAction.NONE)
    cluster.dra.wait_for(lambda: not cluster.taints("gpu-0"))
    cluster.dra.wait_for(lambda: cluster.health() == ("Healthy",))


def test_a_gpu_lost_during_use_stays_published(cluster: Cluster) -> None:
    injection.lose(cluster.nvml.state, cluster.first)
    cluster.dra.wait_for(lambda: ("gpu.nvidia.com/gpu-lost", "", "NoSchedule") in cluster.taints("gpu-0"))
    cluster.dra.wait_for(lambda: cluster.health() == ("Unhealthy",))
    injection.find(cluster.nvml.state, cluster.first)
    cluster.dra.wait_for(lambda: not cluster.taints("gpu-0"))
