"""What only the fake has: profiles, a state that outlives processes and not a reboot, and faults on order."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_driver.nvml.backend import NvmlBackend, Placement
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.nvml.fake import breaking, mig_rules
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.profile import Fault, load, names

TABLES = {
    name: table for name in ("h100", "a100-40gb") for kind in load(name).gpu_types.values() if (table := kind.mig)
}


@pytest.fixture
def hopper(tmp_path: Path) -> FakeNvml:
    return FakeNvml(load("h100"), tmp_path)


def first(nvml: NvmlBackend) -> str:
    return nvml.gpus()[0].uuid


def profile(nvml: NvmlBackend, uuid: str, name: str) -> int:
    return next(item.id for item in nvml.gpu_instance_profiles(uuid) if item.name == name)


def make(nvml: NvmlBackend, uuid: str, name: str, start: int) -> int:
    size = next(item.placements[0].size for item in nvml.gpu_instance_profiles(uuid) if item.name == name)
    return nvml.create_gpu_instance(uuid, profile(nvml, uuid, name), Placement(start, size)).id


def refused(error: pytest.ExceptionInfo[NvmlError]) -> NvmlReturn:
    return error.value.code


@pytest.mark.parametrize("name", names())
def test_every_profile_can_be_read_and_its_gpus_come_by_pci_bus_id(name: str, tmp_path: Path) -> None:
    gpus = FakeNvml(load(name), tmp_path).gpus()
    assert [gpu.pci_bus_id for gpu in gpus] == sorted(gpu.pci_bus_id for gpu in gpus)
    assert gpus


@pytest.mark.parametrize("name", names())
def test_the_instances_of_a_profile_that_fit_at_once_are_as_many_as_its_table_says(name: str) -> None:
    for kind in load(name).gpu_types.values():
        for row in kind.mig.gi if kind.mig else ():
            assert kind.mig is not None
            made: list[tuple[mig_rules.GpuInstanceRow, Placement]] = []
            for start in row.starts:
                if mig_rules.fits(kind.mig, row, start, made):
                    made.append((row, Placement(start, row.size)))
            assert len(made) == row.instances, row.name


def test_another_process_sees_what_was_made(hopper: FakeNvml, tmp_path: Path) -> None:
    uuid = first(hopper)
    hopper.set_mig_mode(uuid, enabled=True)
    make(hopper, uuid, "2g.20gb", 2)
    [instance] = FakeNvml(load("h100"), tmp_path).gpu_instances(uuid)
    assert instance.placement == Placement(2, 2)


def test_a_reboot_takes_the_instances_and_gives_new_uuids(hopper: FakeNvml) -> None:
    uuid = first(hopper)
    uuids = []
    for _ in range(2):
        hopper.set_mig_mode(uuid, enabled=True)
        uuids.append(hopper.create_compute_instance(uuid, make(hopper, uuid, "1g.10gb", 0), 0).mig_uuid)
        breaking.reboot(hopper.state)
    assert hopper.gpu_instances(uuid) == []
    assert len(set(uuids)) == 2


def test_a_fault_comes_after_as_many_calls_as_it_says_also_in_a_new_process(tmp_path: Path) -> None:
    broken = Fault(call="nvmlDeviceGetComputeMode", after=1, error="TIMEOUT")
    profile = load("l4").model_copy(update={"faults": (broken,)})
    uuid = first(FakeNvml(profile, tmp_path))
    FakeNvml(profile, tmp_path).compute_mode(uuid)
    with pytest.raises(NvmlError) as error:
        FakeNvml(profile, tmp_path).compute_mode(uuid)
    assert refused(error) is NvmlReturn.TIMEOUT
    FakeNvml(profile, tmp_path).compute_mode(uuid)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(TABLES)), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 7)), max_size=12))
def test_what_exists_never_overlaps_and_never_exceeds_the_gpu(kind: str, wanted: list[tuple[int, int]]) -> None:
    table = TABLES[kind]
    made: list[tuple[mig_rules.GpuInstanceRow, Placement]] = []
    for number, start in wanted:
        row = table.gi[number]
        if mig_rules.fits(table, row, start, made):
            made.append((row, Placement(start, row.size)))
    slices = [index for _, place in made for index in range(place.start, place.start + place.size)]
    assert len(slices) == len(set(slices))
    assert all(index < table.memory_slices for index in slices)
    assert sum(row.c for row, _ in made) <= table.compute_slices


def test_nothing_is_kept_of_gpus_that_are_as_they_were(hopper: FakeNvml, tmp_path: Path) -> None:
    uuid = first(hopper)
    hopper.set_mig_mode(uuid, enabled=True)
    made = hopper.create_gpu_instance(uuid, 9, Placement(0, 4))
    assert list((tmp_path / "host/dev/nvidia-caps").iterdir())
    hopper.destroy_gpu_instance(uuid, made.id)
    hopper.set_mig_mode(uuid, enabled=False)
    assert not (tmp_path / "state.json").exists()
    assert not list((tmp_path / "host/dev/nvidia-caps").iterdir())
