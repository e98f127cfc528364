"""Pods, claims, templates and classes that name each other."""

from __future__ import annotations

import pytest

from dra_kit.diagnosis.lint.check import check
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource import v1
from tests.unit.diagnosis.lint.texts import claim, device_class, found, pod, rules, underlined

TWO_REQUESTS = claim() + "    - name: nic\n      exactly: {deviceClassName: nic}\n"
CLAIM = claim()
TEMPLATE = claim(kind="ResourceClaimTemplate", name="lunches")
BY_NAME = "[{name: gpu, resourceClaimName: lunch}]"
BY_TEMPLATE = "[{name: gpu, resourceClaimTemplateName: lunches}]"


def test_a_pod_with_its_claim_is_fine() -> None:
    assert rules(f"{CLAIM}---\n{TEMPLATE}---\n{pod(BY_NAME, '[{name: gpu}]')}") == []
    assert rules(f"{CLAIM}---\n{TEMPLATE}---\n{pod(BY_TEMPLATE, '[{name: gpu, request: gpu}]')}") == []
    assert rules(pod(BY_NAME, "[{name: gpu}]")) == []


@pytest.mark.parametrize(
    ("entries", "uses", "rule", "where", "help_"),
    [
        (BY_NAME, "[{name: gpu}, {name: gpuu}]", "unknown-claim", "gpuu", 'did you mean "gpu"?'),
        ("[]", "[{name: gpu}]", "unknown-claim", "gpu", "add it to resourceClaims of the pod"),
        (BY_NAME, "[{name: gpu}, {name: nic-claim}]", "unknown-claim", "nic-claim", "it has gpu"),
        (BY_NAME, "[{name: gpu, request: big-gpu}]", "unknown-request", "big-gpu", "it has gpu"),
        (BY_NAME, "[{name: gpu, request: gpus}]", "unknown-request", "gpus", 'did you mean "gpu"?'),
        (BY_NAME, "[{name: gpu, request: gpu/big}]", "unknown-request", "gpu/big", "write gpu: a container names"),
        (BY_NAME, "[]", "unused-claim", "gpu", "resources: {claims: [{name: gpu}]}"),
        ("[{name: gpu}]", "[{name: gpu}]", "claim-reference", "{name: gpu}", "a template makes a claim for each pod"),
        (
            "[{name: gpu, resourceClaimName: lunch, resourceClaimTemplateName: lunches}]", "[{name: gpu}]",
            "claim-reference", "{name: gpu, resourceClaimName: lunch, resourceClaimTemplateName: lunches}", "",
        ),
        (
            "[{name: gpu, resourceClaimTemplateName: lunch}]", "[{name: gpu}]",
            "claim-reference", "resourceClaimTemplateName", "write resourceClaimName: lunch",
        ),
        ("[{name: gpu, resourceClaimName: lunchh}]", "[{name: gpu}]", "missing-claim", "lunchh", '"lunch"'),
        ("[{name: gpu, resourceClaimNam: x}]", "[{name: gpu}]", "unknown-field", "resourceClaimNam", "did you mean"),
        ("[{name: gpu, source: {resourceClaimName: lunch}}]", "[{name: gpu}]", "unknown-field", "source", "since"),
        (BY_NAME, "[{name: gpu, requests: gpu}]", "unknown-field", "requests", 'did you mean "request"?'),
    ],
)  # fmt: skip
def test_a_wrong_reference_is_reported(entries: str, uses: str, rule: str, where: str, help_: str) -> None:
    findings = found(f"{CLAIM}---\n{TEMPLATE}---\n{pod(entries, uses)}")
    (finding,) = [one for one in findings if one.rule == rule]
    assert underlined(finding) == where
    assert help_ in finding.help
    assert [one.rule for one in findings] == [rule]


def test_a_request_that_no_container_names_is_reported() -> None:
    (finding,) = found(f"{TWO_REQUESTS}---\n{pod(BY_NAME, '[{name: gpu, request: nic}]')}")
    assert (finding.rule, underlined(finding)) == ("unused-request", "gpu")
    assert rules(f"{TWO_REQUESTS}---\n{pod(BY_NAME, '[{name: gpu}]')}") == []


def test_another_pod_may_name_the_other_request() -> None:
    one, other = (pod(BY_NAME, f"[{{name: gpu, request: {request}}}]") for request in ("gpu", "nic"))
    assert rules(f"{TWO_REQUESTS}---\n{one}---\n{other}") == []


def test_the_pods_of_a_deployment_are_checked_too() -> None:
    text = f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: guests}}
spec:
  template:
    spec:
      initContainers: [{{name: a, image: x, resources: {{claims: [{{name: gpus}}]}}}}]
      containers: [{{name: b, image: x}}]
      resourceClaims: {BY_TEMPLATE}
"""
    (finding,) = found(text)
    assert (finding.rule, finding.path) == (
        "unknown-claim",
        "spec.template.spec.initContainers[0].resources.claims[0].name",
    )


def test_a_claim_that_no_misspelt_field_can_name_is_reported() -> None:
    entries = "[{name: gpu, resourceClaimName: lunch}, {name: nic, resourceClaimName: lunch}]"
    text = f"{CLAIM}---\n{pod(entries, '[{nam: gpu}]')}"
    assert [(one.rule, one.path) for one in found(text)] == [
        ("unknown-field", "spec.containers[0].resources.claims[0].nam"),
        ("unused-claim", "spec.resourceClaims[1].name"),
    ]


def test_a_claim_in_another_namespace_is_reported() -> None:
    elsewhere = claim(name="lunch, namespace: kitchen")
    here = pod(BY_NAME, "[{name: gpu}]").replace("name: guest", "name: guest, namespace: hall")
    (finding,) = found(f"{elsewhere}---\n{here}")
    assert finding.rule == "missing-claim"
    assert "in another namespace than the pod: kitchen, not hall" in finding.message


def test_a_similar_name_is_not_suggested_for_a_claim_in_another_namespace() -> None:
    elsewhere = claim(name="lunch, namespace: kitchen")
    here = pod(BY_NAME, "[{name: gpu}]").replace("name: guest", "name: guest, namespace: hall")
    (finding,) = found(f"{elsewhere}---\n{claim(name='lunchh')}---\n{here}")
    assert "in another namespace" in finding.message


def test_a_claim_of_a_removed_version_is_in_the_files() -> None:
    elsewhere = claim(name="lunch, namespace: kitchen")
    removed = claim(name="lunch, namespace: hall").replace("io/v1", "io/v1alpha2")
    here = pod(BY_NAME, "[{name: gpu}]").replace("name: guest", "name: guest, namespace: hall")
    assert rules(f"{elsewhere}---\n{removed}---\n{here}") == ["unknown-kind"]


def test_the_claim_in_the_same_file_or_folder_is_used_among_equal_names() -> None:
    other = claim(name="lunch").replace("- name: gpu", "- name: other")
    asking = pod(BY_NAME, "[{name: gpu, request: gpu}]")
    apart = [
        SourceFile("a/order.yaml", f"{CLAIM}---\n{asking}"),
        SourceFile("b/order.yaml", other),
        SourceFile("a/x.yaml", other),
    ]
    assert check(apart, LintContext(UNMODIFIED)).findings == []
    beside = [SourceFile("a/claim.yaml", CLAIM), SourceFile("b/claim.yaml", other), SourceFile("a/pod.yaml", asking)]
    assert check(beside, LintContext(UNMODIFIED)).findings == []
    unclear = [SourceFile("a/c.yaml", CLAIM), SourceFile("b/c.yaml", other), SourceFile("c/pod.yaml", asking)]
    assert check(unclear, LintContext(UNMODIFIED)).findings == []


def test_a_class_that_looks_misspelt_is_reported() -> None:
    (finding,) = found(f"{device_class(name='gpu')}---\n{claim('deviceClassName: gpuu')}")
    assert (finding.rule, finding.help, underlined(finding)) == ("unknown-class", 'did you mean "gpu"?', "gpuu")


@pytest.mark.parametrize(
    ("known", "name"),
    [
        ("gpu.example.com", "anything-else"),
        ("gpu.example.com", "npu.example.com"),
        ("gpu.example.com", "vgpu.example.com"),
        ("gpu.example.com", "gpu.example.net"),
        ("nic-a", "nic-b"),
        ("mig-1g", "mig-2g"),
        ("gpu-shared", "gpu-shared-large"),
    ],
)
def test_a_class_that_the_files_lack_may_be_in_the_cluster(known: str, name: str) -> None:
    assert rules(f"{device_class(name=known)}---\n{claim(f'deviceClassName: {name}')}") == []


@pytest.mark.parametrize("name", ["lunch-for-two", "munch"])
def test_a_claim_that_the_files_lack_may_be_in_the_cluster(name: str) -> None:
    assert rules(f"{claim(name=name)}---\n{pod(BY_NAME, '[{name: gpu}]')}") == []


def test_a_class_that_the_cluster_does_not_have_is_reported() -> None:
    known = v1.DeviceClass.model_validate({"metadata": {"name": "nic"}})
    cluster = LintContext(UNMODIFIED, classes={"nic": known}, complete=True)
    (finding,) = found(claim("deviceClassName: anything-else"), cluster)
    assert (finding.rule, finding.help) == ("unknown-class", "there are nic")
    assert rules(claim("deviceClassName: nic"), cluster) == []


@pytest.mark.parametrize("uses", ["[{name: gpuu}]", "{gpu: 1}", "gpu"])
def test_a_misspelt_use_of_a_claim_is_reported_once(uses: str) -> None:
    assert len(found(pod(BY_NAME, uses))) == 1


def test_a_template_with_a_typo_is_found_among_many() -> None:
    names = [f"lunches-{number}" for number in range(20)]
    templates = "---\n".join(claim(kind="ResourceClaimTemplate", name=name) for name in names)
    (finding,) = found(f"{templates}---\n{pod('[{name: gpu, resourceClaimTemplateName: lunhces-7}]', '[{name: gpu}]')}")
    assert (finding.rule, finding.help) == ("missing-claim", 'did you mean "lunches-7"?')
