"""Pods in objects of any kind: where they are found, and what they have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.manifests.documents import SourceFile, read_documents
from dra_kit.kubernetes.manifests.pod_templates import pod_templates
from dra_kit.kubernetes.resource.new_object import POD_SPECS
from dra_kit.kubernetes.values.json import value_at

SPEC = {
    "resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}],
    "containers": [{"name": "c", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
}
TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": SPEC}
JOB = {"spec": {"template": TEMPLATE}}


def nested(value: object, *keys: str) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("kind", POD_SPECS)
def test_the_template_of_each_workload_is_found(kind: str) -> None:
    obj = {"kind": kind, "apiVersion": "v1", **nested(SPEC, *POD_SPECS[kind])}
    (found,) = pod_templates(obj)
    assert (found.path, found.spec, found.is_embedded) == (".".join(POD_SPECS[kind]), SPEC, True)


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        ({"replicatedJobs": [{"name": "a", "template": JOB}]}, ["spec.replicatedJobs[0].template.spec.template.spec"]),
        (
            {"leaderWorkerTemplate": {"leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}},
            ["spec.leaderWorkerTemplate.leaderTemplate.spec", "spec.leaderWorkerTemplate.workerTemplate.spec"],
        ),
        (
            {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": [{"groupName": "w", "template": TEMPLATE}]},
            ["spec.headGroupSpec.template.spec", "spec.workerGroupSpecs[0].template.spec"],
        ),
        (
            {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": TEMPLATE}}},
            ["spec.pytorchReplicaSpecs.Worker.template.spec"],
        ),
        ({"components": [{"template": {"kind": "Job", **JOB}}]}, ["spec.components[0].template.spec.template.spec"]),
        ({"predictor": SPEC}, ["spec.predictor"]),
        ({"by.name": TEMPLATE}, ["spec[by.name].spec"]),
    ],
)
def test_templates_of_custom_resources_are_found(spec: dict[str, Any], paths: list[str]) -> None:
    found = list(pod_templates({"apiVersion": "example.com/v1", "kind": "Anything", "spec": spec}))
    assert [each.path for each in found] == paths
    assert [each.spec for each in found] == [SPEC] * len(paths)


def test_a_template_has_the_metadata_beside_its_spec() -> None:
    (found,) = pod_templates({"kind": "Job", **JOB})
    assert found.metadata == {"labels": {"app": "x"}}


@pytest.mark.parametrize(
    "obj",
    [
        {"kind": "PodMetrics", "containers": [{"name": "c", "usage": {}}]},
        {"kind": "Prometheus", "spec": {"containers": [{"name": "c"}]}},
        {"kind": "Any", "status": nested(SPEC, "template", "spec")},
        {"kind": "CustomResourceDefinition", "spec": {"properties": {"spec": {"containers": {"type": "array"}}}}},
        {"kind": "Any", "spec": {"template": {"spec": {"containers": ["c"]}}}},
        {"kind": "Pod", "spec": None},
        {"kind": "PodGroup", "spec": {"resourceClaims": SPEC["resourceClaims"]}},
        [],
        None,
    ],
)
def test_other_objects_have_no_pods(obj: object) -> None:
    assert list(pod_templates(obj)) == []


MACHINE = """
kind: VirtualMachine
spec:
  template:
    metadata: {labels: {app: vm}}
    spec:
      resourceClaims: [{name: gpu, resourceClaimTemplateName: gpus}]
      domain:
        devices:
          gpus: [{name: passed, deviceName: x}, {name: g, claimName: gpu, requestName: large}]
          hostDevices: [{name: h, claimName: nic}]
      networks: [{name: default, pod: {}}, {name: fast, resourceClaim: {claimName: line, requestName: port}}]
"""
WORKFLOW = """
kind: Workflow
spec:
  podSpecPatch: '{"resourceClaims": [{"name": "patched", "resourceClaimName": "p"}]}'
  resourceClaims: [{name: shared, resourceClaimName: s}]
  templates:
  - name: steps
    steps: []
  - name: train
    container: {image: busybox, resources: {claims: [{name: own}]}}
    resourceClaims: [{name: own, resourceClaimName: o}]
  - name: both
    containerSet: {containers: [{name: a, image: busybox}, {name: b, image: busybox}]}
"""


def body(text: str) -> dict[str, Any]:
    (document,) = read_documents(SourceFile("f.yaml", text)).documents
    assert isinstance(document.body, dict)
    return document.body


def test_a_virtual_machine_uses_claims_in_one_container() -> None:
    (found,) = pod_templates(body(MACHINE))
    (container,) = found.spec["containers"]
    assert container["resources"]["claims"] == [
        {"name": "gpu", "request": "large"},
        {"name": "nic"},
        {"name": "line", "request": "port"},
    ]
    assert found.spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    devices = "spec.template.spec.domain.devices"
    assert found.place("containers[0].resources.claims[0].request") == f"{devices}.gpus[1].requestName"
    assert found.place("containers[0].resources.claims[1].name") == f"{devices}.hostDevices[0].claimName"
    network = "spec.template.spec.networks[1].resourceClaim.claimName"
    assert found.place("containers[0].resources.claims[2].name") == network
    assert found.place("resourceClaims[0].name") == "spec.template.spec.resourceClaims[0].name"


def test_each_pod_of_a_workflow_has_its_claims_or_those_of_the_workflow_and_the_patch() -> None:
    train, both = pod_templates(body(WORKFLOW))
    assert [entry["name"] for entry in train.spec["resourceClaims"]] == ["own", "patched"]
    assert [entry["name"] for entry in both.spec["resourceClaims"]] == ["shared", "patched"]
    assert [container["name"] for container in both.spec["containers"]] == ["a", "b"]
    place = train.place("containers[0].resources.claims[0].name")
    assert place == "spec.templates[1].container.resources.claims[0].name"
    assert train.place("resourceClaims[0]") == "spec.templates[1].resourceClaims[0]"
    assert train.place("resourceClaims[1].resourceClaimName").startswith("spec.podSpecPatch")
    assert both.place("resourceClaims[0]") == "spec.resourceClaims[0]"
    assert both.place("containers[1].image") == "spec.templates[2].containerSet.containers[1].image"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "kind",
                    "spec",
                    "name",
                    "containers",
                    "resourceClaims",
                    "domain",
                    "templates",
                    "container",
                    "podSpecPatch",
                ]
            ),
            below,
            max_size=4,
        )
    ),
    max_leaves=30,
)


@given(st.dictionaries(st.sampled_from(["kind", "spec", "template"]), JSON, max_size=3))
def test_any_object_is_searched_and_embedded_specs_are_part_of_it(obj: dict[str, Any]) -> None:
    for found in pod_templates(obj):
        if found.is_embedded and "[" not in found.path:
            assert value_at(obj, found.path.split(".")) is found.spec
