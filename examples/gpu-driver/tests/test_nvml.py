"""The fake, and NVIDIA's binding on a library of our own, give the same answers: the rules of MIG, errors, events."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_driver.nvml.backend import ComputeInstance, ComputeMode, GpuInstance, NvmlBackend, Placement, RecoveryAction
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.nvml.fake import injection
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.profile import Profile, load, names
from tests.library_double import LibraryDouble


@dataclass
class Gpus:
    """NVML, and what befalls its GPUs."""

    nvml: NvmlBackend
    lose: Callable[[str], None]
    find: Callable[[str], None]
    xid: Callable[[str, int], None]
    want_recovery: Callable[[str, RecoveryAction], None]

    @property
    def first(self) -> str:
        return self.nvml.gpus()[0].uuid


def fake(profile: Profile, folder: Path) -> Gpus:
    nvml = FakeNvml(profile, folder)
    state = nvml.state
    return Gpus(
        nvml,
        lose=lambda uuid: injection.lose(state, uuid),
        find=lambda uuid: injection.find(state, uuid),
        xid=lambda uuid, number: injection.xid(state, uuid, number),
        want_recovery=lambda uuid, action: injection.want_recovery(state, uuid, action),
    )


def real(profile: Profile, folder: Path, library: Path) -> Gpus:
    from gpu_driver.nvml.library import NvmlLibrary

    below = LibraryDouble(library, profile, folder / "gpus")
    return Gpus(NvmlLibrary(library), below.lose, below.find, below.xid, below.want_recovery)


@pytest.fixture(params=["fake", "real"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Make(Protocol):
    def __call__(self, profile: str, **of_type: object) -> Gpus:
        """Make the GPUs of a profile, of a type that is another one in some fields."""
        ...


@pytest.fixture
def make(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Gpus] = []

    def gpus(profile: str, **of_type: object) -> Gpus:
        known = load(profile)
        types = {name: each.model_copy(update=of_type) for name, each in known.gpu_types.items()}
        known = known.model_copy(update={"gpu_types": types})
        library = request.getfixturevalue("nvml_library") if kind == "real" else Path()
        made.append(fake(known, tmp_path) if kind == "fake" else real(known, tmp_path, library))
        return made[-1]

    yield gpus
    for each in made:
        each.nvml.close()


@pytest.fixture
def hopper(make: Make) -> Gpus:
    gpus = make("h100")
    gpus.nvml.set_mig_mode(gpus.first, enabled=True)
    return gpus


def answer(call: Callable[[], object]) -> object:
    """What a call returns, or the name of its error."""
    try:
        return call()
    except NvmlError as error:
        return error.code


def test_a_gpu_instance_has_the_requested_placement(hopper: Gpus) -> None:
    made = hopper.nvml.create_gpu_instance(hopper.first, 9, Placement(4, 4))
    assert (made.profile_id, made.placement) == (9, Placement(4, 4))
    assert hopper.nvml.gpu_instances(hopper.first) == [made]


def test_an_occupied_or_invalid_placement_is_rejected(hopper: Gpus) -> None:
    uuid = hopper.first
    hopper.nvml.create_gpu_instance(uuid, 9, Placement(0, 4))
    taken = answer(lambda: hopper.nvml.create_gpu_instance(uuid, 19, Placement(3, 1)))
    impossible = answer(lambda: hopper.nvml.create_gpu_instance(uuid, 9, Placement(2, 4)))
    unknown = answer(lambda: hopper.nvml.create_gpu_instance(uuid, 77, Placement(4, 1)))
    assert taken is NvmlReturn.INSUFFICIENT_RESOURCES
    assert [impossible, unknown] == [NvmlReturn.INVALID_ARGUMENT] * 2


def test_two_3g_instances_use_all_memory_slices(hopper: Gpus) -> None:
    for start in (0, 4):
        hopper.nvml.create_gpu_instance(hopper.first, 9, Placement(start, 4))
    for start in range(7):
        left = answer(lambda: hopper.nvml.create_gpu_instance(hopper.first, 19, Placement(start, 1)))  # noqa: B023
        assert left is NvmlReturn.INSUFFICIENT_RESOURCES


def test_media_engines_exist_once(hopper: Gpus) -> None:
    uuid = hopper.first
    hopper.nvml.create_gpu_instance(uuid, 20, Placement(0, 1))
    again = answer(lambda: hopper.nvml.create_gpu_instance(uuid, 20, Placement(1, 1)))
    assert again is NvmlReturn.INSUFFICIENT_RESOURCES


def test_compute_instances_must_be_destroyed_before_their_gpu_instance(hopper: Gpus) -> None:
    uuid = hopper.first
    parent = hopper.nvml.create_gpu_instance(uuid, 9, Placement(0, 4)).id
    last = hopper.nvml.create_compute_instance(uuid, parent, 0, Placement(2, 1))
    first = hopper.nvml.create_compute_instance(uuid, parent, 0)
    assert [first.placement, last.placement] == [Placement(0, 1), Placement(2, 1)]
    assert len({first.mig_uuid, last.mig_uuid}) == 2
    assert answer(lambda: hopper.nvml.destroy_gpu_instance(uuid, parent)) is NvmlReturn.IN_USE
    for made in (first, last):
        hopper.nvml.destroy_compute_instance(uuid, parent, made.id)
    hopper.nvml.destroy_gpu_instance(uuid, parent)
    assert answer(lambda: hopper.nvml.destroy_gpu_instance(uuid, parent)) is NvmlReturn.NOT_FOUND


def test_compute_profiles_are_named_after_their_gpu_instance(hopper: Gpus) -> None:
    parent = hopper.nvml.create_gpu_instance(hopper.first, 9, Placement(0, 4)).id
    profiles = hopper.nvml.compute_instance_profiles(hopper.first, parent)
    assert [profile.name for profile in profiles] == ["1c.3g.40gb", "2c.3g.40gb", "3g.40gb"]
    assert [profile.multiprocessors for profile in profiles] == [16, 32, 60]


def test_mig_is_not_switched_off_under_instances_but_becomes_pending(hopper: Gpus) -> None:
    uuid = hopper.first
    hopper.nvml.create_gpu_instance(uuid, 19, Placement(0, 1))
    assert answer(lambda: hopper.nvml.set_mig_mode(uuid, enabled=False)) is NvmlReturn.IN_USE
    mode = hopper.nvml.mig_mode(uuid)
    assert (mode.current, mode.pending) == (True, False)


def test_ampere_waits_for_a_reset_before_mig_is_on(make: Make) -> None:
    gpus = make("a100-40gb")
    assert answer(lambda: gpus.nvml.set_mig_mode(gpus.first, enabled=True)) is NvmlReturn.RESET_REQUIRED
    mode = gpus.nvml.mig_mode(gpus.first)
    assert (mode.current, mode.pending) == (False, True)
    assert gpus.nvml.gpu_instances(gpus.first) == []


def test_instances_of_an_administrator_are_listed_with_their_compute_instances(make: Make) -> None:
    gpus = make("a100-mig")
    found = gpus.nvml.gpu_instances(gpus.nvml.gpus()[1].uuid)
    assert [(made.profile_id, made.placement.start) for made in found] == [(9, 4), (19, 0), (14, 2)]
    assert all(made.compute_instances[0].mig_uuid.startswith("MIG-") for made in found)


def test_a_gpu_without_mig_reports_it(make: Make) -> None:
    gpus = make("l4")
    uuid = gpus.first
    assert not gpus.nvml.gpus()[0].mig_capable
    calls: list[Callable[[], object]] = [
        lambda: gpus.nvml.mig_mode(uuid),
        lambda: gpus.nvml.set_mig_mode(uuid, enabled=True),
        lambda: gpus.nvml.gpu_instance_profiles(uuid),
        lambda: gpus.nvml.gpu_instances(uuid),
        lambda: gpus.nvml.create_gpu_instance(uuid, 19, Placement(0, 1)),
    ]
    assert {answer(call) for call in calls} == {NvmlReturn.NOT_SUPPORTED}


def test_the_compute_mode_stays_until_mig_is_on(make: Make) -> None:
    gpus = make("h100")
    gpus.nvml.set_compute_mode(gpus.first, ComputeMode.EXCLUSIVE_PROCESS)
    assert gpus.nvml.compute_mode(gpus.first) is ComputeMode.EXCLUSIVE_PROCESS
    gpus.nvml.set_mig_mode(gpus.first, enabled=True)
    assert gpus.nvml.compute_mode(gpus.first) is ComputeMode.DEFAULT
    refused = answer(lambda: gpus.nvml.set_compute_mode(gpus.first, ComputeMode.EXCLUSIVE_PROCESS))
    assert refused is NvmlReturn.NOT_SUPPORTED


def test_a_compute_mode_that_the_gpu_does_not_have_is_not_supported(make: Make) -> None:
    gpus = make("l4", compute_modes=("DEFAULT", "EXCLUSIVE_PROCESS"))
    gpus.nvml.set_compute_mode(gpus.first, ComputeMode.EXCLUSIVE_PROCESS)
    refused = answer(lambda: gpus.nvml.set_compute_mode(gpus.first, ComputeMode.PROHIBITED))
    assert refused is NvmlReturn.NOT_SUPPORTED
    assert gpus.nvml.compute_mode(gpus.first) is ComputeMode.EXCLUSIVE_PROCESS


def test_events_of_unregistered_types_are_not_delivered(make: Make) -> None:
    gpus = make("l4", event_types=("xid",))
    first, second = (gpu.uuid for gpu in gpus.nvml.gpus()[:2])
    events = gpus.nvml.events([first, second])
    assert list(events.unmonitored) == []
    gpus.want_recovery(first, RecoveryAction.GPU_RESET)
    gpus.xid(first, 48)
    found = events.wait(10)
    assert found is not None
    assert (found.kind, found.uuid, found.xid) == ("xid", first, 48)
    assert answer(lambda: gpus.nvml.recovery_action(first)) is NvmlReturn.NOT_SUPPORTED
    gpus.lose(second)
    lost = events.wait(10)
    assert lost is not None
    assert (lost.kind, lost.uuid) == ("lost", ""), "waiting fails, and does not tell for which GPU"


def test_a_gpu_without_types_of_events_is_not_monitored(make: Make) -> None:
    gpus = make("l4", event_types=())
    assert list(gpus.nvml.events([gpus.first]).unmonitored) == [gpus.first]


def test_a_lost_gpu_fails_every_call_and_no_other_gpu_does(make: Make) -> None:
    gpus = make("h100")
    lost, well = (gpu.uuid for gpu in gpus.nvml.gpus()[:2])
    gpus.lose(lost)
    assert answer(lambda: gpus.nvml.compute_mode(lost)) is NvmlReturn.GPU_IS_LOST
    assert answer(lambda: gpus.nvml.gpu_instances(lost)) is NvmlReturn.GPU_IS_LOST
    assert gpus.nvml.compute_mode(well) is ComputeMode.DEFAULT
    assert lost not in {gpu.uuid for gpu in gpus.nvml.gpus()}
    gpus.find(lost)
    assert gpus.first == lost


def test_an_unknown_gpu_is_not_found(make: Make) -> None:
    gpus = make("l4")
    with pytest.raises(NvmlError) as error:
        gpus.nvml.compute_mode("GPU-that-is-not-there")
    assert (error.value.code, error.value.subject) == (NvmlReturn.NOT_FOUND, "GPU-that-is-not-there")


def test_events_are_delivered_in_order_from_the_subscription_on(make: Make) -> None:
    gpus = make("h100")
    first, second, other = (gpu.uuid for gpu in gpus.nvml.gpus()[:3])
    gpus.xid(first, 13)
    events = gpus.nvml.events([first, second])
    gpus.xid(other, 31)
    gpus.xid(first, 48)
    gpus.want_recovery(first, RecoveryAction.GPU_RESET)
    gpus.lose(second)
    found = [events.wait(10) for _ in range(3)]
    assert [(event.kind, event.uuid, event.xid) for event in found if event] == [
        ("xid", first, 48),
        ("recovery", first, 0),
        ("lost", second, 0),
    ]
    assert gpus.nvml.recovery_action(first) is RecoveryAction.GPU_RESET
    events.close()
    events.close()


def test_a_lost_gpu_cannot_be_subscribed_to(make: Make) -> None:
    gpus = make("h100")
    lost, well = (gpu.uuid for gpu in gpus.nvml.gpus()[:2])
    gpus.lose(lost)
    assert list(gpus.nvml.events([lost, well]).unmonitored) == [lost]


@pytest.mark.parametrize("name", names())
def test_fake_and_library_return_the_same_for_every_profile(name: str, nvml_library: Path, tmp_path: Path) -> None:
    ours, theirs = fake(load(name), tmp_path / "fake").nvml, real(load(name), tmp_path, nvml_library).nvml
    assert (theirs.driver_version(), theirs.cuda_driver_version()) == (
        ours.driver_version(),
        ours.cuda_driver_version(),
    )
    for gpu, other in zip(ours.gpus(), theirs.gpus(), strict=True):
        if not (gpu.mig_capable and ours.mig_mode(gpu.uuid).current):  # then NVML does not count cores
            assert other == gpu
        assert answer(lambda: theirs.gpu_instance_profiles(gpu.uuid)) == answer(  # noqa: B023 - called at once
            lambda: ours.gpu_instance_profiles(gpu.uuid)  # noqa: B023
        )
    theirs.close()


_places = st.builds(Placement, st.integers(0, 7), st.sampled_from([1, 1, 2, 2, 3, 4, 8]))
_gpu = st.integers(0, 1)
_instance = st.integers(0, 3)
_operations = st.one_of(
    st.tuples(st.just("mode"), _gpu, st.booleans()),
    st.tuples(st.just("create"), _gpu, st.sampled_from([19, 20, 15, 14, 9, 5, 0, 3]), _places),
    st.tuples(st.just("create"), _gpu, st.sampled_from([20, 20, 19, 15, 14, 9]), st.just(None)),
    st.tuples(st.just("create"), st.just(0), st.sampled_from([20, 19, 9]), st.just(None)),
    st.tuples(st.just("compute"), _gpu, _instance, st.integers(0, 9), st.none() | _places),
    st.tuples(st.just("cut"), _gpu, _instance),
    st.tuples(st.just("uncompute"), _gpu, _instance, st.integers(0, 2)),
    st.tuples(st.just("destroy"), _gpu, _instance),
    st.tuples(st.just("exclusive"), _gpu, st.sampled_from(ComputeMode)),
    st.tuples(st.just("lose"), _gpu),
    st.tuples(st.just("find"), _gpu),
)


def do(gpus: Gpus, uuids: list[str], operation: tuple[object, ...]) -> object:
    """One operation; what it answers, but for the UUIDs of MIG devices."""
    nvml = gpus.nvml
    match operation:
        case ("mode", int(gpu), bool(enabled)):
            return answer(lambda: nvml.set_mig_mode(uuids[gpu], enabled=enabled))
        case ("create", int(gpu), int(profile), place):
            wanted = place if isinstance(place, Placement) else _first_place(nvml, uuids[gpu], profile)
            return answer(lambda: nameless(nvml.create_gpu_instance(uuids[gpu], profile, wanted)))
        case ("compute", int(gpu), int(parent), int(profile), place) if place is None or isinstance(place, Placement):
            return answer(lambda: _known(nvml.create_compute_instance(uuids[gpu], parent, profile, place)))
        case ("cut", int(gpu), int(parent)):
            return answer(lambda: nvml.compute_instance_profiles(uuids[gpu], parent))
        case ("uncompute", int(gpu), int(parent), int(compute)):
            return answer(lambda: nvml.destroy_compute_instance(uuids[gpu], parent, compute))
        case ("destroy", int(gpu), int(parent)):
            return answer(lambda: nvml.destroy_gpu_instance(uuids[gpu], parent))
        case ("exclusive", int(gpu), ComputeMode() as mode):
            return answer(lambda: nvml.set_compute_mode(uuids[gpu], mode))
        case ("lose", int(gpu)):
            gpus.lose(uuids[gpu])
            return None
        case ("find", int(gpu)):
            gpus.find(uuids[gpu])
            return None
    raise AssertionError(operation)


def _first_place(nvml: NvmlBackend, uuid: str, profile: int) -> Placement:
    """Where the profile may be, and nothing is; any place when there is none."""
    existing = answer(lambda: nvml.gpu_instances(uuid))
    taken = {
        index
        for made in (existing if isinstance(existing, list) else ())
        for index in range(made.placement.start, made.placement.start + made.placement.size)
    }
    profiles = answer(lambda: nvml.gpu_instance_profiles(uuid))
    for known in profiles if isinstance(profiles, list) else ():
        for place in known.placements:
            if known.id == profile and not taken & set(range(place.start, place.start + place.size)):
                return Placement(place.start, place.size)
    return Placement(0, 1)


def nameless(made: GpuInstance) -> object:
    return made.id, made.profile_id, made.placement, [_known(compute) for compute in made.compute_instances]


def _known(made: ComputeInstance) -> object:
    assert made.mig_uuid.startswith("MIG-")
    return made.id, made.profile_id, made.placement


def seen(nvml: NvmlBackend, uuid: str) -> list[object]:
    return [
        answer(lambda: nvml.mig_mode(uuid)),
        answer(lambda: nvml.compute_mode(uuid)),
        answer(lambda: [nameless(made) for made in nvml.gpu_instances(uuid)]),
    ]


@pytest.mark.parametrize("name", ["h100", "a100-mig"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(operations=st.lists(_operations, min_size=3, max_size=16))
def test_fake_and_library_behave_equally_in_any_order_of_calls(
    name: str, operations: list[tuple[object, ...]], nvml_library: Path, tmp_path: Path
) -> None:
    profile = load(name)
    profile = profile.model_copy(update={"gpus": profile.gpus[:2]})
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        ours, theirs = fake(profile, Path(folder) / "fake"), real(profile, Path(folder), nvml_library)
        uuids = [gpu.uuid for gpu in ours.nvml.gpus()]
        theirs.nvml.gpus()
        for operation in [("mode", 0, True), *operations]:
            assert do(theirs, uuids, operation) == do(ours, uuids, operation), operation
        for uuid in uuids:
            assert seen(theirs.nvml, uuid) == seen(ours.nvml, uuid)
        theirs.nvml.close()
