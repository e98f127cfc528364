from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.conversion import drop_disabled_fields

ALPHA = Release.alpha()


def _slice(**device: Any) -> dict[str, Any]:
    return {"spec": {"driver": "d", "devices": [{"name": "a", **device}, {"name": "b"}]}}


def _claim(**body: Any) -> dict[str, Any]:
    return {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", **body}}]}}}


def _status(**result: Any) -> dict[str, Any]:
    return {"spec": {}, "status": {"allocation": {"devices": {"results": [{"device": "x", **result}]}}}}


DERIVED = {"derivedAttributes": [{"name": "a.b/c", "expression": "1"}]}
CASES = [
    ("DRADeviceTaints", _slice(taints=[{"key": "k"}]), _slice()),
    ("DRADeviceTaints", _claim(tolerations=[{"operator": "Exists"}]), _claim()),
    ("DRAPartitionableDevices", _slice(consumesCounters=[{"counterSet": "s"}], nodeName="n"), _slice()),
    ("DRAPartitionableDevices", {"spec": {"sharedCounters": [{}], "perDeviceNodeSelection": True}}, {"spec": {}}),
    ("DRADeviceBindingConditions", _slice(bindsToNode=True, bindingConditions=["a"]), _slice()),
    ("DRADeviceBindingConditions", _status(bindingFailureConditions=["a"]), _status()),
    ("DRAConsumableCapacity", _slice(capacity={"m": {"value": "1", "requestPolicy": {}}}),
     _slice(capacity={"m": {"value": "1"}})),
    ("DRAConsumableCapacity", _claim(capacity={"requests": {"m": "1"}}), _claim()),
    ("DRAConsumableCapacity", _status(shareID="u", consumedCapacity={"m": "1"}), _status()),
    ("DRAConsumableCapacity", {"status": {"devices": [{"driver": "d", "shareID": "u"}]}},
     {"status": {"devices": [{"driver": "d"}]}}),
    ("DRADeviceCompatibilityGroups", _slice(consumesCounters=[{"counterSet": "s", "compatibilityGroups": ["g"]}]),
     _slice(consumesCounters=[{"counterSet": "s"}])),
    ("DRANodeAllocatableResources", _slice(nodeAllocatableResources={"cpu": {}}), _slice()),
    ("DRAListTypeAttributes", _slice(attributes={"a": {"ints": [1]}, "b": {"int": 1}}),
     _slice(attributes={"a": {}, "b": {"int": 1}})),
    ("DRAPartitionableDevicesType", {"spec": {"partitionTypeAttribute": "a/b"}}, {"spec": {}}),
    ("DRAPartitionableDevicesType", {"spec": {"defaultPartitionTypeAttribute": "a/b"}}, {"spec": {}}),
    ("DRAOptionalNodeOperations", {"spec": {"skipNodeOperations": ["*"]}}, {"spec": {}}),
    ("DRAOptionalNodeOperations", _status(skipNodeOperations=["*"]), _status()),
    ("DRADerivedAttributes", _claim(**DERIVED), _claim()),
    ("DRADerivedAttributes", {"spec": _claim(**DERIVED)}, {"spec": _claim()}),
    ("DRADerivedAttributes", {"spec": {"devices": {"requests": [{"firstAvailable": [{"name": "s", **DERIVED}]}]}}},
     {"spec": {"devices": {"requests": [{"firstAvailable": [{"name": "s"}]}]}}}),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "written", "kept"), CASES)
def test_fields_of_disabled_feature_are_dropped(gate: str, written: dict[str, Any], kept: dict[str, Any]) -> None:
    before = copy.deepcopy(written)

    assert drop_disabled_fields(written, None, ALPHA.without(gate)) == kept
    assert drop_disabled_fields(written, None, ALPHA) is written
    assert written == before


@pytest.mark.parametrize(("gate", "written", "kept"), CASES)
def test_fields_used_by_old_object_stay(gate: str, written: dict[str, Any], kept: dict[str, Any]) -> None:
    gates = ALPHA.without(gate)

    assert drop_disabled_fields(written, written, gates) == written
    assert drop_disabled_fields(written, kept, gates) == kept


def test_feature_used_by_old_object_stays_enabled() -> None:
    old = _slice(taints=[{"key": "k"}])
    new = {"spec": {"devices": [{"name": "c", "taints": [{"key": "l"}]}]}}

    assert drop_disabled_fields(new, old, ALPHA.without("DRADeviceTaints")) == new


def test_binding_conditions_need_both_gates() -> None:
    device = _slice(bindingConditions=["a"], bindingFailureConditions=["b"])

    assert drop_disabled_fields(device, None, ALPHA.without("DRAResourceClaimDeviceStatus")) == _slice()


@given(st.sampled_from([written for _, written, _ in CASES]), st.sets(st.sampled_from(sorted(ALPHA.enabled))))
def test_dropping_is_idempotent(written: dict[str, Any], off: set[str]) -> None:
    gates = ALPHA.without(*off)

    once = drop_disabled_fields(written, None, gates)

    assert drop_disabled_fields(once, None, gates) is once
