"""What only the fake has: profiles, a state that outlives processes and not a reboot, and faults on order."""

import subprocess
import threading
import time
from pathlib import Path

import pytest
import yaml
from dra_kit import ConfigurationError
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_driver.nvml.backend import ComputeMode, NvmlBackend, NvmlEvent, Placement, RecoveryAction
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.nvml.fake import injection, mig_rules
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.hardware import fake_hardware
from gpu_driver.nvml.fake.profile import Profile, _Part, load, names

TABLES = {
    name: table for name in ("h100", "a100-40gb") for kind in load(name).gpu_types.values() if (table := kind.mig)
}


@pytest.fixture
def hopper(tmp_path: Path) -> FakeNvml:
    return FakeNvml(load("h100"), tmp_path)


def changed(profile: str, **fields: object) -> Profile:
    """A profile that is another one in some fields."""
    return Profile.model_validate({**load(profile).model_dump(mode="json", by_alias=True), **fields})


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
def test_every_profile_is_valid_and_its_gpus_are_ordered_by_pci_bus_id(name: str, tmp_path: Path) -> None:
    gpus = FakeNvml(load(name), tmp_path).gpus()
    assert [gpu.pci_bus_id for gpu in gpus] == sorted(gpu.pci_bus_id for gpu in gpus)
    assert gpus


@pytest.mark.parametrize("name", names())
def test_as_many_instances_fit_as_the_table_of_profiles_says(name: str) -> None:
    for kind in load(name).gpu_types.values():
        for row in kind.mig.gi if kind.mig else ():
            assert kind.mig is not None
            made: list[tuple[mig_rules.GpuInstanceRow, Placement]] = []
            for start in row.starts:
                if mig_rules.fits(kind.mig, row, start, made):
                    made.append((row, Placement(start, row.size)))
            assert len(made) == row.instances, row.name


def test_another_process_sees_created_instances(hopper: FakeNvml, tmp_path: Path) -> None:
    uuid = first(hopper)
    hopper.set_mig_mode(uuid, enabled=True)
    make(hopper, uuid, "2g.20gb", 2)
    [instance] = FakeNvml(load("h100"), tmp_path).gpu_instances(uuid)
    assert instance.placement == Placement(2, 2)


def test_a_reboot_deletes_instances_and_changes_uuids(hopper: FakeNvml) -> None:
    uuid = first(hopper)
    uuids = []
    for _ in range(2):
        hopper.set_mig_mode(uuid, enabled=True)
        uuids.append(hopper.create_compute_instance(uuid, make(hopper, uuid, "1g.10gb", 0), 0).mig_uuid)
        injection.reboot(hopper)
    assert hopper.gpu_instances(uuid) == []
    assert len(set(uuids)) == 2


@pytest.mark.parametrize(("name", "stays"), [("a100-mig", True), ("h100", False)])
def test_mig_mode_survives_a_reboot_only_before_hopper(name: str, stays: bool, tmp_path: Path) -> None:
    nvml = FakeNvml(load(name), tmp_path)
    uuid = [gpu.uuid for gpu in nvml.gpus()][1]
    if not stays:
        nvml.set_mig_mode(uuid, enabled=True)
    injection.reboot(nvml)
    assert nvml.mig_mode(uuid).current is stays
    assert nvml.gpu_instances(uuid) == []


def test_a_fault_occurs_after_its_number_of_calls_across_processes(tmp_path: Path) -> None:
    profile = changed("l4", faults=[{"call": "nvmlDeviceGetComputeMode", "after": 1, "error": "TIMEOUT"}])
    uuid = first(FakeNvml(profile, tmp_path))
    FakeNvml(profile, tmp_path).compute_mode(uuid)
    with pytest.raises(NvmlError) as error:
        FakeNvml(profile, tmp_path).compute_mode(uuid)
    assert refused(error) is NvmlReturn.TIMEOUT
    FakeNvml(profile, tmp_path).compute_mode(uuid)


def test_a_hanging_call_does_not_block_other_gpus(tmp_path: Path) -> None:
    profile = changed("l4", faults=[{"call": "nvmlDeviceGetComputeMode", "gpu": 0, "hang": True}])
    nvml = FakeNvml(profile, tmp_path)
    hanging = threading.Thread(target=nvml.compute_mode, args=[profile.gpus[0].uuid], daemon=True)
    hanging.start()
    while not nvml.state.read().calls:
        time.sleep(0.01)  # it has begun
    assert nvml.compute_mode(profile.gpus[1].uuid) is ComputeMode.DEFAULT
    assert hanging.is_alive()


@pytest.mark.parametrize(("step", "takes"), [("setMigMode", 0.2), ("createGi", 0.3), ("createCi", 0.4)])
def test_a_step_takes_as_long_as_in_the_profile(step: str, takes: float, tmp_path: Path) -> None:
    nvml = FakeNvml(changed("h100", timing={step: takes}), tmp_path)
    uuid, begin = first(nvml), time.monotonic()
    nvml.set_mig_mode(uuid, enabled=True)
    nvml.create_compute_instance(uuid, make(nvml, uuid, "1g.10gb", 0), 0)
    assert time.monotonic() - begin >= takes


def test_opening_nvml_takes_as_long_as_in_the_profile(tmp_path: Path) -> None:
    nvml, begin = FakeNvml(changed("l4", timing={"init": 0.3}), tmp_path), time.monotonic()
    nvml.driver_version()
    assert time.monotonic() - begin >= 0.3


def test_nvml_is_opened_once_and_again_after_it_was_closed(tmp_path: Path) -> None:
    nvml = FakeNvml(changed("l4", faults=[{"call": "nvmlInitWithFlags", "times": 0}]), tmp_path)
    opened = []
    for close in (False, False, True, False):
        if close:
            nvml.close()
        nvml.driver_version()
        opened.append(nvml.state.read().calls["0"])
    assert opened == [1, 1, 2, 2]


def test_a_failed_open_is_retried_by_the_next_call(tmp_path: Path) -> None:
    nvml = FakeNvml(changed("l4", faults=[{"call": "nvmlInitWithFlags", "error": "DRIVER_NOT_LOADED"}]), tmp_path)
    with pytest.raises(NvmlError) as error:
        nvml.gpus()
    assert (refused(error), error.value.call) == (NvmlReturn.DRIVER_NOT_LOADED, "nvmlInitWithFlags")
    assert len(nvml.gpus()) == 4


@settings(max_examples=60)
@given(st.sampled_from(sorted(TABLES)), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 7)), max_size=12))
def test_instances_never_overlap_or_exceed_the_gpu(kind: str, wanted: list[tuple[int, int]]) -> None:
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


def test_unchanged_gpus_are_not_stored(hopper: FakeNvml, tmp_path: Path) -> None:
    uuid = first(hopper)
    hopper.set_mig_mode(uuid, enabled=True)
    made = hopper.create_gpu_instance(uuid, 9, Placement(0, 4))
    assert list((tmp_path / "host/dev/nvidia-caps").iterdir())
    hopper.destroy_gpu_instance(uuid, made.id)
    hopper.set_mig_mode(uuid, enabled=False)
    assert not (tmp_path / "state.json").exists()
    assert not list((tmp_path / "host/dev/nvidia-caps").iterdir())


def test_injected_faults_and_their_end_are_visible(hopper: FakeNvml, tmp_path: Path) -> None:
    uuid, file = first(hopper), tmp_path / "gpus/gpu-0"
    before = file.read_text()
    assert before == (
        "driver: nvidia\ncompute mode: DEFAULT\ntime slice: Default\npersistence mode: off\nMIG mode: off\n"
    )
    hopper.set_mig_mode(uuid, enabled=True)
    made = make(hopper, uuid, "3g.40gb", 4)
    for _ in range(2):
        hopper.create_compute_instance(uuid, made, 0)
    assert file.read_text().splitlines()[4:] == [
        "MIG mode: on",
        "memory slices: [. . . . 1 1 1 1]",
        "partition 3g.40gb at 4: compute slices 1, 1",
    ]
    injection.reboot(hopper)
    assert file.read_text() == before


def test_a_lost_gpu_is_reported_as_lost(hopper: FakeNvml, tmp_path: Path) -> None:
    injection.lose(hopper.state, first(hopper))
    assert (tmp_path / "gpus/gpu-0").read_text().startswith("driver: lost\n")


def scheduled(*events: dict[str, object]) -> Profile:
    """A profile to which these things happen."""
    return changed("l4", events=events)


def test_an_event_of_a_profile_happens_at_its_time_and_once(tmp_path: Path) -> None:
    profile = scheduled({"at": 0, "gpu": 1, "lost": True}, {"at": 3600, "gpu": 0, "xid": 79})
    nvml = FakeNvml(profile, tmp_path)
    assert [gpu.minor for gpu in nvml.gpus()] == [0, 2, 3]
    injection.find(nvml.state, profile.gpus[1].uuid)
    assert len(FakeNvml(profile, tmp_path).gpus()) == 4  # the next process does not lose it again
    assert [event.kind for _, event in nvml.state.read().events] == ["lost"]


def test_events_of_a_profile_reach_listeners(tmp_path: Path) -> None:
    nvml = FakeNvml(scheduled({"at": 3600, "gpu": 0, "xid": 94, "gi": 3}), tmp_path)
    uuid = first(nvml)
    events = nvml.events([uuid])
    assert events.wait(0) is None
    with nvml.state.changing() as node:  # an hour later
        assert node.began is not None
        node.began -= 3600
    assert events.wait(60) == NvmlEvent("xid", uuid, 94, gpu_instance=3)


def test_a_recovery_action_of_a_profile_occurs_at_its_time(tmp_path: Path) -> None:
    nvml = FakeNvml(scheduled({"at": 0, "gpu": 2, "recoveryAction": "GPU_RESET"}), tmp_path)
    assert nvml.recovery_action(nvml.gpus()[2].uuid) is RecoveryAction.GPU_RESET


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"at": 0, "gpu": 0}, "one of xid, lost: true and recoveryAction"),
        ({"at": 0, "gpu": 0, "xid": 1, "lost": True}, "one of xid, lost: true and recoveryAction"),
        ({"at": 0, "gpu": 0, "recoveryAction": "PRAY"}, "unknown recoveryAction PRAY; write NONE, GPU_RESET"),
        ({"at": 0, "gpu": 9, "xid": 79}, "an event is of GPU 9, which the profile does not have"),
    ],
)
def test_an_invalid_event_is_reported(event: dict[str, object], message: str, tmp_path: Path) -> None:
    refuse("l4", {"events": [event]}, message, tmp_path)


def refuse(profile: str, changed: dict[str, object], message: str, folder: Path) -> None:
    file = folder / "node.yaml"
    file.write_text(yaml.safe_dump({**load(profile).model_dump(mode="json", by_alias=True), **changed}))
    with pytest.raises(ConfigurationError, match=message):
        load(str(file))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"call": "*", "error": "GPU_IS_SAD"}, "faults.0.error: .*NVML returns no GPU_IS_SAD; it has UNINITIALIZED"),
        ({"call": "*", "gpu": "GPU-x"}, "a fault is of GPU 'GPU-x', which the profile does not have"),
    ],
)
def test_an_invalid_fault_is_reported(fault: dict[str, object], message: str, tmp_path: Path) -> None:
    refuse("l4", {"faults": [fault]}, message, tmp_path)


@pytest.mark.parametrize(
    ("profile", "changed", "message"),
    [
        ("l4", {"migMode": True}, "GPU 0 has migMode, and its type l4 has no mig"),
        ("h100", {"foreign": [{"profile": "1g.10gb", "start": 0}]}, "write migMode: true"),
        (
            "h100",
            {"migMode": True, "foreign": [{"profile": "9g", "start": 0}]},
            "unknown MIG profile 9g; write 1g.10gb,",
        ),
        ("h100", {"migMode": True, "foreign": [{"profile": "3g.40gb", "start": 1}]}, "3g.40gb begins at 0, 4"),
    ],
)
def test_an_invalid_mig_section_is_reported(
    profile: str, changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    gpus = [gpu.model_dump(mode="json", by_alias=True) for gpu in load(profile).gpus]
    refuse(profile, {"gpus": [{**gpus[0], **changed}, *gpus[1:]]}, message, tmp_path)


def test_the_profiles_page_documents_every_field() -> None:
    page = Path(__file__).parents[1].joinpath("docs/profiles.md").read_text(encoding="utf-8")
    fields = {field.alias or name for part in _Part.__subclasses__() for name, field in part.model_fields.items()}
    assert {field for field in fields if f"`{field}`" not in page} == set()


def test_fake_gpus_of_two_nodes_have_different_uuids_and_nvidia_smi_shows_them(tmp_path: Path) -> None:
    seen: set[str] = set()
    for node in ("node-1", "node-2"):
        hardware = fake_hardware("h100", tmp_path / node, node)
        uuids = {gpu.uuid for gpu in hardware.nvml.gpus()}
        assert len(uuids) == 8
        assert not seen & uuids
        seen |= uuids
        command = [hardware.programs[0] / "nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
        shown = subprocess.run(command, env=hardware.environment, capture_output=True, text=True, check=True).stdout
        assert {line.split(", ")[1] for line in shown.splitlines()} == uuids
