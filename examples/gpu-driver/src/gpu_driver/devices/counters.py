"""Counters: what the devices of one GPU have in common, so that the scheduler never gives two of them one slice."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import dra_kit as dra

from gpu_driver.devices.attributes import binary, profile_amounts
from gpu_driver.nvml.backend import GpuInstanceProfile, Placement

Counters = Mapping[str, dra.Quantity]


def set_name(minor: int) -> str:
    """Of a GPU's counters."""
    return f"gpu-{minor}-counter-set"


def amounts(profile: GpuInstanceProfile, placement: Placement) -> Counters:
    """Return what a MIG device takes: engines, memory, and the very slices that it is on."""
    return {**_engines(profile), **{f"memory-slice-{index}": dra.Quantity(1) for index in placement.slices}}


def whole(profiles: Sequence[GpuInstanceProfile]) -> Counters:
    """All that there is: the most that any profile takes of each, and every slice.

    A GPU without MIG has one counter, which its modes of use exclude each other by.
    """
    if not profiles:
        return {"mode": dra.Quantity(1)}
    found: dict[str, dra.Quantity] = {}
    for profile in profiles:
        for name, amount in _engines(profile).items():
            found[name] = max(amount, found.get(name, amount))
    last = max(place.slices.stop for profile in profiles for place in profile.placements)
    return {**found, **{f"memory-slice-{index}": dra.Quantity(1) for index in range(last)}}


def without(counters: Counters, taken: Iterable[Counters]) -> Counters:
    """Return what is left of the counters beside partitions that this driver has not made."""
    left = {name: amount.as_decimal for name, amount in counters.items()}
    for part in taken:
        for name, amount in part.items():
            left[name] = max(left.get(name, Decimal(0)) - amount.as_decimal, Decimal(0))
    return {
        name: binary(int(amount)) if name == "memory" else dra.Quantity(int(amount)) for name, amount in left.items()
    }


def consumption(minor: int, counters: Counters) -> list[dra.DeviceCounterConsumption]:
    """As a device declares it."""
    return [dra.DeviceCounterConsumption(counter_set=set_name(minor), counters=counters)]


def _engines(profile: GpuInstanceProfile) -> dict[str, dra.Quantity]:
    return {name.replace("_", "-"): amount for name, amount in profile_amounts(profile).items()}
