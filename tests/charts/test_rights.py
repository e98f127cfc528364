"""Accounts, roles and the admission policy: all speak of the same names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.charts.rendering import ALL_ROLES, DRIVER, NAMESPACE, Helm, Manifests

POLICIES = ["node", "node-status"]
NAMES = [pytest.param({}, id="release-name"), pytest.param({"fullnameOverride": "oven"}, id="other-name")]


@pytest.fixture(params=NAMES)
def manifests(request: pytest.FixtureRequest, helm: Helm) -> Manifests:
    return helm.render({**ALL_ROLES, **request.param})


def workloads(manifests: Manifests) -> Iterator[Any]:
    return (item for item in manifests.objects if item["kind"] in {"DaemonSet", "Deployment"})


def with_pods(manifests: Manifests) -> Iterator[Any]:
    """The workloads, and what asks before an uninstall."""
    return (item for item in manifests.objects if item["kind"] in {"DaemonSet", "Deployment", "Job"})


def test_every_pod_has_an_account_of_its_own_that_exists(manifests: Manifests) -> None:
    used = [item["spec"]["template"]["spec"]["serviceAccountName"] for item in with_pods(manifests)]

    accounts = [item["metadata"] for item in manifests.objects if item["kind"] == "ServiceAccount"]
    assert len(used) == 4
    assert sorted(used) == sorted(item["name"] for item in accounts)
    assert {item["namespace"] for item in accounts} == {NAMESPACE}


def test_every_workload_finds_its_own_pods_and_no_others(manifests: Manifests) -> None:
    for workload in workloads(manifests):
        selector = workload["spec"]["selector"]["matchLabels"].items()
        matching = [
            other["metadata"]["name"]
            for other in workloads(manifests)
            if selector <= other["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert matching == [workload["metadata"]["name"]]


def test_no_pod_gets_a_token_by_only_naming_an_account(manifests: Manifests) -> None:
    accounts = [item for item in manifests.objects if item["kind"] == "ServiceAccount"]

    assert [item["automountServiceAccountToken"] for item in accounts] == [False] * 4
    # all of them read theirs
    assert [item["spec"]["template"]["spec"]["automountServiceAccountToken"] for item in with_pods(manifests)] == (
        [True] * 4
    )


def policy(manifests: Manifests, name: str, kind: str = "ValidatingAdmissionPolicy") -> Any:
    """The release's policy, or binding, of that name."""
    account = manifests.named("DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"]
    return manifests.named(kind, f"{account.removesuffix('node')}{name}")


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_about_the_account_that_the_nodes_pods_use(name: str, manifests: Manifests) -> None:
    account = manifests.named("DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"]
    (condition,) = policy(manifests, name)["spec"]["matchConditions"]

    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    assert condition["expression"] == f'request.userInfo.username == "{user}"'


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_bound_and_denies(name: str, manifests: Manifests) -> None:
    binding = policy(manifests, name, "ValidatingAdmissionPolicyBinding")["spec"]

    assert binding["policyName"] == policy(manifests, name)["metadata"]["name"]
    assert binding["validationActions"] == ["Deny"]
    assert policy(manifests, name)["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize(
    ("name", "resource", "operations"),
    [
        ("node", "resourceslices", ["CREATE", "UPDATE", "DELETE"]),
        # a status is neither created nor deleted; patch and apply are updates
        ("node-status", "resourceclaims/status", ["UPDATE"]),
    ],
)
def test_a_policy_covers_every_write_in_every_version(
    name: str, resource: str, operations: list[str], manifests: Manifests
) -> None:
    (rule,) = policy(manifests, name)["spec"]["matchConstraints"]["resourceRules"]

    assert rule == {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1", "v1beta2", "v1beta1"],
        "operations": operations,
        "resources": [resource],
    }


def test_the_policies_and_the_role_name_the_driver(manifests: Manifests) -> None:
    slices, status = policy(manifests, "node"), policy(manifests, "node-status")
    role = manifests.named("ClusterRole", slices["metadata"]["name"])

    (driver,) = [item for item in role["rules"] if item["resources"] == ["resourceclaims/driver"]]
    assert driver["resourceNames"] == [DRIVER]
    assert f'slice.spec.driver == "{DRIVER}"' in slices["spec"]["validations"][1]["expression"]
    assert f'entry.driver != "{DRIVER}"' in status["spec"]["validations"][1]["expression"]


def test_rights_that_the_drivers_effects_need_are_added(helm: Helm) -> None:
    rule = {"apiGroups": ["kitchen.example"], "resources": ["menus"], "verbs": ["get", "create", "patch", "delete"]}
    plain, more = (helm.render({**ALL_ROLES, "node": {"extraRules": rules}}) for rules in ([], [rule]))
    name = policy(plain, "node")["metadata"]["name"]
    before = plain.named("ClusterRole", name)["rules"]
    assert more.named("ClusterRole", name)["rules"] == [*before, rule]


@pytest.mark.parametrize("role", ["controller", "webhook"])
def test_other_roles_run_as_an_unprivileged_user(role: str, helm: Helm) -> None:
    context = helm.render(ALL_ROLES).container(role)["securityContext"]

    assert context["runAsNonRoot"] is True
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
