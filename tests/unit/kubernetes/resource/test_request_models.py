"""Models of requests, constraints, classes and taint rules."""

from __future__ import annotations

from typing import Any

from dra_kit.kubernetes.resource.v1 import DeviceClass, DeviceTaintRule, ResourceClaim

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
    assert ResourceClaim.model_validate(CLAIM).to_json()["spec"] == CLAIM["spec"]


def test_selector_of_unknown_kind_is_preserved() -> None:
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
        {"name": "a", "exactly": {"deviceClassName": "gpu", "selectors": [{"wasm": {"module": "m"}}]}},
    ]}}}  # fmt: skip

    model = ResourceClaim.model_validate(claim)

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

    assert DeviceClass.model_validate(document).to_json() == document


def test_taint_rule_without_selector_differs_from_empty_selector() -> None:
    taint = {"key": "example.com/broken", "effect": "NoExecute"}
    nothing = DeviceTaintRule.model_validate({"spec": {"taint": taint}})
    everything = DeviceTaintRule.model_validate({"spec": {"taint": taint, "deviceSelector": {}}})

    assert nothing.spec.device_selector is None
    assert everything.spec.device_selector is not None
    assert everything.to_json()["spec"] == {"taint": taint, "deviceSelector": {}}
