"""One device of a slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dra_kit.resource import v1
from dra_kit.resource.fielderror import FieldError, invalid, required, too_many
from dra_kit.resource.validation.fields.binding import validate_binding
from dra_kit.resource.validation.fields.formats import device_name
from dra_kit.resource.validation.fields.tolerations import validate_taint
from dra_kit.resource.validation.slices.allocatable import validate_node_allocatable
from dra_kit.resource.validation.slices.attributes import has_list, validate_attributes, validate_counts
from dra_kit.resource.validation.slices.capacity import validate_capacities
from dra_kit.resource.validation.slices.counters import validate_consumption
from dra_kit.resource.validation.slices.nodes import validate_node_name, validate_node_selector

TAINTS_MAX: Final = 16


def validate_device(
    device: v1.Device,
    path: str,
    *,
    per_device_node_selection: bool = False,
    old: v1.Device | None = None,
    fractional_ranges: bool = False,
) -> list[FieldError]:
    """Check all rules of the API server (Kubernetes 1.37) that concern one device alone.

    Every gated field is validated as if its feature gate were on.

    Args:
        device: the device.
        path: where it is, for example ``spec.devices[3]``.
        per_device_node_selection: whether its slice leaves the choice of nodes to each device.
        old: the device of this name in the slice that this one replaces: capacities and taints that stay as they were
            there are not looked at again.
        fractional_ranges: feature gate DRAFractionalCapacityRange, which no release up to 1.37 has on by default.
    """
    errors = device_name(device.name, f"{path}.name")
    errors += validate_counts(device, path)
    errors += validate_attributes(device.attributes, f"{path}.attributes")
    shareable = device.allow_multiple_allocations is True
    if old is None or device.capacity != old.capacity:
        errors += validate_capacities(
            device.capacity, f"{path}.capacity", allow_multiple_allocations=shareable, fractional=fractional_ranges
        )
    errors += validate_consumption(device.consumes_counters, f"{path}.consumesCounters")
    errors += _validate_taints(device.taints, f"{path}.taints", None if old is None else old.taints)
    errors += validate_binding(device, path)
    errors += _validate_nodes(device, path, per_device_node_selection=per_device_node_selection)
    resources = device.node_allocatable_resources
    errors += validate_node_allocatable(resources, device.capacity, f"{path}.nodeAllocatableResources")
    return errors


def uses_advanced_features(device: v1.Device) -> bool:
    """Return whether a slice with this device may hold only 64: taints, counters and list attributes count."""
    return bool(device.taints or device.consumes_counters) or any(map(has_list, device.attributes.values()))


def _validate_taints(
    taints: Sequence[v1.DeviceTaint], path: str, unchanged: Sequence[v1.DeviceTaint] | None
) -> list[FieldError]:
    if taints == unchanged:
        return []
    errors = [too_many(path, len(taints), TAINTS_MAX)] if len(taints) > TAINTS_MAX else []
    for i, taint in enumerate(taints):
        found = validate_taint(taint, f"{path}[{i}]")
        # of a list that is too long the declarative rules look at the items all the same
        errors += [error for error in found if error.declarative] if len(taints) > TAINTS_MAX else found
    return errors


def _validate_nodes(device: v1.Device, path: str, *, per_device_node_selection: bool) -> list[FieldError]:
    if not per_device_node_selection:
        if device.node_name is None and device.node_selector is None and device.all_nodes is None:
            return []
        rule = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true"
        return [_of_spec(invalid(path, None, rule))]
    errors, present = [], []
    if device.node_name == "":
        errors.append(invalid(f"{path}.nodeName", "", "must not be empty"))
    elif device.node_name is not None:
        present.append("`nodeName`")
        errors += validate_node_name(device.node_name, f"{path}.nodeName")
    if device.node_selector is not None:
        present.append("`nodeSelector`")
        errors += validate_node_selector(device.node_selector, f"{path}.nodeSelector")
    if device.all_nodes is False:
        errors.append(invalid(f"{path}.allNodes", value=False, detail="must be either unset or set to true"))
    elif device.all_nodes:
        present.append("`allNodes`")
    rule = (
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when "
        "`perDeviceNodeSelection` is set to true"
    )
    if not present:
        errors.append(_of_spec(required(path, rule)))
    elif len(present) > 1:
        errors.append(_of_spec(invalid(path, f"{{{', '.join(present)}}}", rule)))
    return errors


def _of_spec(error: FieldError) -> FieldError:
    """Add where the rule reads ``perDeviceNodeSelection``: of the slice's spec, or of an author's pool."""
    rule = error.detail
    return replace(error, detail=f"{rule} in the ResourceSlice spec", author_detail=f"{rule} in its Pool")
