"""Distribution of a pool's devices and counter sets over slices."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dra_kit.errors import ConfigurationError
from dra_kit.resource import v1
from dra_kit.resource.slices.desired import DesiredPool
from dra_kit.resource.validation.slices.counters import COUNTER_SETS_PER_SLICE_MAX
from dra_kit.resource.validation.slices.devices import uses_advanced_features
from dra_kit.resource.validation.slices.slices import ADVANCED_DEVICES_MAX, DEVICES_MAX, max_devices


class SliceContent(Struct, frozen=True):
    """What one slice holds."""

    devices: tuple[v1.Device, ...] = ()
    counter_sets: tuple[v1.CounterSet, ...] = ()


def pack(pool: DesiredPool, *, separate_counter_slices: bool) -> tuple[SliceContent, ...]:
    """Split a pool into slices that the API server accepts, in order; at least one.

    Slices are filled from the front and counter sets come first, so that a device added at the end changes the last
    slice only.

    Raises:
        ConfigurationError: counter sets and devices must share one slice (Kubernetes 1.34) and do not fit.
    """
    if pool.counter_sets and not separate_counter_slices:
        return (_pack_together(pool),)
    step = COUNTER_SETS_PER_SLICE_MAX
    contents = [
        SliceContent(counter_sets=pool.counter_sets[i : i + step]) for i in range(0, len(pool.counter_sets), step)
    ]
    contents += [SliceContent(devices=devices) for devices in _split(pool.devices)]
    return tuple(contents) or (SliceContent(),)


def _split(devices: Sequence[v1.Device]) -> list[tuple[v1.Device, ...]]:
    slices: list[list[v1.Device]] = []
    limit = 0
    for device in devices:
        new_limit = ADVANCED_DEVICES_MAX if uses_advanced_features(device) else DEVICES_MAX
        if slices and len(slices[-1]) < min(limit, new_limit):
            slices[-1].append(device)
            limit = min(limit, new_limit)
        else:
            slices.append([device])
            limit = new_limit
    return [tuple(item) for item in slices]


def _pack_together(pool: DesiredPool) -> SliceContent:
    limit = max_devices(pool.devices)
    if len(pool.devices) > limit or len(pool.counter_sets) > COUNTER_SETS_PER_SLICE_MAX:
        raise ConfigurationError(
            f"pool {pool.name!r} with {len(pool.devices)} devices and {len(pool.counter_sets)} counter sets: before "
            f"Kubernetes 1.35 they must fit into one ResourceSlice of {limit} devices and "
            f"{COUNTER_SETS_PER_SLICE_MAX} counter sets; make several pools of it or upgrade the cluster",
            code="counters-need-one-slice",
        )
    return SliceContent(devices=pool.devices, counter_sets=pool.counter_sets)
