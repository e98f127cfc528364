"""Input and output of the API models."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.values.quantity import Quantity


def test_null_means_absent() -> None:
    parsed = v1.ResourceSliceSpec.model_validate({"driver": None, "devices": None, "allNodes": None})
    assert parsed == v1.ResourceSliceSpec()
    assert "devices" not in parsed.model_fields_set


def test_null_in_lists_and_maps_is_the_zero_value() -> None:
    device = v1.Device.model_validate(
        {"bindingConditions": [None, "a"], "attributes": {"a": None, "b": {"ints": [1, None]}}, "capacity": {"c": None}}
    )
    assert device.binding_conditions == ("", "a")
    assert device.attributes == {"a": v1.DeviceAttribute(), "b": v1.DeviceAttribute(ints=(1, 0))}
    assert device.capacity == {"c": v1.DeviceCapacity(value=Quantity(0))}


@pytest.mark.parametrize(
    "attribute", [{"int": "1"}, {"int": 1.0}, {"int": 2**63}, {"bool": "true"}, {"bool": 1}, {"string": 1}]
)
def test_other_json_types_are_rejected(attribute: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        v1.DeviceAttribute.model_validate(attribute)


def test_unknown_fields_are_preserved() -> None:
    body = {"name": "d", "future": {"x": 1}, "capacity": {"memory": {"value": "1Gi", "later": True}}}
    assert v1.Device.model_validate(body).to_json() == body


WAY: dict[str, Any] = {
    "deviceClassName": "gpu",
    "selectors": [{"cel": {"expression": "true"}}],
    "allocationMode": "ExactCount",
    "count": 2,
    "tolerations": [{"key": "example.com/broken", "operator": "Exists", "tolerationSeconds": 30}],
    "capacity": {"requests": {"memory": "1Gi"}},
    "derivedAttributes": [{"name": "example.com/numa", "expression": "1"}],
}
CLAIM: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "n"},
    "spec": {
        "devices": {
            "requests": [
                {"name": "a", "exactly": WAY | {"adminAccess": True}},
                {"name": "b", "firstAvailable": [{"name": "x"} | WAY]},
            ],
            "constraints": [
                {"matchAttribute": "example.com/numa"},
                {"requests": ["a"], "distinctAttribute": "example.com/slot"},
            ],
            "config": [{"requests": ["a"], "opaque": {"driver": "d", "parameters": {"k": "v"}}}],
        }
    },
}


def test_claim_round_trips() -> None:
    assert v1.ResourceClaim.model_validate(CLAIM).to_json()["spec"] == CLAIM["spec"]


def test_selector_of_unknown_kind_is_preserved() -> None:
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
        {"name": "a", "exactly": {"deviceClassName": "gpu", "selectors": [{"wasm": {"module": "m"}}]}},
    ]}}}  # fmt: skip

    model = v1.ResourceClaim.model_validate(claim)

    exactly = model.spec.devices.requests[0].exactly
    assert exactly is not None
    assert exactly.selectors[0].cel is None
    assert model.to_json()["spec"] == claim["spec"]


def test_class_round_trips() -> None:
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": {
            "selectors": [{"cel": {"expression": "true"}}],
            "config": [{"opaque": {"driver": "d", "parameters": {}}}],
            "extendedResourceName": "example.com/gpu",
        },
    }

    assert v1.DeviceClass.model_validate(document).to_json() == document


def test_taint_rule_without_selector_differs_from_empty_selector() -> None:
    taint = {"key": "example.com/broken", "effect": "NoExecute"}
    nothing = v1.DeviceTaintRule.model_validate({"spec": {"taint": taint}})
    everything = v1.DeviceTaintRule.model_validate({"spec": {"taint": taint, "deviceSelector": {}}})

    assert nothing.spec.device_selector is None
    assert everything.spec.device_selector is not None
    assert everything.to_json()["spec"] == {"taint": taint, "deviceSelector": {}}
