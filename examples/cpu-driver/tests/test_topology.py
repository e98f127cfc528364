"""Reading sysfs and fake machines, and the devices that are published of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from dra_kit import ConfigurationError, Device
from dra_kit.testing import unit

from cpu_driver.driver import driver
from cpu_driver.machine import Machine
from cpu_driver.provider import CAPACITY
from cpu_driver.settings import Settings
from cpu_driver.topology import Topology, format_cpus, parse_cpus, read_profile, read_sysfs
from tests.machines import PROFILES, devices, profile

NUMA = "resource.kubernetes.io/numaNode"


def write_sysfs(root: Path, topology: Topology) -> None:
    """Write the files of sysfs that the driver reads."""

    def put(path: str, text: object) -> None:
        (root / "devices" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "devices" / path).write_text(f"{text}\n", encoding="utf-8")

    put("system/cpu/online", format_cpus(topology.online))
    for number, cpu in topology.by_number.items():
        [core] = [core for core in topology.cores if number in core]
        put(f"system/cpu/cpu{number}/topology/thread_siblings_list", format_cpus(core))
        put(f"system/cpu/cpu{number}/topology/core_id", cpu.core_id)
        put(f"system/cpu/cpu{number}/topology/physical_package_id", cpu.socket)
        put(f"system/cpu/cpu{number}/cache/index3/id", cpu.cache)
    for group in topology.groups(lambda cpu: cpu.numa_node):
        put(f"system/node/node{topology.by_number[min(group)].numa_node}/cpulist", format_cpus(group))
    for unit_name, core_type in (("cpu_core", "p-core"), ("cpu_atom", "e-core")):
        cpus = [number for number, cpu in topology.by_number.items() if cpu.core_type == core_type]
        if cpus:
            put(f"{unit_name}/cpus", format_cpus(cpus))


@pytest.mark.parametrize("name", PROFILES)
def test_sysfs_of_a_machine_is_read(name: str, tmp_path: Path) -> None:
    expected = read_profile(profile(name).read_text(encoding="utf-8"))
    write_sysfs(tmp_path, expected)
    assert read_sysfs(tmp_path).by_number == expected.by_number


def test_machine_without_numa_and_l3_cache_is_read(tmp_path: Path) -> None:
    write_sysfs(tmp_path, read_profile("cores: 2"))
    shutil.rmtree(tmp_path / "devices/system/node")
    shutil.rmtree(tmp_path / "devices/system/cpu/cpu0/cache")
    cpus = read_sysfs(tmp_path).by_number
    assert [(cpu.numa_node, cpu.cache) for cpu in cpus.values()] == [(0, -1), (0, 0)]


def test_this_machine_can_be_read() -> None:
    if not Path("/sys/devices/system/cpu/cpu0/topology").exists():
        pytest.skip("sysfs does not show the topology here")
    assert read_sysfs(Path("/sys")).online


@pytest.mark.parametrize("text", ["0-3,8", "", "5", "0,2,4-7"])
def test_lists_of_cpus_are_read_and_written(text: str) -> None:
    assert format_cpus(parse_cpus(text)) == text


@pytest.mark.parametrize("text", ["a", "3-1", "1;2", "-1", "1-"])
def test_invalid_list_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a list of CPUs"):
        Settings(reserved_cpus=text)


def named(found: Iterable[Device]) -> dict[str, Device]:
    return {device.name: device for device in found}


def test_numa_nodes_are_devices_without_reserved_cpus() -> None:
    found = named(devices(Settings(sysfs=profile("two-sockets"), reserved_cpus="0,32")))
    assert list(found) == ["cpudevnuma000", "cpudevnuma001"]
    first = found["cpudevnuma000"]
    assert first.attributes == {NUMA: 0, "socketID": 0, "smtEnabled": True, "numCPUs": 30}
    assert str(first.to_v1().capacity[CAPACITY].value) == "30"
    assert first.allow_multiple_allocations


def test_sockets_are_devices() -> None:
    found = named(devices(Settings(sysfs=profile("smt-off"), group_by="socket")))
    assert found["cpudevsocket001"].attributes == {"socketID": 1, "smtEnabled": False, "numCPUs": 8}


def test_group_of_one_cpu_is_published() -> None:
    [group] = devices(Settings(sysfs=profile("two-cpus"), reserved_cpus="0"))
    assert group.attributes["numCPUs"] == 1


def test_group_of_reserved_cpus_alone_is_not_published() -> None:
    assert list(named(devices(Settings(sysfs=profile("smt-off"), reserved_cpus="0-7")))) == ["cpudevnuma001"]


def test_single_cpus_are_in_the_order_of_cores() -> None:
    found = devices(Settings(sysfs=profile("offline"), mode="individual", reserved_cpus="0"))
    ids = [device.attributes["cpuID"] for device in found]
    # CPU 8 is the sibling of the reserved CPU 0; 3, 9 and 11 are offline
    assert ids == [1, 2, 10, 4, 12, 5, 13, 6, 14, 7, 15, 8]
    assert [device.name for device in found][:2] == ["cpudev000", "cpudev001"]


def test_core_types_of_a_hybrid_processor_are_published() -> None:
    found = devices(Settings(sysfs=profile("hybrid"), mode="individual"))
    kinds = {device.attributes["cpuID"]: device.attributes["coreType"] for device in found}
    assert (kinds[0], kinds[16], kinds[8], len(kinds)) == ("p-core", "p-core", "e-core", 24)


def test_claims_count_against_the_node_if_it_is_set() -> None:
    [group] = devices(Settings(sysfs=profile("two-cpus"), node_allocatable=True))
    mapping = group.node_allocatable_resources["cpu"].mapping
    assert mapping is not None
    assert mapping.capacity_key == CAPACITY


def test_kubelet_with_a_static_cpu_manager_is_refused(tmp_path: Path) -> None:
    settings = Settings(sysfs=profile("two-cpus"), kubelet_root=tmp_path)
    state = tmp_path / "cpu_manager_state"
    state.write_text('{"policyName":"none","defaultCpuSet":"","checksum":1353318690}', encoding="utf-8")
    with unit(driver, settings=settings):
        pass
    state.write_text('{"policyName":"static","defaultCpuSet":"0-1","checksum":1}', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="set cpuManagerPolicy: none"), unit(driver, settings=settings):
        pass
    state.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="set --kubelet-root"), unit(driver, settings=settings):
        pass


def test_topology_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    settings = Settings(sysfs=tmp_path, kubelet_root=tmp_path)
    with pytest.raises(ConfigurationError, match="set --sysfs"), unit(driver, settings=settings):
        pass


def test_reserved_cpus_that_do_not_exist_are_ignored() -> None:
    machine = Machine(read_profile("cores: 2"), Settings(reserved_cpus="1,99"))
    assert (machine.reserved, machine.available) == (frozenset({1}), frozenset({0}))
