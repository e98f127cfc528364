"""What only the real NVML has: a session that ends, a driver that is replaced, rights, names, events of old drivers."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_driver.nvml.backend import ComputeMode, EventSet, Placement, RecoveryAction
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.nvml.fake.profile import load, names
from tests.library_double import LibraryDouble

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

from gpu_driver.nvml.library import NvmlLibrary
from gpu_driver.nvml.mig import profile_name

_OLD_EVENTS = 0x8


@pytest.fixture
def below(nvml_library: Path, tmp_path: Path) -> LibraryDouble:
    return LibraryDouble(nvml_library, load("h100"), tmp_path / "gpus")


@pytest.fixture
def nvml(below: LibraryDouble, nvml_library: Path) -> Iterator[NvmlLibrary]:
    opened = NvmlLibrary(nvml_library)
    yield opened
    opened.close()


@pytest.fixture
def uuid(nvml: NvmlLibrary) -> str:
    return nvml.gpus()[0].uuid


def test_one_session_serves_all_calls_until_close(below: LibraryDouble, nvml: NvmlLibrary) -> None:
    nvml.gpus()
    nvml.driver_version()
    assert below.opened == 1
    nvml.close()
    nvml.close()
    assert below.opened == 0
    assert len(nvml.gpus()) == 8


def test_a_reloaded_driver_is_opened_again(below: LibraryDouble, nvml: NvmlLibrary, uuid: str) -> None:
    nvml.set_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS)
    below.restart()
    assert nvml.compute_mode(uuid) is ComputeMode.DEFAULT


def test_an_unloaded_driver_is_reported_and_used_when_it_returns(
    below: LibraryDouble, nvml: NvmlLibrary, uuid: str
) -> None:
    below.restart()
    below.permit(driver=False)
    with pytest.raises(NvmlError) as error:
        nvml.compute_mode(uuid)
    assert error.value.code is NvmlReturn.DRIVER_NOT_LOADED
    below.permit()
    assert nvml.compute_mode(uuid) is ComputeMode.DEFAULT


def test_an_upgraded_driver_is_called_through_its_new_library(nvml_library: Path, tmp_path: Path) -> None:
    old, new = (Path(shutil.copy(nvml_library, tmp_path / f"libnvidia-ml.so.{number}")) for number in (580, 590))
    link = tmp_path / "libnvidia-ml.so.1"
    link.symlink_to(old)
    before = LibraryDouble(old, load("l4"), tmp_path / "before")
    nvml = NvmlLibrary(link)
    assert len(nvml.gpus()) == 4
    before.restart()
    before.permit(driver=False)
    after = LibraryDouble(new, load("h100"), tmp_path / "after")
    link.unlink()
    link.symlink_to(new)
    assert len(nvml.gpus()) == 8
    assert (before.opened, after.opened) == (0, 1)
    nvml.close()


def test_an_unprivileged_user_can_read_but_not_change(below: LibraryDouble, nvml: NvmlLibrary, uuid: str) -> None:
    below.permit(root=False)
    assert nvml.compute_mode(uuid) is ComputeMode.DEFAULT
    for change in (
        lambda: nvml.set_compute_mode(uuid, ComputeMode.PROHIBITED),
        lambda: nvml.set_mig_mode(uuid, enabled=True),
    ):
        with pytest.raises(NvmlError) as error:
            change()
        assert (error.value.code, error.value.subject) == (NvmlReturn.NO_PERMISSION, uuid)


def test_a_driver_without_recovery_actions_reports_it(nvml_library: Path, tmp_path: Path) -> None:
    LibraryDouble(nvml_library, load("h100"), tmp_path / "gpus", events=_OLD_EVENTS)
    nvml = NvmlLibrary(nvml_library)
    with pytest.raises(NvmlError) as error:
        nvml.recovery_action(nvml.gpus()[0].uuid)
    assert error.value.code is NvmlReturn.NOT_SUPPORTED
    nvml.close()


def test_an_error_names_the_function_and_the_gpu(below: LibraryDouble, nvml: NvmlLibrary, uuid: str) -> None:
    below.lose(uuid)
    with pytest.raises(NvmlError) as error:
        nvml.compute_mode(uuid)
    assert str(error.value) == f"nvmlDeviceGetComputeMode for {uuid}: GPU_IS_LOST"


def test_multiprocessors_are_counted_for_the_whole_gpu_even_with_mig(nvml: NvmlLibrary, uuid: str) -> None:
    nvml.set_mig_mode(uuid, enabled=True)
    assert nvml.gpus()[0].multiprocessors == 132


def test_a_process_started_with_mig_on_counts_multiprocessors_of_partitions(nvml_library: Path, tmp_path: Path) -> None:
    LibraryDouble(nvml_library, load("a100-mig"), tmp_path / "gpus")
    nvml = NvmlLibrary(nvml_library)
    assert nvml.gpus()[0].multiprocessors == 98
    nvml.close()


def test_an_unknown_recovery_action_is_treated_as_reboot(below: LibraryDouble, nvml: NvmlLibrary, uuid: str) -> None:
    below.want_recovery(uuid, 42)
    assert nvml.recovery_action(uuid) is RecoveryAction.NODE_REBOOT


def test_events_stop_with_their_session(nvml: NvmlLibrary, uuid: str) -> None:
    events = nvml.events([uuid])
    nvml.close()
    nvml.driver_version()  # another session
    with pytest.raises(NvmlError) as error:
        events.wait(10)
    assert error.value.code is NvmlReturn.UNINITIALIZED
    events.close()


def end_of_waiting(events: EventSet, close: Callable[[], None]) -> NvmlReturn | None:
    """Return the error with which a thread's waiting ends, once something is closed."""
    ended: list[NvmlReturn] = []

    def wait() -> None:
        try:
            events.wait(3600)
        except NvmlError as error:
            ended.append(error.code)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    close()
    waiting.join(60)
    return ended[0] if ended else None


def test_nvml_is_closed_while_a_thread_waits_for_events(below: LibraryDouble, nvml: NvmlLibrary, uuid: str) -> None:
    assert end_of_waiting(nvml.events([uuid]), nvml.close) is NvmlReturn.UNINITIALIZED
    assert below.opened == 0


def test_events_are_closed_while_a_thread_waits_for_them(nvml: NvmlLibrary, uuid: str) -> None:
    events = nvml.events([uuid])
    assert end_of_waiting(events, events.close) is NvmlReturn.UNINITIALIZED


def test_threads_call_while_another_closes(below: LibraryDouble, nvml: NvmlLibrary, uuid: str) -> None:
    answers: list[ComputeMode] = []

    def ask() -> None:
        for _ in range(50):
            answers.append(nvml.compute_mode(uuid))

    asking = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in asking:
        thread.start()
    while any(thread.is_alive() for thread in asking):
        nvml.close()
    assert answers == [ComputeMode.DEFAULT] * 200
    nvml.close()
    assert below.opened == 0


def test_an_old_driver_reports_a_lost_gpu_without_its_uuid_and_once(nvml_library: Path, tmp_path: Path) -> None:
    below = LibraryDouble(nvml_library, load("h100"), tmp_path / "gpus", events=_OLD_EVENTS)
    nvml = NvmlLibrary(nvml_library)
    first, second = (gpu.uuid for gpu in nvml.gpus()[:2])
    events = nvml.events([first, second])
    below.lose(first)
    event = events.wait(10)
    assert event is not None
    assert (event.kind, event.uuid) == ("lost", "")
    below.xid(second, 31)
    event = events.wait(10)
    assert event is not None
    assert (event.kind, event.uuid, event.xid) == ("xid", second, 31)
    assert events.wait(0) is None
    nvml.close()


def test_an_xid_of_a_partition_has_its_id(below: LibraryDouble, nvml: NvmlLibrary, uuid: str) -> None:
    nvml.set_mig_mode(uuid, enabled=True)
    made = nvml.create_gpu_instance(uuid, 19, Placement(0, 1))
    events = nvml.events([uuid])
    below.xid(uuid, 31, made.id)
    event = events.wait(10)
    assert event is not None
    assert (event.gpu_instance, event.xid) == (made.id, 31)


@pytest.mark.parametrize("name", names())
def test_profiles_are_named_as_nvidia_smi_names_them(name: str) -> None:
    for kind in load(name).gpu_types.values():
        for row in kind.mig.gi if kind.mig and kind.memory_mib else ():
            assert kind.memory_mib is not None
            assert profile_name(row.c, row.memory_mib, kind.memory_mib * 2**20, row.enum) == row.name


@pytest.mark.parametrize(
    ("slices", "gib", "total_mib", "name"),
    [
        (1, 10.75, 95830, "1g.12gb"),  # H100 NVL of 94 GB
        (1, 21.62, 95830, "1g.24gb"),
        (1, 17.5, 147456, "1g.18gb"),  # GH200 of 144 GB
        (1, 35.25, 147456, "1g.36gb"),
        (1, 23.12, 97887, "1g.24gb"),  # RTX PRO 6000
        (1, 5.81, 24576, "1g.6gb"),  # A30
    ],
)
def test_mig_profiles_of_unknown_gpus_are_named_by_their_memory(
    slices: int, gib: float, total_mib: int, name: str
) -> None:
    assert profile_name(slices, int(gib * 1024), total_mib * 2**20, 0) == name
