"""Pods that effects of the driver make: who may make them, reach them and evict them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

import dra_kit as dra
from dra_kit.client.resources import PODS
from dra_kit.node.context import ClusterFacts
from dra_kit.node.effects.cluster_objects import ClusterObjects
from dra_kit.sandbox.drivers.accounts import create_accounts
from tests.charts.clients import serving
from tests.charts.life import accounts
from tests.charts.options import EXAMPLES
from tests.charts.rendering import DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm, Manifests, Refused
from tests.unit.admission.policy.drivers import DRIVERS, GPU

LABELS = {"app.kubernetes.io/component": "mps"}
NAME = f"{RELEASE}-effect-pods"
RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "create", "patch", "delete", "list"]}]


def rendered(helm: Helm, **pods: Any) -> Manifests:
    return helm.render({**DEPLOYED, "node": {"effectPods": {"labels": LABELS, **pods}}})


def test_a_driver_that_makes_none_has_no_objects_for_them(helm: Helm) -> None:
    manifests = helm.render(DEPLOYED)

    assert NAME not in {item["metadata"]["name"] for item in manifests.objects}
    assert f"{RELEASE}-node" not in manifests.names("Role")


def test_effect_pods_have_no_connections_by_default(helm: Helm) -> None:
    spec = rendered(helm).named("NetworkPolicy", NAME)["spec"]

    assert spec == {"podSelector": {"matchLabels": LABELS}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_connections_that_are_wanted_are_open(direction: str, helm: Helm) -> None:
    rules = [{"ports": [{"port": 9400}]}]

    assert rendered(helm, networkPolicy={direction: rules}).named("NetworkPolicy", NAME)["spec"][direction] == rules


def test_effect_pods_are_not_evicted_by_default(helm: Helm) -> None:
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
    node = {"namespacedRules": {"{{ .Release.Namespace }}": RULES}, "effectPods": {"labels": LABELS}}
    manifests = helm.render({**DEPLOYED, "node": node})
    role, binding = (manifests.named(kind, f"{RELEASE}-node") for kind in ("Role", "RoleBinding"))

    assert role["rules"] == RULES
    assert {item["metadata"]["namespace"] for item in (role, binding)} == {NAMESPACE}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": manifests.pod("node")["serviceAccountName"], "namespace": NAMESPACE}
    ]


@pytest.mark.parametrize("verb", ["create", "update", "patch", "*"])
@pytest.mark.parametrize("resource", ["pods", "*"])
@pytest.mark.parametrize("group", ["", "*"])
@pytest.mark.parametrize("place", ["extraRules", "namespacedRules"])
def test_rights_to_write_pods_need_labels_of_these(
    place: str, group: str, resource: str, verb: str, helm: Helm
) -> None:
    rules = [{"apiGroups": [group], "resources": ["services", resource], "verbs": ["get", verb]}]
    node = {place: rules if place == "extraRules" else {"other": rules}}

    with pytest.raises(Refused, match=r"node\.effectPods\.labels is empty, but node\.extraRules"):
        helm.render({**DEPLOYED, "node": node})


@pytest.mark.parametrize("verbs", [["get", "list", "watch"], ["delete"]])
def test_rights_that_make_no_pods_need_no_labels(verbs: list[str], helm: Helm) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]

    assert NAME not in helm.render({**DEPLOYED, "node": {"extraRules": rules}}).names("ValidatingAdmissionPolicy")


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        ({"app.kubernetes.io/instance": RELEASE}, "node"),
        ({"app.kubernetes.io/name": DRIVER, "app.kubernetes.io/instance": RELEASE}, "node"),
        ({"app.kubernetes.io/component": "controller"}, "controller"),
        ({"app.kubernetes.io/component": "webhook"}, "webhook"),
    ],
)
def test_labels_that_pods_of_a_role_have_too_are_refused(labels: dict[str, str], role: str, helm: Helm) -> None:
    with pytest.raises(Refused, match=rf"node\.effectPods\.labels select the pods of the {role} role"):
        helm.render({**DEPLOYED, "node": {"effectPods": {"labels": labels}}})


@pytest.mark.parametrize(
    "rules",
    [
        [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "watch"]}],
        [{"apiGroups": ["x.example"], "resources": ["menus"], "verbs": ["list"]}],
        [{"nonResourceURLs": ["/metrics"], "verbs": ["*"]}],
    ],
)
def test_rights_to_read_need_no_policy(rules: list[Any], helm: Helm) -> None:
    manifests = helm.render({**DEPLOYED, "node": {"extraRules": rules}})

    assert f"{RELEASE}-node-objects" not in manifests.names("ValidatingAdmissionPolicy")


def test_the_policy_of_objects_matches_all_that_the_node_may_write_but_no_pods(helm: Helm) -> None:
    rules = [
        {"apiGroups": ["x.example", "y.example"], "resources": ["menus", "menus/status"], "verbs": ["delete"]},
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["patch"]},
        {"apiGroups": ["z.example"], "resources": ["tables"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods/exec", "pods/log"], "verbs": ["get"]},
    ]
    node = {"extraRules": rules, "namespacedRules": {"other": RULES}, "effectPods": {"labels": LABELS}}
    policy = helm.render({**DEPLOYED, "node": node}).named("ValidatingAdmissionPolicy", f"{RELEASE}-node-objects")
    matched = policy["spec"]["matchConstraints"]["resourceRules"]

    assert [(*rule["apiGroups"], *rule["resources"]) for rule in matched] == [
        ("x.example", "menus"), ("x.example", "menus/status"), ("y.example", "menus"), ("y.example", "menus/status"),
        ("*", "*/*"), ("", "pods/exec"),
    ]  # fmt: skip


async def test_the_pod_of_mps_is_one_that_the_chart_of_the_gpu_driver_allows(helm: Helm) -> None:
    driver, values = DRIVERS[GPU], yaml.safe_load((EXAMPLES / "gpu-driver" / "values.yaml").read_text(encoding="utf-8"))
    daemon: Any
    [daemon] = [effect for effect in driver.effects.values() if issubclass(effect, dra.ClusterObject)]
    folder = {"path": "/run/gpu.nvidia.com/mps/0a1b2c3d4e5f"}
    pod = daemon(
        claim_uid="6c1a0a52", namespace=NAMESPACE, node="node-1", image="gpu-driver:1", driver_root="/",
        devices=["GPU-1"], folder=folder, pull_secrets=["registry"],
    )  # fmt: skip
    manifests = helm.render({**values, "imagePullSecrets": [{"name": "registry"}]})
    async with serving("node-1") as served:
        await create_accounts(accounts(manifests), served.server, served.admin)
        node = await served.client(served.server.token(NAMESPACE, f"{RELEASE}-node", node="node-1"))
        keeper = ClusterObjects(node, driver.name, ClusterFacts(node, "node-1", lambda _: None))

        made = await keeper.apply(pod.address(), pod.body())
        again = await keeper.apply(pod.address(), pod.body())

        assert made["metadata"]["uid"] == again["metadata"]["uid"]
        assert made["spec"]["containers"][0]["securityContext"]["privileged"] is True
        await node.delete(PODS, pod.address().name, NAMESPACE, grace_period_seconds=0)
        assert await keeper.get(pod.address()) is None


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
