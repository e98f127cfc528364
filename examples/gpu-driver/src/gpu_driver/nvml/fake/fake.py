"""``FakeNvml``: answers for a profile's GPUs as NVML does for real ones, errors and all."""

import threading
import uuid as uuids
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from gpu_driver.nvml.backend import (
    ComputeInstance,
    ComputeInstanceProfile,
    ComputeMode,
    EventSet,
    GpuFacts,
    GpuInstance,
    GpuInstanceProfile,
    MigMode,
    Placement,
    RecoveryAction,
)
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.nvml.fake import mig_rules
from gpu_driver.nvml.fake.events import FakeEvents
from gpu_driver.nvml.fake.faults import Faults
from gpu_driver.nvml.fake.host_tree import render
from gpu_driver.nvml.fake.profile import EventType, GpuInstanceRow, GpuType, MigTable, Profile, ProfileGpu
from gpu_driver.nvml.fake.schedule import Schedule
from gpu_driver.nvml.fake.state import GpuState, NodeState, State
from gpu_driver.nvml.fake.state_files import show

_COMPUTE_PROFILES = 9
"""``NVML_COMPUTE_INSTANCE_PROFILE_COUNT``: ids from there on are none."""


class FakeNvml:
    """An :class:`~gpu_driver.nvml.backend.NvmlBackend` without GPUs.

    Args:
        profile: the GPUs.
        folder: of their state; two fakes with the same folder are the same node.
    """

    def __init__(self, profile: Profile, folder: Path) -> None:
        self.profile = profile

        def changed(state: NodeState) -> None:
            render(profile, state, folder / "host")
            show(profile, state, folder / "gpus")

        self.state = State(folder, first_state(profile), changed)
        self._faults = Faults(profile.faults, self.state, profile.timing)
        self._schedule = Schedule(profile, self.state)
        self._schedule.catch_up()
        self._gpus = {gpu.uuid: gpu for gpu in profile.gpus}
        self._opening = threading.Lock()
        self._is_open = False

    def driver_version(self) -> str:
        self._meet("nvmlSystemGetDriverVersion", None)
        return self.profile.driver_version

    def cuda_driver_version(self) -> tuple[int, int]:
        self._meet("nvmlSystemGetCudaDriverVersion", None)
        return self.profile.cuda_driver_version

    def gpus(self) -> Sequence[GpuFacts]:
        self._meet("nvmlDeviceGetCount", None)
        self._schedule.catch_up()
        state = self.state.read()
        there = [gpu for gpu in self._gpus.values() if _visible(state.gpus[gpu.uuid])]
        return [facts(gpu, self.profile.type_of(gpu)) for gpu in sorted(there, key=lambda gpu: gpu.pci)]

    def compute_mode(self, uuid: str) -> ComputeMode:
        return self._read("nvmlDeviceGetComputeMode", uuid).compute_mode

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        call = "nvmlDeviceSetComputeMode"
        with self._changing(call, uuid) as (_, gpu):
            known = self._type(uuid).compute_modes
            if gpu.mig_current or mode.name not in known:  # with MIG only its devices have a mode
                raise NvmlError(NvmlReturn.NOT_SUPPORTED, call, uuid)
            gpu.compute_mode = mode

    def mig_mode(self, uuid: str) -> MigMode:
        gpu = self._read("nvmlDeviceGetMigMode", uuid)
        self._table("nvmlDeviceGetMigMode", uuid)
        return MigMode(gpu.mig_current, gpu.mig_pending)

    def set_mig_mode(self, uuid: str, *, enabled: bool) -> None:
        call = "nvmlDeviceSetMigMode"
        why_pending: NvmlReturn | None = None
        with self._changing(call, uuid) as (_, gpu):
            table = self._table(call, uuid)
            gpu.mig_pending = enabled
            if enabled == gpu.mig_current:
                pass
            elif gpu.instances and not enabled:
                why_pending = NvmlReturn.IN_USE
            elif table.toggle == "reset":
                why_pending = NvmlReturn.RESET_REQUIRED
            else:
                gpu.mig_current = enabled
                if enabled:
                    gpu.compute_mode = ComputeMode.DEFAULT
        if why_pending is not None:
            raise NvmlError(why_pending, call, uuid)

    def gpu_instance_profiles(self, uuid: str) -> Sequence[GpuInstanceProfile]:
        self._read("nvmlDeviceGetGpuInstanceProfileInfoV", uuid)
        return [profile_of(row) for row in self._table("nvmlDeviceGetGpuInstanceProfileInfoV", uuid).gi]

    def compute_instance_profiles(self, uuid: str, gpu_instance: int) -> Sequence[ComputeInstanceProfile]:
        call = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"
        gpu = self._read(call, uuid)
        table = self._table(call, uuid)
        row = mig_rules.row_of(table, _instance(gpu, gpu_instance, call, uuid).profile_id)
        per_slice = row.sm // row.c
        return [
            ComputeInstanceProfile(
                id=cut.id,
                name=row.name if cut.c == row.c else f"{cut.c}c.{row.name}",
                slices=cut.c,
                multiprocessors=row.sm if cut.c == row.c else cut.sm or cut.c * per_slice,
                placements=mig_rules.compute_placements(cut),
            )
            for cut in mig_rules.compute_rows(table, row)
        ]

    def gpu_instances(self, uuid: str) -> Sequence[GpuInstance]:
        gpu = self._read("nvmlDeviceGetGpuInstances", uuid)
        self._table("nvmlDeviceGetGpuInstances", uuid)
        return sorted(gpu.instances, key=lambda made: made.id) if gpu.mig_current else []

    def create_gpu_instance(self, uuid: str, profile: int, placement: Placement) -> GpuInstance:
        call = "nvmlDeviceCreateGpuInstanceWithPlacement"
        with self._changing(call, uuid) as (_, gpu):
            table = self._table(call, uuid)
            _enabled(gpu, call, uuid)
            row = _row(table, profile, call, uuid)
            existing = [(mig_rules.row_of(table, made.profile_id), made.placement) for made in gpu.instances]
            if placement not in mig_rules.placements(row):
                raise NvmlError(NvmlReturn.INVALID_ARGUMENT, call, uuid)
            if not mig_rules.fits(table, row, placement.start, existing):
                raise NvmlError(NvmlReturn.INSUFFICIENT_RESOURCES, call, uuid)
            made = GpuInstance(_unused(gpu.instances, first=1), row.id, placement)
            gpu.instances.append(made)
        return made

    def create_compute_instance(
        self, uuid: str, gpu_instance: int, profile: int, placement: Placement | None = None
    ) -> ComputeInstance:
        call = "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
        with self._changing(call, uuid) as (node, gpu):
            table = self._table(call, uuid)
            instance = _instance(gpu, gpu_instance, call, uuid)
            row = mig_rules.row_of(table, instance.profile_id)
            cut = next((cut for cut in mig_rules.compute_rows(table, row) if cut.id == profile), None)
            if cut is None:
                known = profile < _COMPUTE_PROFILES
                raise NvmlError(NvmlReturn.NOT_SUPPORTED if known else NvmlReturn.INVALID_ARGUMENT, call, uuid)
            if placement is not None and placement not in mig_rules.compute_placements(cut):
                raise NvmlError(NvmlReturn.INVALID_ARGUMENT, call, uuid)
            occupied = [made.placement for made in instance.compute_instances]
            start = mig_rules.free_start(cut, placement.start if placement else None, occupied)
            if start is None:
                raise NvmlError(NvmlReturn.INSUFFICIENT_RESOURCES, call, uuid)
            gpu.made += 1
            made = ComputeInstance(
                id=_unused(instance.compute_instances, first=0),
                profile_id=profile,
                placement=Placement(start, cut.c),
                mig_uuid=f"MIG-{uuids.uuid5(uuids.NAMESPACE_OID, f'{uuid}/{node.boot}/{gpu.made}')}",
            )
            _put(gpu, instance, [*instance.compute_instances, made])
        return made

    def destroy_compute_instance(self, uuid: str, gpu_instance: int, compute_instance: int) -> None:
        call = "nvmlComputeInstanceDestroy"
        with self._changing(call, uuid) as (_, gpu):
            instance = _instance(gpu, gpu_instance, call, uuid)
            made = next((made for made in instance.compute_instances if made.id == compute_instance), None)
            if made is None:
                raise NvmlError(NvmlReturn.NOT_FOUND, call, uuid)
            if gpu.clients.get(made.mig_uuid):
                raise NvmlError(NvmlReturn.IN_USE, call, uuid)
            _put(gpu, instance, [other for other in instance.compute_instances if other != made])

    def destroy_gpu_instance(self, uuid: str, gpu_instance: int) -> None:
        call = "nvmlGpuInstanceDestroy"
        with self._changing(call, uuid) as (_, gpu):
            instance = _instance(gpu, gpu_instance, call, uuid)
            if instance.compute_instances:
                raise NvmlError(NvmlReturn.IN_USE, call, uuid)
            gpu.instances.remove(instance)

    def recovery_action(self, uuid: str) -> RecoveryAction:
        call = "nvmlDeviceGetFieldValues"
        found = self._read(call, uuid).recovery
        if "recoveryAction" not in self._type(uuid).event_types:
            raise NvmlError(NvmlReturn.NOT_SUPPORTED, call, uuid)
        return found

    def events(self, uuids: Sequence[str]) -> EventSet:
        types: dict[str, Sequence[EventType]] = {}
        for uuid in uuids:
            with suppress(NvmlError):
                self._read("nvmlDeviceRegisterEvents", uuid)
                types[uuid] = self._type(uuid).event_types
        unmonitored = tuple(uuid for uuid in uuids if not types.get(uuid))
        return FakeEvents(self.state, self._schedule, {uuid: types[uuid] for uuid in types if types[uuid]}, unmonitored)

    def close(self) -> None:
        """Have the next call open it again; no GPU is held."""
        self._is_open = False

    def released(self) -> AbstractContextManager[None]:
        self.close()
        return nullcontext()

    def _meet(self, call: str, gpu: ProfileGpu | None) -> None:
        """Open NVML where it is not, and let the call wait or fail where it is to.

        Raises:
            NvmlError: one of the two is to fail.
        """
        with self._opening:
            if not self._is_open:
                self._faults.meet("nvmlInitWithFlags", None)
                self._is_open = True
        self._faults.meet(call, gpu)

    def _type(self, uuid: str) -> GpuType:
        return self.profile.type_of(self._gpus[uuid])

    def _gpu(self, call: str, uuid: str) -> ProfileGpu:
        gpu = self._gpus.get(uuid)
        if gpu is None:
            raise NvmlError(NvmlReturn.NOT_FOUND, call, uuid)
        self._meet(call, gpu)
        return gpu

    def _read(self, call: str, uuid: str) -> GpuState:
        self._gpu(call, uuid)
        self._schedule.catch_up()
        return _there(self.state.read().gpus[uuid], call, uuid)

    @contextmanager
    def _changing(self, call: str, uuid: str) -> Iterator[tuple[NodeState, GpuState]]:
        self._gpu(call, uuid)
        with self.state.changing() as state:
            yield state, _there(state.gpus[uuid], call, uuid)

    def _table(self, call: str, uuid: str) -> MigTable:
        gpu = self._gpus.get(uuid)
        table = self.profile.type_of(gpu).mig if gpu else None
        if table is None:
            raise NvmlError(NvmlReturn.NOT_SUPPORTED if gpu else NvmlReturn.NOT_FOUND, call, uuid)
        return table


def first_state(profile: Profile) -> NodeState:
    """Return the GPUs before anybody has touched them, with the MIG instances of the profile."""
    state = NodeState()
    for gpu in profile.gpus:
        made = GpuState(mig_current=gpu.mig_mode, mig_pending=gpu.mig_mode)
        state.gpus[gpu.uuid] = made
        table = profile.type_of(gpu).mig
        for number, foreign in enumerate(gpu.foreign):
            if table is None:
                continue
            [row] = [row for row in table.gi if row.name == foreign.profile]
            [whole] = [cut for cut in mig_rules.compute_rows(table, row) if cut.c == row.c]
            mig_uuid = f"MIG-{uuids.uuid5(uuids.NAMESPACE_OID, f'{gpu.uuid}/foreign/{number}')}"
            compute = ComputeInstance(0, whole.id, Placement(0, whole.c), mig_uuid)
            made.instances.append(GpuInstance(number + 1, row.id, Placement(foreign.start, row.size), (compute,)))
    return state


def facts(gpu: ProfileGpu, kind: GpuType) -> GpuFacts:
    """Return what NVML returns for a GPU of a profile."""
    return GpuFacts(
        uuid=gpu.uuid,
        minor=gpu.minor,
        name=kind.name,
        brand=kind.brand,
        architecture=kind.architecture,
        compute_capability=kind.cuda_compute_capability,
        pci_bus_id=gpu.pci,
        pci_device_id=kind.pci_device_id,
        serial=gpu.serial,
        memory_bytes=None if kind.memory_mib is None else kind.memory_mib * 2**20,
        multiprocessors=kind.sms,
        addressing_mode=kind.addressing_mode,
        mig_capable=kind.mig is not None,
    )


def profile_of(row: GpuInstanceRow) -> GpuInstanceProfile:
    """Return what NVML returns for a MIG profile."""
    return GpuInstanceProfile(
        id=row.id,
        name=row.name,
        slices=row.c,
        memory_mib=row.memory_mib,
        multiprocessors=row.sm,
        copy_engines=row.ce,
        decoders=row.dec,
        encoders=row.enc,
        jpeg_engines=row.jpeg,
        ofa_engines=row.ofa,
        placements=mig_rules.placements(row),
    )


def _visible(gpu: GpuState) -> bool:
    return gpu.driver == "nvidia" and not gpu.lost


def _there(gpu: GpuState, call: str, uuid: str) -> GpuState:
    if gpu.driver != "nvidia":
        raise NvmlError(NvmlReturn.NOT_FOUND, call, uuid)
    if gpu.lost:
        raise NvmlError(NvmlReturn.GPU_IS_LOST, call, uuid)
    return gpu


def _row(table: MigTable, profile: int, call: str, uuid: str) -> GpuInstanceRow:
    try:
        return mig_rules.row_of(table, profile)
    except KeyError:
        raise NvmlError(NvmlReturn.INVALID_ARGUMENT, call, uuid) from None


def _enabled(gpu: GpuState, call: str, uuid: str) -> None:
    if not gpu.mig_current:
        raise NvmlError(NvmlReturn.NOT_SUPPORTED, call, uuid)


def _instance(gpu: GpuState, number: int, call: str, uuid: str) -> GpuInstance:
    _enabled(gpu, call, uuid)
    for instance in gpu.instances:
        if instance.id == number:
            return instance
    raise NvmlError(NvmlReturn.NOT_FOUND, call, uuid)


def _put(gpu: GpuState, instance: GpuInstance, compute: Sequence[ComputeInstance]) -> None:
    ordered = tuple(sorted(compute, key=lambda made: made.id))
    gpu.instances[gpu.instances.index(instance)] = replace(instance, compute_instances=ordered)


def _unused(made: Sequence[GpuInstance | ComputeInstance], *, first: int) -> int:
    """Return the lowest id that is free: NVML gives them again."""
    return min(set(range(first, first + len(made) + 1)) - {other.id for other in made})
