"""Any file is checked without an exception, and every finding has a position."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.diagnosis.lint.check import check
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import RULES, format_text
from dra_kit.kubernetes.manifests.documents import SourceFile
from tests.unit.diagnosis.lint.texts import SURROUNDINGS, claim

SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 40) | st.floats(allow_nan=False) | st.text("aA1./-[]\"'é", max_size=8)
)
KEYS = st.sampled_from([
    "metadata", "name", "spec", "devices", "requests", "exactly", "firstAvailable", "selectors", "cel", "expression",
    "deviceClassName", "constraints", "matchAttribute", "config", "opaque", "driver", "parameters", "tolerations",
    "capacity", "count", "allocationMode", "pool", "nodeName", "attributes", "taints", "basic", "items", "taint",
    "resourceClaims", "resourceClaimName", "containers", "resources", "claims", "request", "template", "labels",
    "derivedAttributes", "sharedCounters", "consumesCounters", "counters", "value", "string", "kind", "apiVersion",
])  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text("ab/.", max_size=4), inner, max_size=4),
    max_leaves=15,
)
KINDS = st.sampled_from([
    "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice", "DeviceTaintRule", "Pod", "Deployment",
    "ResourcePoolStatusRequest", "List", "Resourceclaim",
])  # fmt: skip
VERSIONS = st.sampled_from(
    ["resource.k8s.io/v1", "resource.k8s.io/v1beta1", "resource.k8s.io/v1alpha3", "v1", "apps/v1"]
)
EXPRESSIONS = st.lists(
    st.sampled_from([
        "device", ".attributes", ".capacity", '["gpu.example.com"]', ".model", ".memory", ".driver", "==", ">=", "<",
        "&&", "||", "!", "(", ")", "has(", '"H200"', "80", "semver(", "quantity(", '"1.2"', ".isGreaterThan(", ".?mig",
        "in", "and", "=", "-", "?", ":", "true", "cel.bind(", "a", ",", ".exists(", "[", "]",
        ".contains(",
    ]),
    max_size=14,
).map(" ".join)  # fmt: skip


def checked(text: str, surroundings: LintContext) -> None:
    findings = check([SourceFile("f.yaml", text)], surroundings).findings
    lines = text.split("\n")
    for finding in findings:
        assert finding.rule in RULES
        assert 1 <= finding.line <= len(lines)
        assert 1 <= finding.column < finding.end_column
        assert finding.column <= len(finding.source) + 1
        assert finding.message
    assert format_text(findings, files=1, objects=1).count("\n") >= len(findings)


@given(
    kind=KINDS,
    version=VERSIONS,
    spec=VALUES,
    more=st.dictionaries(KEYS, VALUES, max_size=3),
    known=st.sampled_from(SURROUNDINGS),
)
def test_any_document_is_handled(kind: str, version: str, spec: Any, more: dict[str, Any], known: LintContext) -> None:
    checked(json.dumps({"spec": spec, **more, "apiVersion": version, "kind": kind}, indent=1), known)


@given(text=st.text(st.sampled_from("abk: -\n[]{}&*!|>'\"%@`#,?\t\x00\x85\u2028é"), max_size=60))
def test_any_text_is_handled(text: str) -> None:
    checked(f"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\n{text}", SURROUNDINGS[0])


@given(expression=EXPRESSIONS, known=st.sampled_from(SURROUNDINGS))
def test_any_expression_is_handled(expression: str, known: LintContext) -> None:
    quoted = json.dumps(expression)
    checked(claim(f"deviceClassName: gpu\nselectors: [{{cel: {{expression: {quoted}}}}}]"), known)


LEAVES = st.lists(st.integers(0, 60), min_size=1, max_size=2)


@given(positions=LEAVES, value=SCALARS)
def test_a_good_claim_with_some_values_replaced_is_still_checked(positions: list[int], value: Any) -> None:
    body: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "lunch", "labels": {"a": "b"}},
        "spec": {"devices": {
            "requests": [{"name": "gpu", "exactly": {
                "deviceClassName": "gpu", "count": 1, "selectors": [{"cel": {"expression": "true"}}],
                "tolerations": [{"key": "a", "operator": "Exists"}], "capacity": {"requests": {"memory": "1Gi"}},
            }}],
            "constraints": [{"requests": ["gpu"], "matchAttribute": "a.b/c"}],
            "config": [{"requests": ["gpu"], "opaque": {"driver": "gpu.example.com", "parameters": {"a": [1]}}}],
        }},
    }  # fmt: skip
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key, item in node.items() if isinstance(node, dict) else enumerate(node):
            places.append((node, key))
            if isinstance(item, dict | list):
                collect(item)

    collect(body)
    for position in positions:
        node, key = places[position % len(places)]
        node[key] = value
    checked(json.dumps(body, indent=1), SURROUNDINGS[1])


V1BETA1 = {
    "ResourceClaim": {"devices": {
        "requests": [{"name": "a", "deviceClassName": "x"}, {"name": "b", "firstAvailable": [{"name": "c"}]}],
        "constraints": [{"requests": ["a"], "matchAttribute": "a.b/c"}], "config": [{"requests": ["a"]}],
    }},
    "ResourceSlice": {
        "driver": "a.b", "nodeName": "n0", "pool": {"name": "n0", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d0", "basic": {"attributes": {"a": {"int": 1}}}}, {"name": "d1", "basic": {}}],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", V1BETA1)
@given(position=st.integers(0, 60))
def test_null_anywhere_in_an_object_of_an_older_version_is_handled(kind: str, position: int) -> None:
    spec = json.loads(json.dumps(V1BETA1[kind]))
    body = {"apiVersion": "resource.k8s.io/v1beta1", "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    places: list[tuple[Any, Any]] = [(body, "spec")]
    for node, key in places:
        inner = node[key]
        entries = inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        places += [(inner, each) for each in entries]
    node, key = places[position % len(places)]
    node[key] = None
    checked(json.dumps(body, indent=1), SURROUNDINGS[0])
