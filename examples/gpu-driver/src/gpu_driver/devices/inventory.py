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
from gpu_driver.devices.discovered import Discovered, DiscoveredGpu
from gpu_driver.devices.gpu import Gpu, Kind, Partition
from gpu_driver.nvml.backend import ComputeInstance, GpuInstance, GpuInstanceProfile, Placement
from gpu_driver.settings import Settings

Capacity = dict[str, dra.Quantity | dra.DeviceCapacity]

_MIB = dra.Quantity("1Mi")


def inventory(found: Discovered, settings: Settings) -> dra.Inventory[Gpu]:
    """Everything that claims can get: GPU by GPU, the whole one before its parts, and last what monitors them.

    The order is the scheduler's order of preference, and the same each time.
    """
    makers = [_Maker(gpu, found.versions, settings) for gpu in found.gpus]
    devices: list[Gpu] = []
    sets: list[dra.CounterSet] = []
    for maker in makers:
        made = list(maker.devices())
        devices += made
        if any(device.consumes_counters for device in made):
            sets.append(dra.CounterSet(name=counters.set_name(maker.facts.minor), counters=maker.all_counters()))
    if settings.monitor:
        devices += [maker.monitor() for maker in makers]
    return dra.Inventory(pools=[dra.Pool(devices=devices, counter_sets=sets)])


class _Maker:
    """Makes the devices of one GPU.

    Args:
        gpu: the GPU that NVML returned.
        versions: of its driver.
        settings: what is offered of it.
    """

    def __init__(self, gpu: DiscoveredGpu, versions: Versions, settings: Settings) -> None:
        self.facts = gpu.facts
        self._location = gpu.location
        self._mig = gpu.mig
        self._dynamic = gpu.mig if settings.dynamic_mig else None
        self._versions = versions
        self._settings = settings

    def devices(self) -> Iterator[Gpu]:
        """All but what monitors it."""
        if self._mig is None or mig.can_be_whole(self._mig, dynamic=self._settings.dynamic_mig):
            yield self._whole()
            if self._settings.passthrough:
                yield self._passthrough()
        if self._mig is not None and (self._dynamic is not None or self._mig.enabled):
            yield from self._existing(self._mig)  # what exists is taken before anything is made
        if self._dynamic is not None and mig.can_be_divided(self._dynamic):
            for profile, placement in mig.offered(self._dynamic):
                yield self._partition(profile, placement)
                if self._settings.shared_mig and profile.slices > 1:
                    yield self._partition(profile, placement, shared=True)

    def monitor(self) -> Gpu:
        """For management pods: a claim with admin access consumes counters too (kubernetes#140729), this takes none."""
        return self._device(kind="monitor", name=names.monitor(self.facts.minor), capacity={}, takes=None)

    def all_counters(self) -> counters.Counters:
        """Return the counters that the devices of this GPU share."""
        if self._dynamic is None:
            return counters.whole(())
        foreign = [
            counters.amounts(profile, instance.placement)
            for instance in self._dynamic.foreign
            if (profile := mig.profile_of(instance, self._dynamic.profiles)) is not None
        ]
        return counters.without(counters.whole(self._dynamic.profiles), foreign)

    def _whole(self) -> Gpu:
        amounts = whole_capacity(self.facts)
        if self._dynamic is not None:
            amounts |= most_engines(self._dynamic.profiles)
        capacity: Capacity = {**amounts}
        # what has no figure for its memory cannot be divided, but may be shared without limit
        mode = self._settings.shared_memory
        shared = mode == "unlimited" or (mode == "memory" and "memory" in capacity)
        if shared:
            capacity = _not_divided(amounts)
            if "memory" in amounts:
                capacity["memory"] = _divided(amounts["memory"], counted=mode == "memory")
        name = names.whole(self.facts.minor)
        return self._device(kind="gpu", name=name, capacity=capacity, takes=self.all_counters(), shared=shared)

    def _passthrough(self) -> Gpu:
        seen = self._location.bar_bytes
        return self._device(
            kind="vfio",
            name=names.passthrough(self.facts.minor),
            capacity={} if seen is None else {"addressableMemory": binary(seen)},
            takes=self.all_counters(),
            more=passed_through(self.facts, self._location),
        )

    def _partition(self, profile: GpuInstanceProfile, placement: Placement, *, shared: bool = False) -> Gpu:
        """One that is made when it is allocated."""
        name = names.partition(self.facts.minor, profile.name, profile.id, placement)
        capacity = partition_capacity(self.facts, profile)
        return self._device(
            kind="mig",
            name=f"{name}-shared" if shared else name,
            capacity=_shared(capacity, profile.slices) if shared else {**capacity},
            takes=counters.amounts(profile, placement),
            more={"parentUUID": self.facts.uuid, "profile": profile.name},
            partition=Partition(
                profile=profile.name,
                profile_id=profile.id,
                start=placement.start,
                size=placement.size,
                slices=profile.slices,
                shared=shared,
            ),
            shared=shared,
        )

    def _existing(self, found: mig.Mig) -> Iterator[Gpu]:
        for instance in sorted(found.foreign, key=lambda instance: instance.placement.start):
            profile = mig.profile_of(instance, found.profiles)
            if profile is not None:
                for compute in sorted(instance.compute_instances, key=lambda compute: compute.placement.start):
                    yield self._existing_part(profile, instance, compute)

    def _existing_part(self, profile: GpuInstanceProfile, instance: GpuInstance, compute: ComputeInstance) -> Gpu:
        """Return an existing MIG device; it consumes no counters, because no other device is offered at its place."""
        place, slices = instance.placement, compute.placement.size
        whole = slices == profile.slices
        name = names.partition(self.facts.minor, profile.name, profile.id, place)
        shown = profile.name if whole else f"{slices}c.{profile.name}"
        part = replace(profile, multiprocessors=profile.multiprocessors * slices // profile.slices)
        memory_slices = {f"memorySlice{index}": dra.Quantity(1) for index in place.slices}
        return self._device(
            kind="mig",
            name=name if whole else names.part(name, compute.placement.start),
            capacity={**partition_capacity(self.facts, part), **memory_slices},
            takes=None,
            more={"parentUUID": self.facts.uuid, "profile": shown, "uuid": compute.mig_uuid},
            partition=Partition(
                profile=shown,
                profile_id=profile.id,
                start=place.start,
                size=place.size,
                slices=slices,
                mig_uuid=compute.mig_uuid,
                gpu_instance=instance.id,
                compute_instance=compute.id,
            ),
        )

    def _device(
        self,
        *,
        kind: Kind,
        name: str,
        capacity: Capacity,
        takes: counters.Counters | None,
        more: Mapping[str, Value] | None = None,
        partition: Partition | None = None,
        shared: bool = False,
    ) -> Gpu:
        facts = self.facts
        own: dict[str, Value] = {"type": kind, **({} if kind == "mig" else {"uuid": facts.uuid}), **(more or {})}
        # devices of a GPU that exclude each other; that is what counters are for
        excluding = self._settings.passthrough or self._dynamic is not None
        return Gpu(
            name=name,
            attributes={**own, **common(facts, self._versions, self._location)},
            capacity=capacity,
            consumes_counters=counters.consumption(facts.minor, takes) if excluding and takes is not None else [],
            allow_multiple_allocations=shared or None,
            kind=kind,
            uuid=facts.uuid,
            minor=facts.minor,
            pci_bus_id=facts.pci_bus_id,
            compute_capability=facts.compute_capability,
            live_mig=self._dynamic is not None and self._dynamic.live,
            partition=partition,
        )


def _divided(memory: dra.Quantity, *, counted: bool) -> dra.DeviceCapacity:
    """Return a capacity of which each claim requests a part; nothing enforces it.

    Args:
        memory: of the GPU.
        counted: a claim without request has all of it; else it has none, and any number of such claims fit.
    """
    most = dra.Quantity(f"{int(memory.as_decimal) // 2**20}Mi")
    none = dra.Quantity(0)
    return dra.DeviceCapacity(
        value=memory,
        request_policy=dra.CapacityRequestPolicy(
            default=most if counted else none,
            valid_range=dra.CapacityRequestPolicyRange(min=_MIB if counted else none, max=most, step=_MIB),
        ),
    )


def _not_divided(capacity: Mapping[str, dra.Quantity]) -> Capacity:
    """Amounts that shares do not use up: each of them has the whole GPU's cores."""
    none = dra.Quantity(0)
    policy = dra.CapacityRequestPolicy(default=none, valid_values=[none])
    return {name: dra.DeviceCapacity(value=amount, request_policy=policy) for name, amount in capacity.items()}


def _shared(capacity: Mapping[str, dra.Quantity], slices: int) -> Capacity:
    """Of a partition that is shared each claim has compute slices of its own; all see the whole of its memory."""
    sizes = [dra.Quantity(size) for size in mig.COMPUTE_SIZES if size <= slices]
    policy = dra.CapacityRequestPolicy(default=sizes[0], valid_values=sizes)
    compute = dra.DeviceCapacity(value=dra.Quantity(slices), request_policy=policy)
    return {**_not_divided(capacity), "computeSlices": compute}
