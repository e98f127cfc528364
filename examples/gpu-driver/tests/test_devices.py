"""Which devices are published: what the settings offer of what is there, whatever state it is in."""

import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import dra_kit as dra
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpu_driver.devices.attributes import Location, Versions, fp64_cores
from gpu_driver.devices.discovered import Discovered, DiscoveredGpu
from gpu_driver.devices.gpu import Gpu
from gpu_driver.devices.inventory import inventory
from gpu_driver.devices.last_seen import LastSeen
from gpu_driver.devices.mig import Mig
from gpu_driver.devices.provider import find
from gpu_driver.nvml.backend import ComputeInstance, GpuInstance, Placement
from gpu_driver.nvml.errors import NvmlReturn
from gpu_driver.nvml.fake import injection
from gpu_driver.nvml.fake.fake import facts, profile_of
from gpu_driver.nvml.fake.profile import Fault, load
from gpu_driver.nvml.fake.profile import names as profiles
from gpu_driver.settings import Settings
from tests.conftest import Node

VERSIONS = Versions("580.65.06", (13, 0))
ALL = Settings(dynamic_mig=True, shared_mig=True, passthrough=True)


def divisible(
    profile: str, minor: int = 0, *, enabled: bool = False, foreign: Sequence[GpuInstance] = ()
) -> DiscoveredGpu:
    """A GPU of a profile as ``find`` returns it."""
    known = load(profile)
    gpu = known.gpus[0].model_copy(update={"minor": minor, "pci": f"0000:{minor:02x}:00.0", "uuid": f"GPU-{minor}"})
    kind = known.type_of(gpu)
    assert kind.mig is not None
    mig = Mig(enabled, kind.mig.toggle == "live", tuple(map(profile_of, kind.mig.gi)), tuple(foreign))
    return DiscoveredGpu(facts(gpu, kind), Location("pci0000:00", 0), mig)


def published(found: Sequence[DiscoveredGpu], settings: Settings) -> dict[str, Gpu]:
    [pool] = inventory(Discovered(VERSIONS, found), settings).pools
    names = [device.name for device in pool.devices]
    assert len(set(names)) == len(names)
    return {device.name: device for device in pool.devices}


def instance(number: int, profile: int, start: int, size: int, compute: Sequence[tuple[int, int]]) -> GpuInstance:
    """A GPU instance; ``compute`` has start and size of the compute instances in it."""
    made = [ComputeInstance(i, 0, Placement(*place), f"MIG-{number}-{i}") for i, place in enumerate(compute)]
    return GpuInstance(number, profile, Placement(start, size), tuple(made))


def test_compute_instances_of_one_gpu_instance_are_separate_devices() -> None:
    gpu = divisible("h100", enabled=True, foreign=[instance(1, 9, 4, 4, [(1, 2), (0, 1)])])
    devices = published([gpu], Settings(monitor=False))
    assert list(devices) == ["gpu-0-mig-3g40gb-9-4-c0", "gpu-0-mig-3g40gb-9-4-c1"]
    assert [device.attributes["profile"] for device in devices.values()] == ["1c.3g.40gb", "2c.3g.40gb"]
    assert [device.attributes["uuid"] for device in devices.values()] == ["MIG-1-1", "MIG-1-0"]
    assert "memorySlice7" in devices["gpu-0-mig-3g40gb-9-4-c0"].capacity


def test_partitions_that_exist_are_offered_before_those_that_can_be_made() -> None:
    gpu = divisible("h100", enabled=True, foreign=[instance(1, 19, 6, 1, [(0, 1)])])
    names = list(published([gpu], Settings(dynamic_mig=True)))
    assert names[:2] == ["gpu-0-mig-1g10gb-19-6", "gpu-0-mig-1g10gb-19-0"]


def test_a_partition_that_was_destroyed_and_made_again_is_another_device() -> None:
    identities = []
    for number in (1, 2):
        gpu = divisible("h100", enabled=True, foreign=[instance(number, 9, 4, 4, [(0, 3)])])
        identities.append(published([gpu], Settings())["gpu-0-mig-3g40gb-9-4"].identity())
    assert identities[0] != identities[1]


def test_another_driver_version_does_not_change_the_identity() -> None:
    gpu = divisible("h100")
    [old], [new] = (
        inventory(Discovered(Versions(version, (13, 0)), [gpu]), Settings(monitor=False)).pools[0].devices
        for version in ("580.65.06", "590.1")
    )
    assert old.identity() == new.identity()


@pytest.mark.parametrize(("dynamic", "offered"), [(False, []), (True, ["gpu-0"])])
def test_a_gpu_in_mig_mode_is_whole_only_where_the_driver_may_switch_the_mode(
    dynamic: bool, offered: list[str]
) -> None:
    devices = published([divisible("h100", enabled=True)], Settings(monitor=False, dynamic_mig=dynamic))
    assert [name for name, device in devices.items() if device.kind == "gpu"] == offered


def test_the_place_of_a_foreign_partition_is_not_offered() -> None:
    gpu = divisible("h100", enabled=True, foreign=[instance(1, 9, 4, 4, [(0, 3)])])
    [pool] = inventory(Discovered(VERSIONS, [gpu]), Settings(dynamic_mig=True)).pools
    [counters] = pool.counter_sets
    left = counters.counters
    assert left["multiprocessors"] == dra.Quantity(132 - 60)
    assert [left[f"memory-slice-{index}"] for index in range(8)] == [dra.Quantity(int(index < 4)) for index in range(8)]
    for device in pool.devices:
        for consumed in device.consumes_counters:
            for name, amount in consumed.counters.items():
                assert amount.as_decimal <= left[name].as_decimal, device.name


def test_a_gpu_without_a_figure_for_its_memory_is_published_and_shared_without_limit_only() -> None:
    gpu = divisible("h100")
    unified = replace(gpu, facts=replace(gpu.facts, memory_bytes=None), mig=None)
    assert "memory" not in published([unified], Settings())["gpu-0"].capacity
    assert published([unified], Settings(shared_memory="unlimited"))["gpu-0"].allow_multiple_allocations
    assert not published([unified], Settings(shared_memory="memory"))["gpu-0"].allow_multiple_allocations


@pytest.mark.filterwarnings("error::dra_kit.WholeCapacityWarning")
@pytest.mark.parametrize("mode", ["memory", "unlimited"])
def test_shares_obey_the_rules_of_the_api(mode: str) -> None:
    settings = Settings.model_validate({"shared_memory": mode})
    assert published([divisible("h100")], settings)["gpu-0"].allow_multiple_allocations


def test_a_gpu_for_virtual_machines_has_the_names_and_attributes_of_nvidias_driver(
    node: Node, last_seen: LastSeen
) -> None:
    device = published(find(node.hardware, (), last_seen).gpus, Settings(passthrough=True))["gpu-vfio-0"]
    assert device.attributes["type"] == "vfio"
    # by its PCI address in the name space of DNS, since NVML does not tell while a machine has it
    assert device.attributes["uuid"] == str(uuid.uuid5(uuid.NAMESPACE_DNS, "0000:07:00.0"))
    assert (device.attributes["vendorID"], device.attributes["deviceID"]) == ("0x10de", "0x2330")
    assert device.attributes["iommuFDEnabled"] is True
    assert {name: offer.value for name, offer in device.capacity.items()} == {
        "addressableMemory": dra.Quantity("128Gi")
    }


@pytest.mark.parametrize("text", ["", "no numbers here"])
def test_a_gpu_whose_regions_are_unknown_has_no_addressable_memory(node: Node, last_seen: LastSeen, text: str) -> None:
    (node.hardware.host / "sys/bus/pci/devices/0000:07:00.0/resource").write_text(text)
    gpus = find(node.hardware, (), last_seen).gpus
    assert published(gpus, Settings(passthrough=True))["gpu-vfio-0"].capacity == {}


@pytest.mark.parametrize("profile", profiles())
def test_double_precision_cores_are_those_of_the_architecture(profile: str) -> None:
    for kind in load(profile).gpu_types.values():
        gpu = load(profile).gpus[0]
        assert fp64_cores(facts(gpu, kind), kind.sms) == kind.sms * kind.fp64_per_sm, kind.name


def test_a_gpu_that_can_be_cut_has_the_engines_of_its_largest_partition() -> None:
    capacity = published([divisible("h100")], Settings(dynamic_mig=True))["gpu-0"].capacity
    assert (capacity["copyEngines"].value, capacity["decoders"].value) == (dra.Quantity(8), dra.Quantity(7))
    assert "copyEngines" not in published([divisible("h100")], Settings())["gpu-0"].capacity


def test_attributes_missing_on_the_host_are_omitted() -> None:
    known = published([replace(divisible("h100"), location=Location())], Settings())["gpu-0"].attributes
    assert "resource.kubernetes.io/pcieRoot" not in known
    assert "resource.kubernetes.io/numaNode" not in known
    assert known["resource.kubernetes.io/pciBusID"] == "0000:00:00.0"


@hypothesis_settings(max_examples=20)
@given(
    st.lists(st.integers(0, 63), min_size=1, max_size=4, unique=True),
    st.sampled_from(["h100", "a100-40gb", "gb200"]),
    st.booleans(),
    st.booleans(),
)
def test_names_are_unique_valid_and_in_one_order(minors: list[int], profile: str, enabled: bool, dynamic: bool) -> None:
    settings = ALL.model_copy(update={"dynamic_mig": dynamic})
    gpus = [divisible(profile, minor, enabled=enabled) for minor in minors]
    names = list(published(gpus, settings))
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in names)
    assert names == list(published(gpus, settings))


def test_sixteen_fully_divided_gpus_fit_into_one_inventory() -> None:
    [pool] = inventory(Discovered(VERSIONS, [divisible("h100", minor) for minor in range(16)]), ALL).pools
    assert len(pool.counter_sets) == 16
    assert len([device for device in pool.devices if device.kind == "monitor"]) == 16  # `All` allocates 32 at most


@pytest.fixture
def last_seen(tmp_path: Path) -> LastSeen:
    return LastSeen(tmp_path / "gpus.json")


def minors(node: Node, last_seen: LastSeen) -> list[int]:
    return [gpu.facts.minor for gpu in find(node.hardware, (), last_seen).gpus]


def test_a_lost_gpu_stays_published_and_so_does_the_other(node: Node, last_seen: LastSeen, tmp_path: Path) -> None:
    before = find(node.hardware, (), last_seen)
    injection.lose(node.nvml.state, node.first)
    assert find(node.hardware, (), last_seen) == before
    # the next process knows it, too
    assert minors(node, LastSeen(tmp_path / "gpus.json")) == [0, 1]


def test_a_gpu_removed_from_the_host_is_forgotten(node: Node, last_seen: LastSeen) -> None:
    minors(node, last_seen)
    injection.lose(node.nvml.state, node.first)
    pci = node.nvml.profile.gpus[0].pci
    (node.hardware.host / "sys/bus/pci/devices" / pci).unlink()
    assert minors(node, last_seen) == [1]


def test_a_gpu_that_answers_partially_hides_no_other_gpu(node: Node, last_seen: LastSeen, tmp_path: Path) -> None:
    fault = Fault(call="nvmlDeviceGetGpuInstances", gpu=0, times=None, error=NvmlReturn.UNKNOWN.name)
    node.fail(fault)
    assert minors(node, last_seen) == [1]  # no known state: it is unknown whether it is divided
    node.fail()
    before = find(node.hardware, (), last_seen)
    node.fail(fault)
    assert find(node.hardware, (), last_seen) == before


def test_an_unreadable_last_seen_file_is_replaced(node: Node, tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text('[{"facts": 3}]')
    assert minors(node, LastSeen(tmp_path / "gpus.json")) == [0, 1]


def test_a_gpu_with_the_same_minor_number_replaces_a_remembered_gpu(last_seen: LastSeen) -> None:
    last_seen.complete([divisible("h100", 0)], lambda _: True)
    other = replace(divisible("h100", 1), facts=replace(divisible("h100", 1).facts, minor=0))
    assert last_seen.complete([other], lambda _: True) == [other]


def test_the_last_seen_file_is_synced_before_it_is_replaced(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))

    find(node.hardware, (), LastSeen(tmp_path / "gpus.json"))

    assert synced == [str(tmp_path / "gpus.new")]
    assert (tmp_path / "gpus.json").stat().st_size
