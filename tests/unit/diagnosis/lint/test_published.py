"""Slices, taint rules, classes and namespaces that do not work together, and requests that nothing can satisfy."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.kubernetes.release import Release
from tests.unit.diagnosis.lint.texts import KNOWN, advertised, claim, found, rules

RULE = """
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata: {name: replace}
spec: {SPEC}
"""
SLICE = """
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: NODE}
spec:
  driver: gpu.example.com
  nodeName: NODE
  pool: {name: shared, generation: 1, resourceSliceCount: 2}
  devices: [{name: DEVICE}]
"""
CLASS = """
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: NAME}
spec: {extendedResourceName: example.com/gpu}
"""


def slices(*devices: tuple[str, str]) -> str:
    return "".join(SLICE.replace("NODE", node).replace("DEVICE", device) for node, device in devices)


def test_devices_of_one_name_on_several_nodes_are_one_device() -> None:
    findings = found(slices(("node-1", "a"), ("node-2", "a")))
    assert [one.rule for one in findings] == ["shared-pool", "shared-pool"]
    assert findings[0].help == "name the pool after its node"


def test_nodes_may_share_a_pool_if_each_device_has_its_name() -> None:
    assert rules(slices(("node-1", "a"), ("node-2", "b"))) == []


def test_devices_of_an_older_generation_do_not_count() -> None:
    older = slices(("node-1", "a"))
    assert rules(older + slices(("node-2", "a")).replace("generation: 1", "generation: 2")) == []


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("{deviceSelector: {}, taint: {key: a/b, effect: NoExecute}}", ["taints-all-devices"]),
        ("{deviceSelector: {}, taint: {key: a/b, effect: None}}", []),
        ("{deviceSelector: {driver: gpu.example.com}, taint: {key: a/b, effect: NoExecute}}", []),
        ("{taint: {key: a/b, effect: NoExecute}}", ["taints-no-device"]),
        ("{deviceSelector: {node: a}, taint: {key: a/b, effect: NoExecute}}", ["unknown-field"]),
    ],
)
def test_a_taint_rule_for_all_devices_or_none_is_reported(spec: str, rule: list[str]) -> None:
    assert rules(RULE.replace("{SPEC}", spec)) == rule


def test_two_classes_with_one_extended_resource_are_reported() -> None:
    findings = found(CLASS.replace("NAME", "one") + CLASS.replace("NAME", "two"))
    assert [one.rule for one in findings] == ["extended-name-twice", "extended-name-twice"]
    assert findings[0].message.startswith("DeviceClass two has this extendedResourceName too")
    assert rules(CLASS.replace("NAME", "one")) == []


NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: watchers, labels: {LABEL}}\n---\n"


@pytest.mark.parametrize(
    ("label", "namespace", "rule"),
    [
        ('resource.kubernetes.io/admin-access: "true"', "watchers", []),
        ('resource.kubernetes.io/admin-access: "false"', "watchers", ["admin-access"]),
        ("a: b", "watchers", ["admin-access"]),
        ("a: b", "elsewhere", []),
    ],
)
def test_admin_access_needs_a_label_of_the_namespace(label: str, namespace: str, rule: list[str]) -> None:
    text = claim("deviceClassName: gpu\nadminAccess: true", name=f"lunch, namespace: {namespace}")
    assert rules(NAMESPACE.replace("LABEL", label) + text) == rule


TOLERANT = claim("deviceClassName: gpu\ntolerations: [{key: a/b, operator: Exists}]")


def test_a_toleration_without_effect_does_not_protect_from_a_known_taint() -> None:
    taints = [{"key": "a/b", "effect": "NoExecute"}]
    assert rules(TOLERANT, advertised([{"taints": taints}])) == ["evicted-pod"]
    assert rules(TOLERANT, KNOWN) == ["toleration-without-effect"]
    rule = RULE.replace("{SPEC}", "{deviceSelector: {driver: d.example.com}, taint: {key: a/b, effect: NoExecute}}")
    assert rules(f"{rule}---\n{TOLERANT}") == ["evicted-pod"]


def test_a_toleration_without_effect_protects_since_1_38() -> None:
    known = advertised([{"taints": [{"key": "a/b", "effect": "NoExecute"}]}])

    assert rules(TOLERANT, replace(known, release=Release.parse("1.38"))) == []
    assert rules(TOLERANT, LintContext(Release.parse("1.38"))) == []


def test_a_toleration_with_effect_is_fine() -> None:
    assert rules(claim("deviceClassName: gpu\ntolerations: [{key: a/b, operator: Exists, effect: NoExecute}]")) == []


@pytest.mark.parametrize(
    ("other", "rule"),
    [
        ("deviceClassName: gpu", ["all-devices-twice"]),
        ("deviceClassName: gpu, allocationMode: All", ["all-devices-twice", "all-devices-twice"]),
        ("deviceClassName: nic", []),
        ("deviceClassName: gpu, adminAccess: true", []),
    ],
)
def test_a_request_for_all_devices_leaves_none_for_another(other: str, rule: list[str]) -> None:
    extra = f"- name: more\n  exactly: {{{other}}}"
    text = claim("deviceClassName: gpu\nallocationMode: All", extra="  " + extra.replace("\n", "\n  "))
    assert rules(text) == rule


@pytest.mark.parametrize(
    ("written", "help_"),
    [
        ("numaNode", "write resource.kubernetes.io/numaNode if the drivers publish"),
        ("flavour", "write <domain>/flavour"),
        ("gpu.example.com.model", "write gpu.example.com/model"),
        ("gpu.model", "write <domain>/model"),
        ("'device.attributes[\"gpu.example.com\"].model'", "write gpu.example.com/model"),
    ],
)
def test_an_attribute_of_a_constraint_needs_its_domain(written: str, help_: str) -> None:
    (finding,) = found(claim(extra=f"constraints: [{{matchAttribute: {written}}}]"))
    assert finding.rule == "unqualified-attribute"
    assert finding.help.startswith(help_)


def test_an_attribute_of_a_constraint_gets_the_domain_of_the_devices() -> None:
    (finding,) = found(claim(extra="constraints: [{distinctAttribute: Model}]"), KNOWN)
    assert finding.help == "devices have gpu.example.com/model: write gpu.example.com/model"
    assert finding.fix is not None
