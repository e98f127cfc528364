"""Pods in custom resources: their claims are checked, and nothing else of them."""

from __future__ import annotations

import textwrap

import pytest

from tests.unit.diagnosis.lint.texts import claim, found, rules

TEMPLATE = claim(kind="ResourceClaimTemplate", name="lunches")
POD = """\
resourceClaims: [{name: gpu, resourceClaimTemplateName: lunches}]
containers: [{name: eater, resources: {claims: USES}}]
"""
KINDS = {
    "jobset.x-k8s.io/v1alpha2 JobSet": "replicatedJobs:\n- template:\n    spec:\n      template:\n        spec:",
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": "leaderWorkerTemplate:\n  workerTemplate:\n    spec:",
    "ray.io/v1 RayCluster": "workerGroupSpecs:\n- groupName: a\n  template:\n    spec:",
    "kubeflow.org/v1 PyTorchJob": "pytorchReplicaSpecs:\n  Worker:\n    template:\n      spec:",
    "batch.volcano.sh/v1alpha1 Job": "tasks:\n- template:\n    spec:",
    "serving.knative.dev/v1 Service": "template:\n  spec:\n    containerConcurrency: 3\n    timeoutSeconds: 9",
    "anything.example.com/v1 Deployment": "pods:\n  some.key:\n    podSpec:",
}


def custom(kind: str, uses: str, pod: str = POD) -> str:
    """An object of a kind with a pod template."""
    version, name = kind.split()
    head = f"apiVersion: {version}\nkind: {name}\nmetadata: {{name: diner}}\nspec:\n"
    where = KINDS[kind]
    last = where.splitlines()[-1]
    depth = len(last) - len(last.lstrip(" -")) + (2 if last.endswith(":") else 0)
    spec = f"{where}\n{textwrap.indent(pod.replace('USES', uses), ' ' * depth)}"
    return f"{TEMPLATE}---\n{head}{textwrap.indent(spec, '  ')}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_claims_of_pods_in_any_kind_are_checked(kind: str) -> None:
    assert rules(custom(kind, "[{name: gpu}]")) == []
    assert rules(custom(kind, "[{name: gpuu}]")) == ["unknown-claim"]
    assert rules(custom(kind, "[{name: gpu, request: gpus}]")) == ["unknown-request"]
    assert rules(custom(kind, "[gpu]")) == ["wrong-type"]
    assert rules(custom(kind, "[{name: gpu}, {name: gpu}]")) == ["invalid-value"]


KIND = "ray.io/v1 RayCluster"


@pytest.mark.parametrize(
    ("pod", "help_"),
    [
        (POD.replace("resourceClaims", "resourceclaims"), 'did you mean "resourceClaims"?'),
        (POD.replace("resourceClaims", "resourceClaim"), 'did you mean "resourceClaims"?'),
        (POD.replace("resources: {claims: USES}", "claims: USES"), "it belongs one level deeper: resources.claims"),
        (POD.replace("resourceClaimTemplateName: lunches", "source: {resourceClaimName: a}"), "since Kubernetes 1.31"),
    ],
)
def test_misplaced_and_misspelt_claims_are_reported(pod: str, help_: str) -> None:
    findings = [one for one in found(custom(KIND, "[{name: gpu}]", pod)) if one.rule == "unknown-field"]
    assert [help_ in one.help for one in findings] == [True]


def test_fields_that_controllers_add_or_complete_are_not_checked() -> None:
    pod = POD + "model: large\nrestartPolicy: '{{parameters.policy}}'\nvolumes: [{name: a, ours: {}}]\n"
    assert rules(custom(KIND, "[{name: gpu}]", pod)) == []


def test_a_typo_is_fixed_in_a_custom_resource() -> None:
    (finding,) = [one for one in found(custom(KIND, "[{name: gpuu}]")) if one.rule == "unknown-claim"]
    assert finding.path == "spec.workerGroupSpecs[0].template.spec.containers[0].resources.claims[0].name"
    assert finding.fix is not None


MACHINE = f"""{TEMPLATE}---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: diner}}
spec:
  template:
    spec:
      resourceClaims: [{{name: gpu, resourceClaimTemplateName: lunches}}]
      domain: {{devices: {{gpus: [{{name: a, claimName: NAME, requestName: REQUEST}}]}}}}
"""


@pytest.mark.parametrize(
    ("name", "request_", "expected"),
    [
        ("gpu", "gpu", []),
        ("gpu", "gpus", [("unknown-request", "requestName")]),
        ("gpuu", "gpu", [("unknown-claim", "claimName")]),
    ],
)
def test_devices_of_a_virtual_machine_name_claims(name: str, request_: str, expected: list[tuple[str, str]]) -> None:
    findings = found(MACHINE.replace("NAME", name).replace("REQUEST", request_))
    assert [(one.rule, one.path.rpartition(".")[2]) for one in findings] == expected


WORKFLOW = f"""{TEMPLATE}---
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {{generateName: diner-}}
spec:
  templates:
  - name: train
    podSpecPatch: |
      resourceClaims: [{{name: gpu, resourceClaimTemplateName: lunches}}]
    container: {{image: busybox, resources: {{claims: [USE]}}}}
"""


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("{name: gpu}", []),
        ("{name: gpus}", ["unknown-claim"]),
        ("{name: gpu, request: gpus}", ["unknown-request"]),
        ("{name: '{{inputs.parameters.claim}}'}", []),
    ],
)
def test_containers_of_a_workflow_name_claims_of_its_patch(use: str, expected: list[str]) -> None:
    assert rules(WORKFLOW.replace("USE", use)) == expected


@pytest.mark.parametrize(("kind", "path"), [("Job", "spec"), ("CronJob", "spec.jobTemplate.spec")])
def test_claims_above_the_template_of_a_job_are_placed(kind: str, path: str) -> None:
    inner: object = "{resourceClaims: [], template: {spec: {containers: [{name: a, image: x}], restartPolicy: Never}}}"
    spec = inner if kind == "Job" else f"{{jobTemplate: {{spec: {inner}}}}}"
    (finding,) = found(f"apiVersion: batch/v1\nkind: {kind}\nmetadata: {{name: a}}\nspec: {spec}\n")
    assert (finding.rule, finding.path) == ("unknown-field", f"{path}.resourceClaims")
    assert finding.help == f"it belongs deeper: {path}.template.spec.resourceClaims"
