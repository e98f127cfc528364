"""What is done to the GPUs while the pods of a story run: looked at in the fake's own state."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_kit.testing import Harness, sandbox

from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.profile import load
from gpu_driver.nvml.fake.state import GpuState

PROJECT = Path(__file__).parents[1]


class FakeNode:
    """A cluster with one node of GPUs, and those GPUs."""

    def __init__(self, dra: Harness, profile: str, folder: Path) -> None:
        self.dra = dra
        self._nvml = FakeNvml(load(profile, "node-1"), folder)
        self._uuids = [gpu.uuid for gpu in self._nvml.profile.gpus]

    def gpu(self, index: int) -> GpuState:
        """What has been done to a GPU."""
        return self._nvml.state.read().gpus[self._uuids[index]]

    def partitions(self, index: int) -> list[tuple[int, int, list[int]]]:
        """Profile, first slice and the sizes of the compute instances of each GPU instance."""
        made = self.gpu(index).instances
        return sorted(
            (item.profile_id, item.placement.start, sorted(part.placement.size for part in item.compute_instances))
            for item in made
        )


@contextmanager
def fake_node(story: str, profile: str, folder: Path) -> Iterator[FakeNode]:
    settings = {"fake_gpus": profile, "fake_folder": str(folder), "dynamic_mig": True, "shared_mig": True}
    with (
        sandbox(str(PROJECT), settings=settings, timeout=120) as bed,
        bed.harness(story, directory=PROJECT / "stories" / story) as dra,
    ):
        yield FakeNode(dra, profile, folder)


def test_the_time_slice_is_set_only_for_its_request(tmp_path: Path) -> None:
    with fake_node("04-time-slicing", "a100-40gb", tmp_path) as node:
        node.dra.apply("pod.yaml")
        node.dra.wait("jobs")
        assert [node.gpu(index).time_slice for index in range(2)] == [3, 0]
        node.dra.delete("Pod/jobs")
        node.dra.wait_for(lambda: node.gpu(0).time_slice == 0)


def test_partitions_exist_while_their_pods_run(tmp_path: Path) -> None:
    with fake_node("10-dynamic-mig", "h100", tmp_path) as node:
        assert not node.gpu(0).mig_current
        node.dra.apply("partitions.yaml")
        node.dra.wait("pair")
        assert node.gpu(0).mig_current
        assert node.partitions(0) == [(9, 0, [3]), (19, 4, [1])]
        assert not node.gpu(1).mig_current
        node.dra.delete("Pod/pair")
        node.dra.wait_for(lambda: not node.gpu(0).mig_current)
        assert node.partitions(0) == []


def test_shares_of_a_partition_have_separate_compute_slices(tmp_path: Path) -> None:
    with fake_node("11-mig-shared-memory", "h100", tmp_path) as node:
        node.dra.apply("shares.yaml")
        node.dra.wait("reader")
        node.dra.wait("trainer")
        [(profile, start, sizes)] = node.partitions(0)
        assert (profile, start) == (5, 0)
        assert len(sizes) == 2
        assert sum(sizes) <= 4
        node.dra.delete("Pod/reader")
        node.dra.wait_for(lambda: [len(parts) for _, _, parts in node.partitions(0)] == [1])
