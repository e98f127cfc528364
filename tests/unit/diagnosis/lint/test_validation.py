"""The API server's rules, reported at their position in the file."""

from __future__ import annotations

import pytest

from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.kubernetes.release import Release
from tests.unit.diagnosis.lint.texts import GUARD, claim, device_class, found, rules, underlined

ALPHA = LintContext(release=Release.alpha())


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (claim("deviceClassName: gpu\nallocationMode: Every"), "Every", 'supported values: "All", "ExactCount"'),
        (claim("deviceClassName: gpu\nallocationMode: All\ncount: 2"), "2", "must not be specified when"),
        (claim("deviceClassName: Big_GPU"), "Big_GPU", "a lowercase RFC 1123 subdomain"),
        (claim("count: 1"), "exactly", "deviceClassName: Required value"),
        (claim(extra="constraints: [{matchAttribute: a/b-c}]"), "a/b-c", "matchAttribute: Invalid value"),
        (claim(extra="constraints: [{requests: [gpuu], matchAttribute: a/b}]"), "gpuu", "must be the name of"),
        (claim(extra="config: [{opaque: {driver: gpu.example.com}}]"), "opaque", "parameters: Required value"),
        (claim(name="Lunch"), "Lunch", "metadata.name: Invalid value"),
        (claim(name="lunch, labels: {a b: c}"), "c", "name part must consist of"),
        (device_class(name='""'), '""', "name or generateName is required"),
        (device_class(*["true"] * 33), "selectors", "Too many: 33: must have at most 32 items"),
    ],
)  # fmt: skip
def test_invalid_values_are_errors_at_their_position(text: str, where: str, message: str) -> None:
    (finding,) = [one for one in found(text) if one.rule != "unused-request"]
    assert finding.rule == "invalid-value"
    assert message in finding.message
    assert underlined(finding) == where


def test_a_generated_name_is_reported_by_its_prefix() -> None:
    text = device_class(name="x").replace("name: x", "generateName: Big-")
    (finding,) = [one for one in found(text) if one.rule == "invalid-value"]
    assert finding.message.startswith('metadata.generateName: Invalid value: "Big-": a lowercase RFC 1123 subdomain')


def test_a_pod_with_gates_has_no_node_yet() -> None:
    text = """
        apiVersion: v1
        kind: Pod
        metadata: {name: guest}
        spec: {nodeName: node-1, schedulingGates: [{name: g.example.com/x}], containers: [{name: a, image: b}]}
    """
    (finding,) = found(text)
    assert (finding.path, underlined(finding)) == ("spec.nodeName", "node-1")
    assert "cannot be set until all schedulingGates have been cleared" in finding.message


def test_a_namespace_of_a_cluster_scoped_object_is_ignored() -> None:
    assert rules(device_class(name="gpu, namespace: kitchen")) == []
    assert rules(claim(name="lunch, namespace: Kitchen")) == ["invalid-value"]


def test_slices_taint_rules_and_templates_are_checked_too() -> None:
    slice_ = """
        apiVersion: resource.k8s.io/v1
        kind: ResourceSlice
        metadata: {name: s}
        spec:
          driver: gpu.example.com
          nodeName: node-1
          pool: {name: node-1, resourceSliceCount: 0}
          devices: [{name: GPU-0}]
    """
    assert [finding.path for finding in found(slice_)] == ["spec.pool.resourceSliceCount", "spec.devices[0].name"]
    rule = """
        apiVersion: resource.k8s.io/v1
        kind: DeviceTaintRule
        metadata: {name: r}
        spec: {deviceSelector: {pool: p}, taint: {key: a, effect: Sometimes}}
    """
    assert [finding.path for finding in found(rule)] == ["spec.taint.effect"]
    template = claim("deviceClassName: gpu\nallocationMode: Al", kind="ResourceClaimTemplate")
    assert [finding.path for finding in found(template)] == ["spec.spec.devices.requests[0].exactly.allocationMode"]


DERIVED = claim(
    "deviceClassName: gpu\nderivedAttributes: [{name: a/b, expression: 'device.driver ='}]",
    extra="constraints: [{matchAttribute: a/b}]",
)


def test_a_field_that_a_server_drops_is_reported_and_not_checked() -> None:
    (finding,) = found(DERIVED)
    assert (finding.rule, finding.level, underlined(finding)) == ("feature-gate", "warning", "derivedAttributes")


def test_fields_of_alpha_features_are_checked_if_they_are_on() -> None:
    assert rules(DERIVED, ALPHA) == ["single-equals"]


@pytest.mark.parametrize("expression", ['""', "~"])
def test_an_empty_expression_is_reported_like_the_api_server_does(expression: str) -> None:
    text = claim(f"deviceClassName: gpu\nselectors: [{{cel: {{expression: {expression}}}}}]")
    (finding,) = found(text)
    assert "expression: Invalid value" in finding.message


def test_expressions_are_reported_once() -> None:
    assert rules(device_class(f"{GUARD} && x")) == ["cel-compile"]
    assert rules(device_class(f"{GUARD} // {'x' * 10_240}")) == ["cel-cost"]


@pytest.mark.parametrize(
    ("metadata", "where", "message"),
    [
        ("labels: {a: -b}", "-b", "Invalid value"),
        ("annotations: {a/b/c: x}", "x", "a valid label key must consist of"),
        ("finalizers: [orphan, mine]", "mine", "neither a standard finalizer name nor is it fully qualified"),
        ("ownerReferences: [{apiVersion: v1, kind: Pod, name: a}]", "{apiVersion", "uid: Required value"),
    ],
)
def test_metadata_is_checked_as_for_every_kind(metadata: str, where: str, message: str) -> None:
    (of_claim,) = found(claim(name=f"lunch, {metadata}"))
    spec = "{template: {spec: {containers: [{name: a, image: x}]}}}"
    (of_job,) = found(f"{{apiVersion: batch/v1, kind: Job, metadata: {{name: lunch, {metadata}}}, spec: {spec}}}")
    assert of_claim.message == of_job.message
    assert message in of_claim.message
    assert of_claim.source[of_claim.column - 1 :].startswith(where)
