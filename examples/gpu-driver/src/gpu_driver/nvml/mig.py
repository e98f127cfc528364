"""MIG with the real NVML: profiles, and the instances that exist."""

import math
from ctypes import byref, c_uint
from typing import Any

from gpu_driver.nvml.backend import (
    ComputeInstance,
    ComputeInstanceProfile,
    GpuInstance,
    GpuInstanceProfile,
    Placement,
)
from gpu_driver.nvml.binding import pynvml
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.nvml.facts import gpu_instance_rows
from gpu_driver.nvml.session import Session

_SUFFIXES = {0x7: "+me", 0x8: "+me", 0xA: "+gfx", 0xB: "+gfx", 0xC: "+gfx", 0xD: "-me", 0xE: "-me"} | {
    0xF: "+me.all",
    0x10: "+me.all",
    0x11: "+gfx",
}
"""What ``nvidia-smi`` writes behind a profile's name, by ``NVML_GPU_INSTANCE_PROFILE_…``."""

_SHARED_ENGINES = 0
_PLAIN = range(0x7)
"""Compute profiles that differ by compute slices alone; the rest are for media engines and NVLink."""
_ALL = range(0x9)


def profile_name(slices: int, memory_mib: int, total_bytes: int, number: int) -> str:
    """``1g.10gb+me``: memory is the share of the GPU's in eighths, of its size in whole GiB, as nvidia-smi rounds.

    Args:
        slices: of compute.
        memory_mib: of the profile.
        total_bytes: of the GPU's memory.
        number: ``NVML_GPU_INSTANCE_PROFILE_…``.
    """
    eighths = math.ceil(memory_mib * 2**20 / total_bytes * 8) if total_bytes else 0
    gib = math.floor(eighths * math.ceil(total_bytes / 2**30) / 8 + 0.5)
    return f"{slices}g.{gib}gb{_SUFFIXES.get(number, '')}"


class Mig:
    """The MIG calls that take more than one function of NVML.

    Args:
        session: with NVML.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def profiles(self, uuid: str) -> list[GpuInstanceProfile]:
        """Of a GPU, whether MIG is on or not."""
        self._session.on(uuid, "nvmlDeviceGetMigMode")  # no profiles and no MIG are two things
        rows = gpu_instance_rows(self._session, uuid)
        total = self._total(uuid, rows)
        return [
            GpuInstanceProfile(
                id=row.id,
                name=profile_name(row.sliceCount, row.memorySizeMB, total, number),
                slices=row.sliceCount,
                memory_mib=row.memorySizeMB,
                multiprocessors=row.multiprocessorCount,
                copy_engines=row.copyEngineCount,
                decoders=row.decoderCount,
                encoders=row.encoderCount,
                jpeg_engines=row.jpegCount,
                ofa_engines=row.ofaCount,
                placements=self._places(
                    uuid,
                    "nvmlDeviceGetGpuInstancePossiblePlacements",
                    self._session.handle(uuid),
                    row.id,
                    pynvml.c_nvmlGpuInstancePlacement_t,
                ),
            )
            for number, row in rows
        ]

    def compute_profiles(self, uuid: str, gpu_instance: int) -> list[ComputeInstanceProfile]:
        """Of a GPU instance that exists."""
        parent = self.handle(uuid, gpu_instance)
        own = self._session.call("nvmlGpuInstanceGetInfo", parent, subject=uuid).profileId
        name = next((profile.name for profile in self.profiles(uuid) if profile.id == own), "")
        rows = self._compute_rows(uuid, parent, _PLAIN)
        most = max((row.sliceCount for row in rows), default=0)
        return [
            ComputeInstanceProfile(
                id=row.id,
                name=name if row.sliceCount == most else f"{row.sliceCount}c.{name}",
                slices=row.sliceCount,
                multiprocessors=row.multiprocessorCount,
                placements=self._places(
                    uuid,
                    "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
                    parent,
                    row.id,
                    pynvml.c_nvmlComputeInstancePlacement_t,
                ),
            )
            for row in rows
        ]

    def instances(self, uuid: str) -> list[GpuInstance]:
        """Those that exist, by id."""
        if not self._session.on(uuid, "nvmlDeviceGetMigMode")[0]:
            return []
        gpu, uuids = self._session.handle(uuid), self._mig_uuids(uuid)
        found = []
        for _, row in gpu_instance_rows(self._session, uuid):
            made = self._handles(uuid, "nvmlDeviceGetGpuInstances", gpu, row, pynvml.c_nvmlGpuInstance_t)
            found += [self._instance(uuid, handle, uuids) for handle in made]
        return sorted(found, key=lambda instance: instance.id)

    def create(self, uuid: str, profile: int, placement: Placement) -> GpuInstance:
        """Make a GPU instance there."""
        place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        made = self._session.on(uuid, "nvmlDeviceCreateGpuInstanceWithPlacement", profile, byref(place))
        return self._instance(uuid, made, {})

    def create_compute(
        self, uuid: str, gpu_instance: int, profile: int, placement: Placement | None
    ) -> ComputeInstance:
        """Make a compute instance in a GPU instance."""
        parent = self.handle(uuid, gpu_instance)
        if placement is None:
            made = self._session.call("nvmlGpuInstanceCreateComputeInstance", parent, profile, subject=uuid)
        else:
            place = pynvml.c_nvmlComputeInstancePlacement_t(placement.start, placement.size)
            name = "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
            made = self._session.call(name, parent, profile, byref(place), subject=uuid)
        info = self._session.call("nvmlComputeInstanceGetInfo", made, subject=uuid)
        known = self._mig_uuids(uuid).get((gpu_instance, info.id))
        if known is None:
            raise NvmlError(NvmlReturn.NOT_FOUND, "nvmlDeviceGetMigDeviceHandleByIndex", uuid)
        return _compute(info, known)

    def handle(self, uuid: str, gpu_instance: int) -> Any:
        """Return the handle of a GPU instance; it is not cached, since others destroy instances."""
        return self._session.on(uuid, "nvmlDeviceGetGpuInstanceById", gpu_instance)

    def _total(self, uuid: str, rows: list[tuple[int, Any]]) -> int:
        """Bytes of the GPU's memory; of its largest profile where processor and GPU share it."""
        memory = self._session.supported(uuid, "nvmlDeviceGetMemoryInfo")
        if memory is not None:
            return int(memory.total)
        return int(max((row.memorySizeMB for _, row in rows), default=0)) << 20

    def _instance(self, uuid: str, handle: Any, uuids: dict[tuple[int, int], str]) -> GpuInstance:
        info = self._session.call("nvmlGpuInstanceGetInfo", handle, subject=uuid)
        infos = self._compute_infos(uuid, handle)
        compute = [_compute(part, uuids[info.id, part.id]) for part in infos if (info.id, part.id) in uuids]
        place = Placement(info.placement.start, info.placement.size)
        return GpuInstance(info.id, info.profileId, place, tuple(sorted(compute, key=lambda part: part.id)))

    def _compute_infos(self, uuid: str, parent: Any) -> list[Any]:
        found = []
        for row in self._compute_rows(uuid, parent, _ALL):
            name, kind = "nvmlGpuInstanceGetComputeInstances", pynvml.c_nvmlComputeInstance_t
            made = self._handles(uuid, name, parent, row, kind)
            found += [self._session.call("nvmlComputeInstanceGetInfo", handle, subject=uuid) for handle in made]
        return found

    def _handles(self, uuid: str, name: str, owner: Any, row: Any, kind: Any) -> list[Any]:
        """Return handles of the instances of one profile that exist, in a GPU or in a GPU instance."""
        handles, count = (kind * max(row.instanceCount, 1))(), c_uint(0)
        self._session.call(name, owner, row.id, handles, byref(count), subject=uuid)
        return list(handles[: count.value])

    def _compute_rows(self, uuid: str, parent: Any, numbers: range) -> list[Any]:
        rows = []
        for number in numbers:
            name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
            try:
                rows.append(self._session.call(name, parent, number, _SHARED_ENGINES, 1, subject=uuid))
            except NvmlError as error:
                if error.code not in {NvmlReturn.NOT_SUPPORTED, NvmlReturn.INVALID_ARGUMENT}:
                    raise
        return rows

    def _places(self, uuid: str, name: str, owner: Any, profile: int, kind: Any) -> tuple[Placement, ...]:
        """Places of one profile, in a GPU or in a GPU instance: NVML returns how many there are, then which."""
        count = c_uint(0)
        self._session.call(name, owner, profile, None, byref(count), subject=uuid)
        places = (kind * max(count.value, 1))()
        self._session.call(name, owner, profile, places, byref(count), subject=uuid)
        return tuple(Placement(place.start, place.size) for place in places[: count.value])

    def _mig_uuids(self, uuid: str) -> dict[tuple[int, int], str]:
        """UUIDs of MIG devices, by the ids of GPU instance and compute instance."""
        found: dict[tuple[int, int], str] = {}
        for index in range(self._session.on(uuid, "nvmlDeviceGetMaxMigDeviceCount")):
            try:
                device = self._session.on(uuid, "nvmlDeviceGetMigDeviceHandleByIndex", index)
                parent = self._session.call("nvmlDeviceGetGpuInstanceId", device, subject=uuid)
                own = self._session.call("nvmlDeviceGetComputeInstanceId", device, subject=uuid)
                found[parent, own] = self._session.call("nvmlDeviceGetUUID", device, subject=uuid)
            except NvmlError as error:
                if error.code is not NvmlReturn.NOT_FOUND:  # indices have gaps
                    raise
        return found


def _compute(info: Any, uuid: str) -> ComputeInstance:
    return ComputeInstance(info.id, info.profileId, Placement(info.placement.start, info.placement.size), uuid)
