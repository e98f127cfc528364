"""Memory and hugepages of NUMA nodes, without a cluster."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import dra_kit as dra
import pytest
from dra_kit.testing import BlockingBench, sandbox, unit
from hypothesis import given, settings
from hypothesis.strategies import dictionaries, integers, sampled_from

from cpu_driver.memory import MemoryProvider, driver, open_memory
from cpu_driver.settings import NodeSettings
from tests.machines import PROJECT, Context

MEMORY = PROJECT / "memory"
ATTRIBUTES = [f"resource.kubernetes.io/{name}" for name in ("numaNode", "hugeTLB", "pageSize")]


def published(sysfs: Path) -> Mapping[str, dra.Device]:
    """The devices that the driver publishes of a fake machine, by name."""
    provider = MemoryProvider()
    provider.context = Context(NodeSettings(sysfs=sysfs, kubelet_root=sysfs))  # type: ignore[assignment]
    provider.hardware = open_memory(provider.context)
    [found] = provider.discover()
    return {device.name: device for device in found}


DEVICES = published(MEMORY / "sysfs")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A copy of the files of the fake machine, to be changed."""
    shutil.copytree(MEMORY / "sysfs", tmp_path / "sysfs")
    return tmp_path / "sysfs"


@pytest.fixture
def bench(sysfs: Path) -> Iterator[BlockingBench]:
    with unit(driver, settings=NodeSettings(sysfs=sysfs, kubelet_root=sysfs)) as bench:
        yield bench


def prepare(bench: BlockingBench, claim: str = "claim", **sizes: str) -> list[dra.Prepared]:
    """Prepare a claim for amounts of devices, named as in Python."""
    devices = [DEVICES[name.replace("_", "-")] for name in sizes]
    [size] = set(sizes.values())
    return bench.prepare(claim, devices, requests=list(sizes), capacity={"size": size})


def started(bench: BlockingBench, *devices: str) -> dra.ContainerAdjustment:
    """What a container gets that uses these devices, or all of the pod."""
    adjustment = bench.container_starts(devices=devices or None)
    assert adjustment is not None
    return adjustment


# -- devices


def test_memory_and_hugepages_of_numa_nodes_are_devices() -> None:
    found = {
        name: [device.attributes[key] for key in ATTRIBUTES] + [str(device.to_v1().capacity["size"].value)]
        for name, device in DEVICES.items()
    }
    page = found["memory-0"][2]  # of this machine
    assert found == {
        "memory-0": [0, False, page, "120Gi"],
        "hugepages-2mi-0": [0, True, "2Mi", "8Gi"],
        "memory-1": [1, False, page, "112Gi"],
        "hugepages-1gi-1": [1, True, "1Gi", "8Gi"],
        "hugepages-2mi-1": [1, True, "2Mi", "8Gi"],
    }
    assert all(device.allow_multiple_allocations for device in DEVICES.values())


def test_numa_node_without_memory_is_not_published(sysfs: Path) -> None:
    node = sysfs / "devices/system/node/node1"
    shutil.rmtree(node / "hugepages")
    (node / "meminfo").write_text("Node 1 MemTotal:       0 kB\n", encoding="utf-8")
    assert list(published(sysfs)) == ["memory-0", "hugepages-2mi-0"]


def test_single_hugepage_is_published(sysfs: Path) -> None:
    (sysfs / "devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages").write_text("1\n", encoding="utf-8")
    assert str(published(sysfs)["hugepages-1gi-0"].to_v1().capacity["size"].value) == "1Gi"


def test_memory_of_this_machine_can_be_read() -> None:
    if not Path("/sys/devices/system/node/node0/meminfo").exists():
        pytest.skip("sysfs does not show NUMA nodes here")
    assert "memory-0" in published(Path("/sys"))


def test_kubelet_with_a_static_memory_manager_is_refused(tmp_path: Path) -> None:
    settings = NodeSettings(sysfs=MEMORY / "sysfs", kubelet_root=tmp_path)
    state = tmp_path / "memory_manager_state"
    state.write_text('{"policyName":"None","machineState":{},"checksum":1}', encoding="utf-8")
    with unit(driver, settings=settings):
        pass
    state.write_text('{"policyName":"Static","machineState":{},"checksum":1}', encoding="utf-8")
    with pytest.raises(dra.ConfigurationError, match="set memoryManagerPolicy: None"), unit(driver, settings=settings):
        pass


# -- containers


def test_container_allocates_on_the_numa_node_of_its_claim(bench: BlockingBench) -> None:
    prepare(bench, memory_0="2Gi")
    assert started(bench) == dra.ContainerAdjustment(memory_nodes="0")


def test_container_is_limited_to_the_hugepages_of_its_claims(bench: BlockingBench) -> None:
    prepare(bench, "first", hugepages_2mi_0="6Mi", hugepages_2mi_1="6Mi")
    prepare(bench, "second", hugepages_1gi_1="2Gi")
    limits = {"1GB": 2 << 30, "2MB": 12 << 20}
    assert started(bench) == dra.ContainerAdjustment(memory_nodes="0,1", hugepages=limits)


def test_amount_is_rounded_up_to_whole_pages(bench: BlockingBench) -> None:
    prepare(bench, hugepages_2mi_0="3Mi")
    assert started(bench).hugepages == {"2MB": 4 << 20}


def test_claim_without_an_amount_gets_one_hugepage(bench: BlockingBench) -> None:
    bench.prepare("claim", [DEVICES["hugepages-1gi-1"]])
    assert started(bench).hugepages == {"1GB": 1 << 30}


def test_claim_with_admin_access_limits_nothing(bench: BlockingBench) -> None:
    bench.prepare("admin", [DEVICES["hugepages-2mi-0"]], admin_access=True)
    assert started(bench) == dra.ContainerAdjustment()


def test_variables_describe_the_claim(bench: BlockingBench) -> None:
    first, _ = prepare(bench, memory_0="6Mi", hugepages_2mi_1="6Mi")
    assert first.claim_edits is not None
    assert first.claim_edits.env == {
        "DRAMEMORY_uid-claim_memory": "numanode:0,size:6Mi",
        "DRAMEMORY_uid-claim_hugepages_2Mi": "numanode:1,size:6Mi",
        "DRAMEMORY_uid-claim_NUMANodes": "0,1",
    }


def test_pod_may_use_the_hugepages_of_all_its_claims(bench: BlockingBench, sysfs: Path) -> None:
    prepare(bench, "first", hugepages_2mi_0="4Mi")
    prepare(bench, "second", hugepages_2mi_1="6Mi")
    prepare(bench, "third", memory_0="6Mi")
    folder = sysfs / "fs/cgroup/kubepods/podpod"
    folder.mkdir(parents=True)
    for limit in ("max", "rsvd.max"):  # the kubelet sets both
        (folder / f"hugetlb.2MB.{limit}").write_text("0")
    for _ in range(2):  # containers restart
        started(bench, "hugepages-2mi-0")
        assert {file.name: file.read_text() for file in folder.iterdir()} == {
            "hugetlb.2MB.max": str(10 << 20),
            "hugetlb.2MB.rsvd.max": str(10 << 20),
        }


def test_pod_whose_cgroup_is_not_mounted_does_not_start(bench: BlockingBench, sysfs: Path) -> None:
    prepare(bench, hugepages_2mi_0="4Mi")
    (sysfs / "fs/cgroup").mkdir(parents=True)
    with pytest.raises(dra.TransientError, match=r"pod default/pod gets no hugepages: .* mount the host's cgroup v2"):
        started(bench)


@settings(max_examples=20, deadline=None)
@given(dictionaries(sampled_from(sorted(DEVICES)), integers(1, 4), min_size=1))
def test_container_gets_what_its_claims_have_and_nothing_else(wanted: dict[str, int]) -> None:
    with unit(driver, settings=NodeSettings(sysfs=MEMORY / "sysfs")) as bench:
        for name, size in wanted.items():
            bench.prepare(f"claim-{name}", [DEVICES[name]], capacity={"size": f"{size}Gi"})
        adjustment = started(bench)
    nodes = sorted({str(DEVICES[name].attributes[ATTRIBUTES[0]]) for name in wanted})
    assert adjustment.memory_nodes == ",".join(nodes)
    huge = {name: size << 30 for name, size in wanted.items() if name.startswith("hugepages")}
    assert sum(adjustment.hugepages.values()) == sum(huge.values())
    assert adjustment.hugepages.keys() == {"1GB" if "1gi" in name else "2MB" for name in huge}


# -- the project


def test_demo() -> None:
    with sandbox(str(MEMORY)) as bed, bed.harness("demo", directory=PROJECT) as cluster:
        cluster.apply(PROJECT / "demo" / "memory.yaml")
        assert cluster.wait("memory", phase="Running")
