"""Pods and workloads, checked like the API server does."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.lint.texts import claim, found, pod, rules, underlined

BY_NAME = "[{name: gpu, resourceClaimName: lunch}]"


@pytest.mark.parametrize(
    ("entries", "uses", "path", "message"),
    [
        ("[{name: Foo_Bar, resourceClaimName: a}]", "[{name: Foo_Bar}]", "resourceClaims[0].name", "RFC 1123 label"),
        ("[{resourceClaimName: a}]", "[]", "resourceClaims[0].name", "Required value"),
        ("[{name: a, resourceClaimName: UPPER}]", "[{name: a}]", "resourceClaims[0].resourceClaimName", "subdomain"),
        ('[{name: a, resourceClaimName: ""}]', "[{name: a}]", "resourceClaims[0].resourceClaimName", "subdomain"),
        (
            "[{name: a, resourceClaimName: a}, {name: a, resourceClaimName: b}]", "[{name: a}]",
            "resourceClaims[1].name", 'Duplicate value: "a"',
        ),
        (BY_NAME, "[{name: gpu}, {name: gpu}]", "containers[0].resources.claims[1]", 'Duplicate value: "gpu"'),
        (BY_NAME, "[{name: gpu}, {request: x}]", "containers[0].resources.claims[1]", "Required value"),
        (BY_NAME, "[{name: gpu, request: a/b}]", "containers[0].resources.claims[0].request", "RFC 1123 label"),
    ],
)  # fmt: skip
def test_problems_of_claims_match_the_api_servers(entries: str, uses: str, path: str, message: str) -> None:
    (finding,) = found(pod(entries, uses))
    assert (finding.rule, finding.path) == ("invalid-value", f"spec.{path}")
    assert message in finding.message


def test_a_pod_has_a_name_and_containers() -> None:
    assert [finding.path for finding in found("apiVersion: v1\nkind: Pod\nspec: {}\n")] == [
        "metadata.name",
        "spec.containers",
    ]
    assert [finding.path for finding in found("apiVersion: v1\nkind: Pod\nmetadata: {name: P}\n")] == [
        "spec.containers",
        "metadata.name",
    ]


@pytest.mark.parametrize(
    ("replaced", "by", "path", "help_"),
    [
        ("  resourceClaims:", "  resourceClaim:", "spec.resourceClaim", 'did you mean "resourceClaims"?'),
        ("    resources:", "    resource:", "spec.containers[0].resource", 'did you mean "resources"?'),
        ("  containers:", "  containrs:", "spec.containrs", 'did you mean "containers"?'),
        (
            "    resources:\n      claims:", "    claims:",
            "spec.containers[0].claims", "it belongs one level deeper: resources.claims",
        ),
        ("    image: busybox", "    imge: busybox", "spec.containers[0].imge", 'did you mean "image"?'),
        ("spec:\n", "nodeName: a\nspec:\n", "nodeName", "it belongs one level deeper: spec.nodeName"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_reported_once(replaced: str, by: str, path: str, help_: str) -> None:
    text = pod(BY_NAME, "[{name: gpu}]")
    assert replaced in text
    (finding,) = found(f"{claim()}---\n{text.replace(replaced, by)}")
    assert (finding.rule, finding.path, underlined(finding)) == ("unknown-field", path, path.rpartition(".")[2])
    assert finding.help == help_


@pytest.mark.parametrize(
    ("replaced", "by", "message", "help_"),
    [
        (BY_NAME, "{name: gpu, resourceClaimName: lunch}", "must be a list", "begin each item with '- '"),
        ("[{name: gpu}]", "{name: gpu}", "must be a list", "begin each item with '- '"),
        ("resourceClaimName: lunch", "resourceClaimName: 5", "must be a string, not 5", 'write it in quotes: "5"'),
        ("[{name: gpu}]", "[gpu]", 'must be an object, not "gpu"', ""),
        ("  containers:", "  initContainers: [7]\n  containers:", "must be an object, not 7", ""),
        ("[{name: gpu}]", "[{name: gpu}]\n      limits: {memory: lots}", "quantit", ""),
        ("spec:\n", 'spec:\n  priority: "5"\n', 'must be an integer of 32 bits, not "5"', "without quotes: 5"),
    ],
)
def test_a_value_of_the_wrong_type_is_reported(replaced: str, by: str, message: str, help_: str) -> None:
    text = pod(BY_NAME, "[{name: gpu}]")
    assert replaced in text
    (finding,) = found(text.replace(replaced, by))
    assert finding.rule == "wrong-type"
    assert message in finding.message
    assert help_ in finding.help


WORKLOADS = {
    "Deployment": ("apps/v1", "spec.template"),
    "StatefulSet": ("apps/v1", "spec.template"),
    "DaemonSet": ("apps/v1", "spec.template"),
    "ReplicaSet": ("apps/v1", "spec.template"),
    "ReplicationController": ("v1", "spec.template"),
    "PodTemplate": ("v1", "template"),
    "Job": ("batch/v1", "spec.template"),
    "CronJob": ("batch/v1", "spec.jobTemplate.spec.template"),
}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_workloads_that_create_pods_are_checked_like_pods(kind: str) -> None:
    version, template = WORKLOADS[kind]
    text = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: guests}}\n"
    indent = ""
    for key in (*template.split("."), "spec"):
        text += f"{indent}{key}:\n"
        indent += "  "
    text += (
        f"{indent}containers: [{{name: a, image: x, claims: [{{name: A}}]}}]\n{indent}resourceClaims: [{{name: A}}]\n"
    )
    assert [(one.rule, one.path) for one in found(text)] == [
        ("unknown-field", f"{template}.spec.containers[0].claims"),
        ("claim-reference", f"{template}.spec.resourceClaims[0]"),
        ("invalid-value", f"{template}.spec.resourceClaims[0].name"),
    ]


def test_the_fields_of_a_deployment_itself_are_checked() -> None:
    text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replica: 2, template: nonsense}\n"
    assert rules(text) == ["unknown-field", "wrong-type"]


def test_the_status_of_a_pod_is_ignored() -> None:
    assert rules(f"{pod(BY_NAME, '[{name: gpu}]')}status: {{phase: 7, anything: 1}}\n") == []


def with_resources(resources: str) -> str:
    """A pod with one container that has these resources, as lines."""
    return pod("[]", "[]").replace("  claims: []", resources)


def test_claims_among_quantities_are_reported_once_with_their_field() -> None:
    (finding,) = found(with_resources("  limits: {claims: [gpu]}"))
    assert finding.rule == "wrong-type"
    assert "spec.containers[0].resources.claims: [{name: <claim>}]" in finding.help


def test_a_class_that_is_requested_as_a_resource_gets_its_extended_resource() -> None:
    wrong = found(with_resources("  limits: {gpu.example.com: 1}"))
    assert wrong
    assert all("deviceclass.resource.kubernetes.io/gpu.example.com" in finding.help for finding in wrong)
    assert found(with_resources("  limits: {deviceclass.resource.kubernetes.io/gpu.example.com: 1}")) == []
