"""``inventory``: the devices of a node, from what was found and what the settings offer. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import dra_kit as dra

from gpu_driver.devices import counters, mig, names
from gpu_driver.devices.attributes import (
    Value,
    Versions,
    binary,
    common,
    most_engines,
    partition_capacity,
    passed_through,
    whole_capacity,
)
from gpu_driver.devices.found import Found, FoundGpu
from gpu_driver.devices.gpu import Gpu, Kind, Partition
from gpu_driver.nvml.backend import ComputeInstance, GpuInstance, GpuInstanceProfile, Placement
from gpu_driver.settings import Settings

_MIB = dra.Quantity("1Mi")


def inventory(found: Found, settings: Settings) -> dra.Inventory[Gpu]:
    """Everything that claims can get: GPU by GPU, the whole one before its parts, and last what monitors them.

    The order is the scheduler's order of preference, and the same each time.
    """
    devices: list[Gpu] = []
    sets: list[dra.CounterSet] = []
    for gpu in found.gpus:
        made = list(_of(gpu, found.versions, settings))
        devices += made
        if any(device.consumes_counters for device in made):
            sets.append(dra.CounterSet(name=counters.set_name(gpu.facts.minor), counters=_all_counters(gpu, settings)))
    if settings.monitor:
        devices += [_monitor(gpu, found.versions, settings) for gpu in found.gpus]
    return dra.Inventory(pools=[dra.Pool(devices=devices, counter_sets=sets)])


def _of(gpu: FoundGpu, versions: Versions, settings: Settings) -> Iterator[Gpu]:
    part = gpu.mig if gpu.mig is not None and _is_cut(gpu, settings) else None
    if gpu.mig is None or mig.can_be_whole(gpu.mig, dynamic=settings.dynamic_mig):
        yield _whole(gpu, versions, settings)
        if settings.passthrough:
            yield _passthrough(gpu, versions, settings)
    if part is not None:
        # what exists is taken before anything is made
        for instance in sorted(part.foreign, key=lambda instance: instance.placement.start):
            known = mig.profile_of(instance, part.profiles)
            if known is not None:
                for compute in sorted(instance.compute_instances, key=lambda compute: compute.placement.start):
                    yield _existing(gpu, versions, known, instance, compute, settings)
        if settings.dynamic_mig and mig.can_be_cut(part):
            for profile, placement in mig.offered(part):
                yield _partition(gpu, versions, profile, placement, settings)
                if settings.shared_mig and profile.slices > 1:
                    yield _partition(gpu, versions, profile, placement, settings, shared=True)


def _is_cut(gpu: FoundGpu, settings: Settings) -> bool:
    return gpu.mig is not None and (settings.dynamic_mig or gpu.mig.enabled)


def _whole(gpu: FoundGpu, versions: Versions, settings: Settings) -> Gpu:
    amounts = whole_capacity(gpu.facts)
    if settings.dynamic_mig and gpu.mig is not None:
        amounts |= most_engines(gpu.mig.profiles)
    capacity: dict[str, dra.Quantity | dra.DeviceCapacity] = {**amounts}
    # what has no figure for its memory cannot be divided, but may be shared without limit
    shared = settings.shared_memory == "unlimited" or (settings.shared_memory == "memory" and "memory" in capacity)
    if shared:
        divided = {"memory": _divided(gpu, settings)} if "memory" in capacity else {}
        capacity = {**_not_divided(amounts), **divided}
    return _device(
        gpu,
        versions,
        kind="gpu",
        name=names.whole(gpu.facts.minor),
        capacity=capacity,
        takes=_all_counters(gpu, settings),
        settings=settings,
        shared=shared,
    )


def _divided(gpu: FoundGpu, settings: Settings) -> dra.DeviceCapacity:
    """Memory of which each claim says how much it uses; nothing holds it to that."""
    memory = whole_capacity(gpu.facts)["memory"]
    most = dra.Quantity(f"{int(memory.as_decimal) // 2**20}Mi")
    default = most if settings.shared_memory == "memory" else dra.Quantity(0)
    least = _MIB if settings.shared_memory == "memory" else dra.Quantity(0)
    return dra.DeviceCapacity(
        value=memory,
        request_policy=dra.CapacityRequestPolicy(
            default=default, valid_range=dra.CapacityRequestPolicyRange(min=least, max=most, step=_MIB)
        ),
    )


def _not_divided(capacity: Mapping[str, dra.Quantity]) -> dict[str, dra.Quantity | dra.DeviceCapacity]:
    """Amounts that shares do not use up: each of them has the whole GPU's cores."""
    none = dra.Quantity(0)
    return {
        name: dra.DeviceCapacity(
            value=amount, request_policy=dra.CapacityRequestPolicy(default=none, valid_values=[none])
        )
        for name, amount in capacity.items()
    }


def _cut(gpu: FoundGpu, profile: GpuInstanceProfile) -> dict[str, dra.Quantity | dra.DeviceCapacity]:
    """Of a partition that is shared each claim has compute slices of its own; all see the whole of its memory."""
    sizes = [dra.Quantity(size) for size in mig.COMPUTE_SIZES if size <= profile.slices]
    policy = dra.CapacityRequestPolicy(default=sizes[0], valid_values=sizes)
    slices = dra.DeviceCapacity(value=dra.Quantity(profile.slices), request_policy=policy)
    return {**_not_divided(partition_capacity(gpu.facts, profile)), "computeSlices": slices}


def _passthrough(gpu: FoundGpu, versions: Versions, settings: Settings) -> Gpu:
    seen = gpu.location.bar_bytes
    return _device(
        gpu,
        versions,
        kind="vfio",
        name=names.passthrough(gpu.facts.minor),
        capacity={} if seen is None else {"addressableMemory": binary(seen)},
        takes=_all_counters(gpu, settings),
        settings=settings,
        more=passed_through(gpu.facts, gpu.location),
    )


def _monitor(gpu: FoundGpu, versions: Versions, settings: Settings) -> Gpu:
    """For management pods: a claim with admin access consumes counters too (kubernetes#140729), this takes none."""
    name = names.monitor(gpu.facts.minor)
    return _device(gpu, versions, kind="monitor", name=name, capacity={}, takes=None, settings=settings)


def _partition(
    gpu: FoundGpu,
    versions: Versions,
    profile: GpuInstanceProfile,
    placement: Placement,
    settings: Settings,
    *,
    shared: bool = False,
) -> Gpu:
    place = Partition(
        profile=profile.name,
        profile_id=profile.id,
        start=placement.start,
        size=placement.size,
        slices=profile.slices,
        shared=shared,
    )
    return _device(
        gpu,
        versions,
        kind="mig",
        name=names.partition(gpu.facts.minor, profile.name, profile.id, placement) + ("-shared" if shared else ""),
        capacity=_cut(gpu, profile) if shared else {**partition_capacity(gpu.facts, profile)},
        takes=counters.amounts(profile, placement),
        settings=settings,
        more={"parentUUID": gpu.facts.uuid, "profile": profile.name},
        partition=place,
        shared=shared,
    )


def _existing(
    gpu: FoundGpu,
    versions: Versions,
    profile: GpuInstanceProfile,
    instance: GpuInstance,
    compute: ComputeInstance,
    settings: Settings,
) -> Gpu:
    """A MIG device that somebody has made; it takes no counters, since nothing else is offered where it is."""
    whole = compute.placement.size == profile.slices
    name = names.partition(gpu.facts.minor, profile.name, profile.id, instance.placement)
    shown = profile.name if whole else f"{compute.placement.size}c.{profile.name}"
    place = Partition(
        profile=shown,
        profile_id=profile.id,
        start=instance.placement.start,
        size=instance.placement.size,
        slices=compute.placement.size,
        mig_uuid=compute.mig_uuid,
        gpu_instance=instance.id,
        compute_instance=compute.id,
    )
    cores = profile.multiprocessors * compute.placement.size // profile.slices
    capacity = partition_capacity(gpu.facts, replace(profile, multiprocessors=cores))
    end = instance.placement.start + instance.placement.size
    slices = {f"memorySlice{index}": dra.Quantity(1) for index in range(instance.placement.start, end)}
    return _device(
        gpu,
        versions,
        kind="mig",
        name=name if whole else names.part(name, compute.placement.start),
        capacity={**capacity, **slices},
        takes=None,
        settings=settings,
        more={"parentUUID": gpu.facts.uuid, "profile": shown, "uuid": compute.mig_uuid},
        partition=place,
    )


def _device(
    gpu: FoundGpu,
    versions: Versions,
    *,
    kind: Kind,
    name: str,
    capacity: Mapping[str, dra.Quantity | dra.DeviceCapacity],
    takes: counters.Counters | None,
    settings: Settings,
    more: Mapping[str, Value] | None = None,
    partition: Partition | None = None,
    shared: bool = False,
) -> Gpu:
    facts = gpu.facts
    own: dict[str, Value] = {"type": kind, **({} if kind == "mig" else {"uuid": facts.uuid}), **(more or {})}
    counted = takes is not None and _has_siblings(gpu, settings)
    return Gpu(
        name=name,
        attributes={**own, **common(facts, versions, gpu.location)},
        capacity=capacity,
        consumes_counters=counters.consumption(facts.minor, takes) if counted and takes is not None else [],
        allow_multiple_allocations=shared or None,
        kind=kind,
        uuid=facts.uuid,
        minor=facts.minor,
        pci_bus_id=facts.pci_bus_id,
        compute_capability=facts.compute_capability,
        live_mig=settings.dynamic_mig and gpu.mig is not None and gpu.mig.live,
        partition=partition,
    )


def _has_siblings(gpu: FoundGpu, settings: Settings) -> bool:
    """Whether devices of this GPU exclude each other, which is what counters are for."""
    return settings.passthrough or (settings.dynamic_mig and gpu.mig is not None)


def _all_counters(gpu: FoundGpu, settings: Settings) -> counters.Counters:
    if gpu.mig is None or not settings.dynamic_mig:
        return counters.whole(())
    foreign = [
        counters.amounts(profile, instance.placement)
        for instance in gpu.mig.foreign
        if (profile := mig.profile_of(instance, gpu.mig.profiles)) is not None
    ]
    return counters.without(counters.whole(gpu.mig.profiles), foreign)
