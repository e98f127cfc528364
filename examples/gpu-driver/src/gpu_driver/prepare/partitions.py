"""Partitions: found where they exist and stay, made where they are allocated."""

from typing import Any

import dra_kit as dra

from gpu_driver.devices.gpu import Gpu, Partition
from gpu_driver.effects.mig.compute_instance import CreateComputeInstance
from gpu_driver.effects.mig.gpu_instance import CreateGpuInstance
from gpu_driver.effects.mig.mode import SetMigMode
from gpu_driver.hardware import Hardware
from gpu_driver.prepare import edits

Allocated = dra.AllocatedDevice[Any, Gpu]


def handle(hardware: Hardware, claim: dra.Claim, device: Allocated) -> tuple[str, list[dra.DeviceNode]]:
    """Make the partition if there is none; return its UUID and the device files that lead to it.

    Raises:
        PrepareError: it cannot be made, or is not there (yet).
    """
    gpu = device.advertised
    place = gpu.partition
    if place is None:
        raise dra.PermanentError(f"{device.name} is not a partition; request one of the class mig.nvidia.com")
    if place.mig_uuid is not None and place.gpu_instance is not None and place.compute_instance is not None:
        return place.mig_uuid, edits.partition(hardware, gpu, place.gpu_instance, place.compute_instance)
    if gpu.live_mig:
        device.ensure(SetMigMode(uuid=gpu.uuid, enabled=True)).result()
    parent = CreateGpuInstance(
        uuid=gpu.uuid, profile=place.profile, profile_id=place.profile_id, start=place.start, size=place.size
    )
    device.ensure(parent).result()
    made = device.ensure(_compute(claim, device, parent, place)).result()
    return made.mig_uuid, edits.partition(hardware, gpu, made.gpu_instance, made.compute_instance)


def _compute(claim: dra.Claim, device: Allocated, parent: CreateGpuInstance, place: Partition) -> CreateComputeInstance:
    if not place.shared:
        return CreateComputeInstance(parent=parent, slices=place.slices)
    wanted = device.consumed_capacity.get("computeSlices", dra.Quantity(1))
    return CreateComputeInstance(parent=parent, slices=int(wanted.as_decimal), owner=f"{claim.uid}-{device.share_id}")
