"""Fields that the API server dropped because a feature gate is off."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from dra_kit.resource import v1
from dra_kit.resource.slices.compare import same

_GATES: Final[dict[type[v1.APIModel], dict[str, str]]] = {
    v1.ResourceSliceSpec: {
        "shared_counters": "DRAPartitionableDevices",
        "per_device_node_selection": "DRAPartitionableDevices",
        "partition_type_attribute": "DRAPartitionableDevicesType",
        "skip_node_operations": "DRAOptionalNodeOperations",
    },
    v1.Device: {
        "taints": "DRADeviceTaints",
        "consumes_counters": "DRAPartitionableDevices",
        "node_name": "DRAPartitionableDevices",
        "node_selector": "DRAPartitionableDevices",
        "all_nodes": "DRAPartitionableDevices",
        "binds_to_node": "DRADeviceBindingConditions",
        "binding_conditions": "DRADeviceBindingConditions",
        "binding_failure_conditions": "DRADeviceBindingConditions",
        "allow_multiple_allocations": "DRAConsumableCapacity",
        "node_allocatable_resources": "DRANodeAllocatableResources",
    },
    v1.DeviceCapacity: {"request_policy": "DRAConsumableCapacity"},
    v1.DeviceCounterConsumption: {"compatibility_groups": "DRADeviceCompatibilityGroups"},
    v1.DeviceAttribute: dict.fromkeys(("ints", "bools", "strings", "versions"), "DRAListTypeAttributes"),
}
"""Which gate a field needs (Kubernetes 1.37, ``pkg/registry/resource/resourceslice/strategy.go``)."""


class DroppedField(Struct, frozen=True):
    """A field that was sent and not stored.

    Args:
        path: for example ``spec.devices[3].taints``.
        feature_gate: the gate that is probably off; None if this release does not know the reason.
    """

    path: str
    feature_gate: str | None


def dropped_fields(sent: v1.ResourceSlice, stored: v1.ResourceSlice) -> tuple[DroppedField, ...]:
    """Return what the API server silently left out when it stored ``sent``."""
    return tuple(_compare("spec", sent.spec, stored.spec))


def _compare(path: str, sent: Any, stored: Any) -> list[DroppedField]:
    """Differences below ``path``; a part that differs as a whole is reported as one."""
    if isinstance(sent, v1.APIModel) and type(sent) is type(stored):
        return _compare_models(path, sent, stored)
    if isinstance(sent, tuple) and isinstance(stored, tuple) and len(sent) == len(stored):
        pairs = enumerate(zip(sent, stored, strict=True))
        return [field for i, (item, other) in pairs for field in _compare(f"{path}[{i}]", item, other)]
    if isinstance(sent, dict) and isinstance(stored, dict) and sent.keys() == stored.keys():
        return [field for key in sent for field in _compare(f"{path}[{key}]", sent[key], stored[key])]
    return [] if same(sent, stored) else [DroppedField(path, None)]


def _compare_models(path: str, sent: v1.APIModel, stored: Any) -> list[DroppedField]:
    if same(sent, stored):
        return []
    model = type(sent)
    result: list[DroppedField] = []
    for name, field in model.model_fields.items():
        value, other = getattr(sent, name), getattr(stored, name)
        where = f"{path}.{field.alias or name}"
        gate = _GATES.get(model, {}).get(name)
        if gate is not None and value and not other:
            result.append(DroppedField(where, gate))
        elif not isinstance(sent, v1.DeviceTaint) or name != "time_added":
            result += _compare(where, value, other)
    missing = [name for name in sent.model_extra or {} if name not in (stored.model_extra or {})]
    return result + [DroppedField(f"{path}.{name}", None) for name in missing]
