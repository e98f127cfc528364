"""Pods that effects of the driver make: who may make them, reach them and evict them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.charts.rendering import DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm, Manifests

LABELS = {"app.kubernetes.io/component": "mps"}
NAME = f"{RELEASE}-effect-pods"
RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "create", "patch", "delete", "list"]}]


def rendered(helm: Helm, **pods: Any) -> Manifests:
    return helm.render({**DEPLOYED, "node": {"effectPods": {"labels": LABELS, **pods}}})


def test_a_driver_that_makes_none_has_no_objects_for_them(helm: Helm) -> None:
    manifests = helm.render(DEPLOYED)

    assert NAME not in {item["metadata"]["name"] for item in manifests.objects}
    assert f"{RELEASE}-node" not in manifests.names("Role")


def test_nobody_connects_to_them_and_they_connect_to_nobody(helm: Helm) -> None:
    spec = rendered(helm).named("NetworkPolicy", NAME)["spec"]

    assert spec == {
        "podSelector": {"matchLabels": LABELS}, "policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": []
    }  # fmt: skip


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_connections_that_are_wanted_are_open(direction: str, helm: Helm) -> None:
    rules = [{"ports": [{"port": 9400}]}]

    assert rendered(helm, networkPolicy={direction: rules}).named("NetworkPolicy", NAME)["spec"][direction] == rules


def test_nobody_evicts_them_unless_one_says_so(helm: Helm) -> None:
    budget = rendered(helm).named("PodDisruptionBudget", NAME)

    assert budget["spec"]["selector"] == {"matchLabels": LABELS}
    assert budget["spec"]["minAvailable"] > 1_000_000
    assert NAME not in rendered(helm, podDisruptionBudget=False).names("PodDisruptionBudget")


def test_the_admission_policy_is_about_the_nodes_account_and_denies(helm: Helm) -> None:
    manifests = rendered(helm)
    policy = manifests.named("ValidatingAdmissionPolicy", NAME)["spec"]
    binding = manifests.named("ValidatingAdmissionPolicyBinding", NAME)["spec"]
    account = manifests.pod("node")["serviceAccountName"]

    assert (binding["policyName"], binding["validationActions"], policy["failurePolicy"]) == (NAME, ["Deny"], "Fail")
    assert f'== "system:serviceaccount:{NAMESPACE}:{account}"' in policy["matchConditions"][0]["expression"]


def test_rights_in_one_namespace_are_a_role_there(helm: Helm) -> None:
    manifests = helm.render({**DEPLOYED, "node": {"namespacedRules": {"{{ .Release.Namespace }}": RULES}}})
    role, binding = (manifests.named(kind, f"{RELEASE}-node") for kind in ("Role", "RoleBinding"))

    assert role["rules"] == RULES
    assert {item["metadata"]["namespace"] for item in (role, binding)} == {NAMESPACE}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": manifests.pod("node")["serviceAccountName"], "namespace": NAMESPACE}
    ]


def test_a_setting_may_name_what_the_chart_knows(helm: Helm) -> None:
    settings = {
        "image": '{{ include "dra-driver.image" . }}',
        "namespace": "{{ .Release.Namespace }}",
        "port": 80,
        "driver": DRIVER,
    }
    environment = helm.render({**DEPLOYED, "node": {"settings": settings}}).environment("node")

    assert environment["DRIVER_IMAGE"] == "images.example/pizza-driver:1.2.3"
    assert environment["DRIVER_NAMESPACE"] == NAMESPACE
    assert (environment["DRIVER_PORT"], environment["DRIVER_DRIVER"]) == ("80", DRIVER)
