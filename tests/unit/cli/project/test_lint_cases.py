"""``dra-kit lint`` of manifests that people wrote: each problem is found once, with a remedy that works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.project.linting import lint

CASES = Path(__file__).parents[3] / "data" / "cases"
_EXACTLY = "spec.devices.requests[].exactly"


def found(file: str, *options: object, code: int) -> list[tuple[str, str, str]]:
    """The rule, path, and message with remedy of each finding."""
    findings = json.loads(lint(CASES / file, *options, "--format", "json", code=code).stdout)
    return [(one["rule"], one["path"], f"{one['message']}; {one['help']}") for one in findings]


@pytest.mark.parametrize(
    ("file", "code", "expected"),
    [
        (
            "tolerations-at-claim-level/claim.yaml", 1,
            [
                ("unknown-field", "spec.resourceClassName", f"name the class at {_EXACTLY}.deviceClassName"),
                ("unknown-field", "spec.tolerations", f"it belongs deeper: {_EXACTLY}.tolerations"),
            ],
        ),
        (
            "memory-among-attributes/claim-old-blog.yaml", 1,
            [
                ("deprecated-version", "apiVersion", "write apiVersion: resource.k8s.io/v1"),
                ("unknown-field", "spec.spec", "its fields belong directly to spec; only a ResourceClaimTemplate has"),
                (
                    "quantity-as-text", "spec.spec.devices.requests[0].selectors[0].cel.expression",
                    'write device.capacity["gpu.example.net"].memory.compareTo(quantity("40Gi")) >= 0',
                ),
                ("unknown-field", "spec.resourceClaims[0].source", "since Kubernetes 1.31 its fields are in the entry"),
            ],
        ),
        (
            "class-with-node-selector/all.yaml", 1,
            [
                (
                    "unknown-field", "spec.nodeSelector",
                    "config, extendedResourceName, selectors; nodeSelector is a field of a pod: spec.nodeSelector",
                ),
                (
                    "unknown-field", "spec.resourceClaims[0].resourceClassName",
                    "write resourceClaimName: <claim>, or resourceClaimTemplateName: <template>",
                ),
                ("wrong-type", "spec.containers[0].resources.claims[0]", "write {name: gpu}"),
            ],
        ),
        (
            "unqualified-match-attribute/class.yaml", 1,
            [("unknown-field", "spec.constraints", "constraints is a field of a ResourceClaim: spec.")],
        ),
        (
            "unqualified-match-attribute/claim.yaml", 1,
            [
                (
                    "unqualified-attribute", "spec.devices.constraints[0].matchAttribute",
                    "write resource.kubernetes.io/numaNode if the drivers publish this standard attribute",
                )
            ],
        ),
        (
            "counters-beside-devices/slice.yaml", 1,
            [
                (
                    "invalid-value", "spec",
                    "one with sharedCounters and one with devices, each with generation: 1 and resourceSliceCount: 2",
                )
            ],
        ),
        (
            "admin-access/objects.yaml", 1,
            [
                (
                    "admin-access", "spec.spec.devices.requests[0].exactly.adminAccess",
                    'label the Namespace: resource.kubernetes.io/admin-access: "true"',
                )
            ],
        ),
        (
            "one-pool-name-on-three-nodes/cluster", 1,
            3 * [
                (
                    "shared-pool", "spec.pool.name",
                    "n1, n2, n3; their devices of one name, such as dummy0, are one device, which only one",
                )
            ],
        ),
        (
            "tolerated-noexecute/without-effect.yaml", 0,
            [
                (
                    "toleration-without-effect", "spec.devices.requests[0].exactly.tolerations[0]",
                    "name the effect: {key: card.example.net/flaky, operator: Exists, effect: NoExecute}",
                )
            ],
        ),
        ("tolerated-noexecute/with-effect.yaml", 0, []),
        (
            "replicas-share-one-claim/deployment.yaml", 0,
            [
                (
                    "shared-claim", "spec.template.spec.resourceClaims[0].resourceClaimName",
                    "to give each pod its own devices, name a template: resourceClaimTemplateName: <template>",
                )
            ],
        ),
        (
            "template-in-another-namespace/pod.yaml", 0,
            [
                (
                    "missing-claim", "spec.resourceClaims[0].resourceClaimTemplateName",
                    "is in another namespace than the pod: oven-a, not oven-b",
                )
            ],
        ),
        (
            "version-that-goes-in-1.38/claim.yaml", 0,
            [
                ("deprecated-version", "apiVersion", "config=resource.k8s.io/v1beta1=true, from Kubernetes 1.38"),
                ("deprecated-version", "apiVersion", "config=resource.k8s.io/v1beta2=true, from Kubernetes 1.39"),
            ],
        ),
        (
            "keys-in-lower-case/pod.yaml", 1,
            [
                ("unknown-field", "apiversion", 'did you mean "apiVersion"?'),
                ("unknown-field", "spec.restartpolicy", 'did you mean "restartPolicy"?'),
                ("unknown-field", "spec.resourceclaims", 'did you mean "resourceClaims"?'),
                ("unknown-field", "spec.resourceclaims[0].resourceclaimname", 'did you mean "resourceClaimName"?'),
            ],
        ),
        (
            "list-attribute-without-gate/slice.yaml", 1,
            [
                (
                    "invalid-value", "spec.devices[0].attributes[resource.kubernetes.io/pcieRoot].strings",
                    "--feature-gates=DRAListTypeAttributes=true; --alpha checks for an API server that has it",
                )
            ],
        ),
        ("waits-for-a-binding-condition/slice-without-failure.yaml", 1, [
            ("invalid-value", "spec.devices[0].bindingFailureConditions", "write both lists, or none"),
            ("unknown-field", "spec.devices[0].bindingTimeoutSeconds", "known here: allNodes"),
        ]),
    ],
)  # fmt: skip
def test_a_problem_has_its_cause_and_remedy(file: str, code: int, expected: list[tuple[str, str, str]]) -> None:
    findings = found(file, code=code)
    assert [one[:2] for one in findings] == [one[:2] for one in expected]
    for (_, _, text), (_, _, part) in zip(findings, expected, strict=True):
        assert part in text


@pytest.mark.parametrize("file", ["claim-for-the-network-of-the-pod/pod.yaml", "claim-for-the-pod-alone/pod.yaml"])
def test_a_claim_for_the_whole_pod_is_only_noted(file: str) -> None:
    ((rule, _, text),) = found(file, "--strict", code=0)
    assert rule == "unused-claim"
    assert "prepared only for the pod as a whole" in text


def test_a_list_attribute_is_valid_where_its_feature_is_on() -> None:
    assert found("list-attribute-without-gate/slice.yaml", "--alpha", "--strict", code=0) == []


NIC = "nic.example.net"
MEMORY = 'device.capacity["gpu.example.net"].memory'


@pytest.mark.parametrize(
    ("file", "saved", "expected"),
    [
        ("claim", False, [("quantity-as-text", f'if memory is a capacity, write {MEMORY}.compareTo(')]),
        ("claim", True, [("unknown-attribute", f'write {MEMORY}.compareTo(quantity("40Gi")) >= 0')]),
        ("claim-bytes", False, [("attribute-quantity", f'write {MEMORY}.isGreaterThan(quantity("40Gi"))')]),
        ("claim-bytes", True, [
            ("unknown-attribute", 'compareTo(quantity("42949672960")) >= 0'),
            ("unknown-attribute", 'memory.isGreaterThan(quantity("40Gi"))'),
        ]),
        ("claim-quantity", False, [
            ("attribute-quantity", f'write {MEMORY}.compareTo(quantity("40Gi")) >= 0'),
            ("attribute-quantity", f'write {MEMORY}.compareTo(quantity("40Gi"))'),
        ]),
        ("claim-quantity", True, [
            ("unknown-attribute", 'compareTo(quantity("40Gi")) >= 0'),
            ("unknown-attribute", 'compareTo(quantity("40Gi"))'),
        ]),
    ],
)  # fmt: skip
def test_memory_is_compared_as_the_capacity_that_it_is(file: str, saved: bool, expected: list[tuple[str, str]]) -> None:
    options = ("--from", CASES / "memory-among-attributes" / "cluster") if saved else ()
    errors = any(rule != "quantity-as-text" for rule, _ in expected)
    findings = found(f"memory-among-attributes/{file}.yaml", *options, code=int(errors))
    assert [rule for rule, _, _ in findings] == [rule for rule, _ in expected]
    for (_, _, text), (_, part) in zip(findings, expected, strict=True):
        assert part in text


@pytest.mark.parametrize("saved", [False, True])
def test_the_field_of_a_value_in_a_slice_is_removed_from_a_selector(saved: bool, tmp_path: Path) -> None:
    folder = CASES / "api-field-after-the-attribute"
    options = ("--from", folder / "cluster") if saved else ()
    findings = found("api-field-after-the-attribute/class.yaml", *options, code=1)
    assert [(rule, text.partition("; write ")[2]) for rule, _, text in findings] == [
        ("attribute-field", f'device.attributes["{NIC}"].rdma'),
        ("domain-with-name", f'device.attributes["{NIC}"].model'),
    ]
    copy = tmp_path / "class.yaml"
    copy.write_bytes((folder / "class.yaml").read_bytes())
    lint("--fix", copy, code=0)
    assert f'device.attributes["{NIC}"].rdma == true' in copy.read_text()
    assert f'device.attributes["{NIC}"].model == "X1"' in copy.read_text()


def test_a_constraint_gets_the_full_name_that_devices_have() -> None:
    folder = CASES / "unqualified-match-attribute"
    ((rule, _, text),) = found("unqualified-match-attribute/claim.yaml", "--from", folder / "cluster", code=1)
    assert rule == "unqualified-attribute"
    assert text.endswith("; devices have resource.kubernetes.io/numaNode: write resource.kubernetes.io/numaNode")


def test_keys_in_lower_case_are_fixed(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_bytes((CASES / "keys-in-lower-case" / "pod.yaml").read_bytes())
    lint("--fix", file, code=0)
    keys = ("apiVersion:", "restartPolicy:", "resourceClaims:", "resourceClaimName:")
    assert [key for key in keys if key not in file.read_text()] == []
