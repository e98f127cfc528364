from __future__ import annotations

from typing import Any

import pytest

from dra_kit.kubernetes.resource import v1
from dra_kit.slices.planning import DroppedField, dropped_fields

_COUNTERS = {"n": {"value": "1"}}
_SENT: dict[str, Any] = {
    "driver": "d",
    "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
    "perDeviceNodeSelection": True,
    "partitionTypeAttribute": "d/type",
    "skipNodeOperations": ["*"],
    "devices": [
        {"name": "plain", "allNodes": True},
        {
            "name": "rich",
            "nodeName": "n",
            "attributes": {"list": {"ints": [1]}},
            "capacity": {"memory": {"value": "1Gi", "requestPolicy": {"default": "1Gi"}}},
            "consumesCounters": [{"counterSet": "s", "counters": _COUNTERS, "compatibilityGroups": ["g"]}],
            "taints": [{"key": "k", "effect": "NoSchedule"}],
            "bindsToNode": True,
            "bindingConditions": ["a"],
            "bindingFailureConditions": ["b"],
            "allowMultipleAllocations": True,
            "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}},
        },
    ],
}


def _parse(spec: dict[str, Any]) -> v1.ResourceSlice:
    return v1.ResourceSlice.model_validate({"spec": spec})


def _without(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, name) for key, item in value.items() if key != name}
    return [_without(item, name) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("name", "path", "gate"),
    [
        ("perDeviceNodeSelection", "spec.perDeviceNodeSelection", "DRAPartitionableDevices"),
        ("partitionTypeAttribute", "spec.partitionTypeAttribute", "DRAPartitionableDevicesType"),
        ("skipNodeOperations", "spec.skipNodeOperations", "DRAOptionalNodeOperations"),
        ("allNodes", "spec.devices[0].allNodes", "DRAPartitionableDevices"),
        ("nodeName", "spec.devices[1].nodeName", "DRAPartitionableDevices"),
        ("ints", "spec.devices[1].attributes[list].ints", "DRAListTypeAttributes"),
        ("requestPolicy", "spec.devices[1].capacity[memory].requestPolicy", "DRAConsumableCapacity"),
        ("consumesCounters", "spec.devices[1].consumesCounters", "DRAPartitionableDevices"),
        (
            "compatibilityGroups",
            "spec.devices[1].consumesCounters[0].compatibilityGroups",
            "DRADeviceCompatibilityGroups",
        ),
        ("taints", "spec.devices[1].taints", "DRADeviceTaints"),
        ("bindsToNode", "spec.devices[1].bindsToNode", "DRADeviceBindingConditions"),
        ("bindingConditions", "spec.devices[1].bindingConditions", "DRADeviceBindingConditions"),
        ("allowMultipleAllocations", "spec.devices[1].allowMultipleAllocations", "DRAConsumableCapacity"),
        ("nodeAllocatableResources", "spec.devices[1].nodeAllocatableResources", "DRANodeAllocatableResources"),
    ],
)
def test_dropped_field_has_gate(name: str, path: str, gate: str) -> None:
    assert dropped_fields(_parse(_SENT), _parse(_without(_SENT, name))) == (DroppedField(path, gate),)


def test_counter_sets_need_partitionable_devices() -> None:
    pool = {"driver": "d", "nodeName": "n", "pool": _SENT["pool"]}
    sent = _parse({**pool, "sharedCounters": [{"name": "s", "counters": _COUNTERS}]})
    expected = DroppedField("spec.sharedCounters", "DRAPartitionableDevices")
    assert dropped_fields(sent, _parse(pool)) == (expected,)


def test_defaults_and_other_notation_are_not_dropped() -> None:
    stored = _parse(_SENT).to_json()["spec"]
    stored["devices"][1]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    stored["devices"][1]["capacity"]["memory"]["value"] = "1024Mi"
    stored["devices"][0]["future"] = True
    assert dropped_fields(_parse(_SENT), _parse(stored)) == ()


def test_other_dropped_fields_have_no_gate() -> None:
    sent = _parse({**_SENT, "future": 1})
    stored = _parse({**_SENT, "devices": _SENT["devices"][:1]})
    assert dropped_fields(sent, stored) == (DroppedField("spec.devices", None), DroppedField("spec.future", None))
