"""One device of a slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_kit.resource import names, v1
from dra_kit.resource.fielderror import FieldError, duplicate, invalid, required, too_many, unsupported
from dra_kit.resource.validation.allocatable import validate_node_allocatable
from dra_kit.resource.validation.attributes import has_list, validate_attributes, validate_counts
from dra_kit.resource.validation.capacity import validate_capacities
from dra_kit.resource.validation.counters import validate_consumption
from dra_kit.resource.validation.nodes import validate_node_name, validate_node_selector

TAINTS_MAX: Final = 16
TAINT_EFFECTS: Final = ("NoExecute", "NoSchedule", "None")
BINDING_CONDITIONS_MAX: Final = 4
"""Entries of ``bindingConditions``, and of ``bindingFailureConditions``."""


def validate_device(device: v1.Device, path: str, *, per_device_node_selection: bool = False) -> list[FieldError]:
    """All rules of the API server (Kubernetes 1.37) that concern one device alone.

    Every gated field is validated as if its feature gate were on.

    Args:
        device: the device.
        path: where it is, for example ``spec.devices[3]``.
        per_device_node_selection: whether its slice leaves the choice of nodes to each device.
    """
    errors = [invalid(f"{path}.name", device.name, text) for text in names.dns_label(device.name, unit="characters")]
    errors += validate_counts(device, path)
    errors += validate_attributes(device.attributes, f"{path}.attributes")
    shareable = device.allow_multiple_allocations is True
    errors += validate_capacities(device.capacity, f"{path}.capacity", allow_multiple_allocations=shareable)
    errors += _validate_taints(device.taints, f"{path}.taints")
    errors += validate_consumption(device.consumes_counters, f"{path}.consumesCounters")
    errors += _validate_binding(device, path)
    errors += _validate_nodes(device, path, per_device_node_selection=per_device_node_selection)
    resources = device.node_allocatable_resources
    errors += validate_node_allocatable(resources, device.capacity, f"{path}.nodeAllocatableResources")
    return errors


def uses_advanced_features(device: v1.Device) -> bool:
    """Whether a slice with this device may hold only 64 devices: taints, counters and list attributes count."""
    return bool(device.taints or device.consumes_counters) or any(map(has_list, device.attributes.values()))


def _validate_taints(taints: Sequence[v1.DeviceTaint], path: str) -> list[FieldError]:
    if len(taints) > TAINTS_MAX:
        return [too_many(path, len(taints), TAINTS_MAX)]
    errors = []
    for i, taint in enumerate(taints):
        errors += [invalid(f"{path}[{i}].key", taint.key, text) for text in names.label_key(taint.key)]
        errors += [invalid(f"{path}[{i}].value", taint.value, text) for text in names.label_value(taint.value)]
        if not taint.effect:
            errors.append(required(f"{path}[{i}].effect"))
        elif taint.effect not in TAINT_EFFECTS:
            errors.append(unsupported(f"{path}[{i}].effect", taint.effect, TAINT_EFFECTS))
    return errors


def _validate_binding(device: v1.Device, path: str) -> list[FieldError]:
    lists = {
        "bindingConditions": device.binding_conditions,
        "bindingFailureConditions": device.binding_failure_conditions,
    }
    errors = []
    for name, conditions in lists.items():
        if len(conditions) > BINDING_CONDITIONS_MAX:
            errors.append(too_many(f"{path}.{name}", len(conditions), BINDING_CONDITIONS_MAX))
            continue
        for i, condition in enumerate(conditions):
            where = f"{path}.{name}[{i}]"
            errors += [invalid(where, condition, text) for text in names.label_key(condition)]
            if condition in conditions[:i]:
                errors.append(duplicate(where, condition))
            if conditions is device.binding_failure_conditions and condition in device.binding_conditions:
                errors.append(
                    invalid(where, condition, "bindingFailureConditions must not overlap with bindingConditions")
                )
    if bool(device.binding_conditions) != bool(device.binding_failure_conditions):
        missing, present = sorted(lists, key=lambda name: len(lists[name]))
        attribute = "binding_conditions" if missing == "bindingConditions" else "binding_failure_conditions"
        shown: list[str] | None = [] if attribute in device.model_fields_set else None
        errors.append(invalid(f"{path}.{missing}", shown, f"{missing} are required to use {present}"))
    return errors


def _validate_nodes(device: v1.Device, path: str, *, per_device_node_selection: bool) -> list[FieldError]:
    if not per_device_node_selection:
        if device.node_name is None and device.node_selector is None and device.all_nodes is None:
            return []
        detail = (
            "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true "
            "in the ResourceSlice spec"
        )
        return [invalid(path, None, detail)]
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
    detail = (
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to "
        "true in the ResourceSlice spec"
    )
    if not present:
        errors.append(required(path, detail))
    elif len(present) > 1:
        errors.append(invalid(path, f"{{{', '.join(present)}}}", detail))
    return errors
