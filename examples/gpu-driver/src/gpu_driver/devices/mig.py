"""MIG devices: those that exist and stay, and those that are made when they are allocated."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_driver.nvml.backend import GpuInstance, GpuInstanceProfile, Placement

COMPUTE_SIZES = (1, 2, 3, 4, 7)
"""Compute slices that a compute instance may have (MIG user guide, "Compute instances")."""


@dataclass(frozen=True, slots=True)
class Mig:
    """The MIG state of one GPU, as NVML returned it.

    Attributes:
        enabled: whether the GPU is divided now.
        live: whether that can be changed without a reset (Hopper and newer).
        profiles: every way to divide it.
        foreign: instances that this driver has not made: an administrator's, or all there are with static MIG.
    """

    enabled: bool
    live: bool
    profiles: tuple[GpuInstanceProfile, ...]
    foreign: tuple[GpuInstance, ...]


def offered(mig: Mig) -> Iterable[tuple[GpuInstanceProfile, Placement]]:
    """Yield what may be made when it is allocated: every profile in every place that no foreign instance is on.

    Of profiles that differ by media engines alone (``+me``) none is made: which one gets the engines is decided by an
    administrator, who makes it by hand.
    """
    occupied = {index for instance in mig.foreign for index in instance.placement.slices}
    for profile in mig.profiles:
        if "+" in profile.name:
            continue
        for placement in profile.placements:
            if not occupied & set(placement.slices):
                yield profile, placement


def can_be_divided(mig: Mig) -> bool:
    """Whether a partition can be made without anybody resetting the GPU."""
    return mig.enabled or mig.live


def can_be_whole(mig: Mig, *, dynamic: bool) -> bool:
    """Return whether the whole GPU can be allocated: it is not divided, or this driver removes its partitions.

    Args:
        mig: the MIG side of the GPU.
        dynamic: whether this driver may switch MIG mode.
    """
    return not mig.foreign and (not mig.enabled or (dynamic and mig.live))


def profile_of(instance: GpuInstance, profiles: Sequence[GpuInstanceProfile]) -> GpuInstanceProfile | None:
    """Its profile; None for one that this driver's NVML does not know."""
    return next((profile for profile in profiles if profile.id == instance.profile_id), None)
