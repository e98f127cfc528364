"""A whole ResourceSlice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_kit.resource import v1
from dra_kit.resource.fielderror import FieldError, declarative, duplicate, invalid, required, too_many
from dra_kit.resource.validation.fields.formats import driver_name, full_name, pool_name
from dra_kit.resource.validation.slices.attributes import validate_partition_type
from dra_kit.resource.validation.slices.counters import validate_counter_sets
from dra_kit.resource.validation.slices.devices import uses_advanced_features, validate_device
from dra_kit.resource.validation.slices.nodes import validate_node_name, validate_node_selector, validate_one_term
from dra_kit.resource.validation.slices.operations import validate_skipped_operations

DEVICES_MAX: Final = 128
ADVANCED_DEVICES_MAX: Final = 64
"""Devices of a slice as soon as one has taints, consumes counters or has a list attribute."""

_SCOPES: Final = "`nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection`"


def validate_slice(
    resource_slice: v1.ResourceSlice,
    *,
    separate_counter_slices: bool = True,
    old: v1.ResourceSlice | None = None,
    fractional_ranges: bool = False,
    devices_valid: bool = False,
) -> list[FieldError]:
    """Check all rules of the API server (Kubernetes 1.37) for the spec of one slice, in its paths and texts.

    Every gated field is validated as if its feature gate were on: what a server drops, it drops before.

    Args:
        resource_slice: the slice; its metadata is not looked at.
        separate_counter_slices: whether devices and counter sets exclude each other (Kubernetes 1.35 and newer).
        old: what the slice replaces: driver, pool and node stay, and what stays of the capacities and taints of a
            device is not looked at again.
        fractional_ranges: feature gate DRAFractionalCapacityRange, which no release up to 1.37 has on by default.
        devices_valid: each device has been found valid by itself, for this slice's choice of nodes.
    """
    spec = resource_slice.spec
    errors = driver_name(spec.driver, "spec.driver")
    errors += _validate_pool_struct(spec.pool)
    errors += _validate_immutable(spec, old.spec) if old else []
    errors += _validate_scope(spec)
    # an empty list that is written out counts as set
    if separate_counter_slices and {"devices", "shared_counters"} <= spec.model_fields_set:
        errors.append(invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed"))
    replaced = None if devices_valid else {device.name: device for device in (old.spec.devices if old else ())}
    errors += _validate_devices(spec, replaced, fractional_ranges=fractional_ranges)
    errors += validate_counter_sets(spec.shared_counters, "spec.sharedCounters")
    errors += _validate_partition_type(spec)
    return errors + validate_skipped_operations(spec.skip_node_operations, "spec.skipNodeOperations")


def max_devices(devices: tuple[v1.Device, ...]) -> int:
    """Return how many devices a slice with these devices may hold."""
    return ADVANCED_DEVICES_MAX if any(map(uses_advanced_features, devices)) else DEVICES_MAX


def _validate_pool_struct(pool: v1.ResourcePool) -> list[FieldError]:
    errors = pool_name(pool.name, "spec.pool.name")
    if pool.resource_slice_count <= 0:
        where = "spec.pool.resourceSliceCount"
        errors.append(invalid(where, pool.resource_slice_count, "must be greater than zero"))
    if pool.generation < 0:
        errors.append(invalid("spec.pool.generation", pool.generation, "must be greater than or equal to zero"))
    return errors


def _validate_immutable(spec: v1.ResourceSliceSpec, old: v1.ResourceSliceSpec) -> list[FieldError]:
    fields = (
        ("spec.pool.name", spec.pool.name, old.pool.name),
        ("spec.driver", spec.driver, old.driver),
        ("spec.nodeName", spec.node_name, old.node_name),
    )
    return [invalid(path, value, "field is immutable") for path, value, before in fields if value != before]


def _validate_scope(spec: v1.ResourceSliceSpec) -> list[FieldError]:
    errors, present = [], []
    if spec.node_name == "":
        errors.append(invalid("spec.nodeName", "", "must be either unset or set to a non-empty string"))
    elif spec.node_name is not None:
        present.append("`nodeName`")
        errors += validate_node_name(spec.node_name, "spec.nodeName")
    if spec.node_selector is not None:
        present.append("`nodeSelector`")
        errors += validate_node_selector(spec.node_selector, "spec.nodeSelector")
        errors += validate_one_term(spec.node_selector, "spec.nodeSelector")
    for name, flag in (("allNodes", spec.all_nodes), ("perDeviceNodeSelection", spec.per_device_node_selection)):
        if flag:
            present.append(f"`{name}`")
        elif flag is not None:
            errors.append(invalid(f"spec.{name}", value=False, detail="must be either unset or set to true"))
    detail = f"exactly one of {_SCOPES} is required"
    if not present:
        errors.append(required("spec", detail))
    elif len(present) > 1:
        errors.append(invalid("spec", f"{{{', '.join(present)}}}", f"{detail}, but multiple fields are set"))
    return errors


def _validate_devices(
    spec: v1.ResourceSliceSpec, replaced: Mapping[str, v1.Device] | None, *, fractional_ranges: bool
) -> list[FieldError]:
    """Check devices; ``replaced`` are those of the same names before, None when each needs no check by itself."""
    limit = max_devices(spec.devices)
    if len(spec.devices) > limit:
        return [too_many("spec.devices", len(spec.devices), limit)]
    errors = []
    seen: set[str] = set()
    for i, device in enumerate(spec.devices):
        path = f"spec.devices[{i}]"
        if replaced is not None:
            errors += validate_device(
                device,
                path,
                per_device_node_selection=spec.per_device_node_selection is True,
                old=replaced.get(device.name),
                fractional_ranges=fractional_ranges,
            )
        if device.name in seen:
            errors.append(duplicate(path, device.name))
        seen.add(device.name)
    return errors


def _validate_partition_type(spec: v1.ResourceSliceSpec) -> list[FieldError]:
    name = spec.partition_type_attribute
    if name is None:
        return []
    malformed = declarative(full_name(name, "spec.partitionTypeAttribute"))
    errors = list(malformed)
    if not any(device.consumes_counters for device in spec.devices):
        detail = "may only be set on a slice which declares devices that consume counters"
        errors.append(invalid("spec.partitionTypeAttribute", name, detail))
    for i, device in enumerate(() if malformed else spec.devices):
        errors += validate_partition_type(device, name, spec.driver, f"spec.devices[{i}].attributes")
    return errors
