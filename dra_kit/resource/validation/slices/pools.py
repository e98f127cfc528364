"""Rules for a pool as a whole: the API server sees single slices only, the allocator skips a pool that breaks one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dra_kit.resource import v1
from dra_kit.resource.fielderror import FieldError, duplicate, not_found, quote


def validate_pool(slices: Sequence[v1.ResourceSlice]) -> list[FieldError]:
    """Check unique names of devices and counter sets, and counter references, across all slices of a pool.

    A pool that breaks one of these rules is accepted by the API server and ignored by the scheduler
    (k8s.io/dynamic-resource-allocation 0.37, ``resourceslice/validation.go``). Paths begin with ``slices[i].``.
    """
    errors = []
    sets: dict[str, v1.CounterSet] = {}
    for i, resource_slice in enumerate(slices):
        for j, counter_set in enumerate(resource_slice.spec.shared_counters):
            if counter_set.name in sets:
                path = f"slices[{i}].spec.sharedCounters[{j}].name"
                errors.append(_repeated("counter sets", path, counter_set.name, resource_slice.spec.pool.name))
            sets[counter_set.name] = counter_set
    names: set[str] = set()
    for i, resource_slice in enumerate(slices):
        for j, device in enumerate(resource_slice.spec.devices):
            path = f"slices[{i}].spec.devices[{j}]"
            if device.name in names:
                errors.append(_repeated("devices", f"{path}.name", device.name, resource_slice.spec.pool.name))
            names.add(device.name)
            errors += _validate_references(device, sets, f"{path}.consumesCounters")
    return errors


def _repeated(what: str, path: str, name: str, pool: str) -> FieldError:
    rule = f"{what} must be unique in"
    return replace(duplicate(path, name, f"{rule} pool {quote(pool)}"), author_detail=f"{rule} a pool")


def _validate_references(device: v1.Device, sets: Mapping[str, v1.CounterSet], path: str) -> list[FieldError]:
    errors = []
    for i, entry in enumerate(device.consumes_counters):
        counter_set = sets.get(entry.counter_set)
        if counter_set is None:
            detail = f"the pool has no such counter set, but device {quote(device.name)} refers to it"
            errors.append(not_found(f"{path}[{i}].counterSet", entry.counter_set, detail))
            continue
        for name in entry.counters:
            if name not in counter_set.counters:
                owner = f"counter set {quote(counter_set.name)}"
                detail = f"{owner} has no such counter, but device {quote(device.name)} refers to it"
                errors.append(not_found(f"{path}[{i}].counters[{name}]", name, detail))
    return errors
