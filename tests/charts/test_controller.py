"""The controller in the chart, of whose replicas a Lease makes one the active one; the replicas of the webhook."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dra_kit.controller.agent import lease_name
from tests.charts.rendering import ALL_ROLES, CHART, DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm, Manifests, Refused

NAME = f"{RELEASE}-controller"


def values(**controller: Any) -> dict[str, Any]:
    return {**DEPLOYED, "controller": controller}


@pytest.fixture
def manifests(helm: Helm) -> Manifests:
    return helm.render(DEPLOYED)


def test_an_old_replica_ends_when_a_new_one_is_ready(manifests: Manifests) -> None:
    spec = manifests.named("Deployment", NAME)["spec"]

    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


replicated = pytest.mark.parametrize("role", ["controller", "webhook"])


def of_role(helm: Helm, role: str, **given: Any) -> Manifests:
    return helm.render({**ALL_ROLES, role: {**ALL_ROLES.get(role, {}), **given}})


@replicated
def test_replicas_are_on_different_nodes_where_that_is_possible(role: str, helm: Helm) -> None:
    manifests = of_role(helm, role)
    (constraint,) = manifests.pod(role)["topologySpreadConstraints"]

    assert (constraint["topologyKey"], constraint["maxSkew"]) == ("kubernetes.io/hostname", 1)
    # a cluster may have one node only
    assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
    assert constraint["labelSelector"] == manifests.named("Deployment", f"{RELEASE}-{role}")["spec"]["selector"]


@replicated
def test_they_are_spread_otherwise_where_a_value_says_so(role: str, helm: Helm) -> None:
    zones = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}

    manifests = of_role(helm, role, topologySpreadConstraints=[zones])
    assert manifests.pod(role)["topologySpreadConstraints"] == [zones]


@replicated
def test_no_more_than_one_replica_is_evicted_at_a_time(role: str, helm: Helm) -> None:
    manifests = of_role(helm, role)
    budget = manifests.named("PodDisruptionBudget", f"{RELEASE}-{role}")

    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["metadata"]["namespace"] == NAMESPACE
    assert budget["spec"]["selector"] == manifests.named("Deployment", f"{RELEASE}-{role}")["spec"]["selector"]


@replicated
@pytest.mark.parametrize("given", [{"replicas": 1}, {"podDisruptionBudget": False}], ids=["one-replica", "disabled"])
def test_single_replica_has_no_disruption_budget(given: dict[str, Any], role: str, helm: Helm) -> None:
    assert f"{RELEASE}-{role}" not in of_role(helm, role, **given).names("PodDisruptionBudget")


def test_zero_replicas_are_rejected(helm: Helm) -> None:
    with pytest.raises(Refused, match="replicas"):
        helm.render(values(replicas=0))


def test_the_lease_that_it_may_take_is_the_one_that_it_asks_for(manifests: Manifests) -> None:
    role, lease = manifests.named("Role", NAME), manifests.named("Lease")
    (named,) = role["rules"]

    assert role["metadata"]["namespace"] == lease["metadata"]["namespace"] == NAMESPACE
    assert lease["metadata"]["name"] == lease_name(DRIVER)
    assert "spec" not in lease  # so that no upgrade takes it from who has it
    assert (named["verbs"], named["resourceNames"]) == (["get", "update"], [lease_name(DRIVER)])
    binding = manifests.named("RoleBinding", NAME)
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]


def test_of_slices_and_nodes_it_may_what_clearing_away_takes(manifests: Manifests) -> None:
    rules = {tuple(rule["resources"]): rule["verbs"] for rule in manifests.named("ClusterRole", NAME)["rules"]}

    assert rules == {
        ("resourceclaims",): ["list", "watch"],
        ("events",): ["create", "patch"],
        ("resourceslices",): ["list", "delete"],
        ("nodes",): ["list"],
    }


def test_rights_of_the_drivers_own_handlers_are_added(manifests: Manifests, helm: Helm) -> None:
    rule = {"apiGroups": ["kitchen.example"], "resources": ["menus"], "verbs": ["list", "watch"]}
    more = helm.render(values(extraRules=[rule])).named("ClusterRole", NAME)

    assert more["rules"] == [*manifests.named("ClusterRole", NAME)["rules"], rule]


FOR_THE_CLUSTER: dict[str, list[dict[str, Any]]] = {
    "clusterPools": [{"resources": ["resourceslices"], "verbs": ["watch", "create", "update"]}],
    "binding": [
        {"resources": ["resourceclaims"], "verbs": ["get"]},
        {"resources": ["resourceclaims/status"], "verbs": ["patch", "update"]},
        {
            "resources": ["resourceclaims/driver"],
            "verbs": ["arbitrary-node:patch", "arbitrary-node:update"],
            "resourceNames": [DRIVER],
        },
    ],
    "taintRules": [
        {"resources": ["devicetaintrules"], "verbs": ["list", "watch", "create", "update", "delete"]},
    ],
}
OWNER = {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": [NAME],
         "verbs": ["get"]}  # fmt: skip


@pytest.mark.parametrize("value", FOR_THE_CLUSTER)
def test_a_right_for_the_cluster_is_given_only_when_it_is_asked_for(
    value: str, manifests: Manifests, helm: Helm
) -> None:
    before, after = (
        made.named("ClusterRole", NAME)["rules"] for made in (manifests, helm.render(values(**{value: True})))
    )
    more = [rule for rule in after if rule not in before]

    wanted = [{"apiGroups": ["resource.k8s.io"], **rule} for rule in FOR_THE_CLUSTER[value]]
    assert more == wanted + ([OWNER] if value != "binding" else [])


def test_what_it_makes_in_the_cluster_is_owned_by_its_role(helm: Helm, manifests: Manifests) -> None:
    assert "DRA_CLUSTER_ROLE" not in manifests.environment("controller")
    for value in ("clusterPools", "taintRules"):
        assert helm.render(values(**{value: True})).environment("controller")["DRA_CLUSTER_ROLE"] == NAME


def test_it_has_the_drivers_settings(helm: Helm) -> None:
    rendered = helm.render({**DEPLOYED, "node": {"settings": {"fabric_url": "https://fabric.example"}}})

    assert "https://fabric.example" in rendered.environment("controller").values()


def test_a_policy_keeps_each_right_to_what_is_the_drivers(helm: Helm, manifests: Manifests) -> None:
    everything = helm.render(values(clusterPools=True, binding=True, taintRules=True))
    found = {
        item["metadata"]["name"]: item["spec"]
        for item in everything.objects
        if item["kind"] == "ValidatingAdmissionPolicy" and item["metadata"]["name"].startswith(NAME)
    }

    assert {name: spec["matchConstraints"]["resourceRules"][0]["resources"] for name, spec in found.items()} == {
        NAME: ["resourceslices"],
        f"{NAME}-status": ["resourceclaims/status"],
        f"{NAME}-taint-rules": ["devicetaintrules"],
    }
    user = f'request.userInfo.username == "system:serviceaccount:{NAMESPACE}:{NAME}"'
    for name, spec in found.items():
        assert [condition["expression"] for condition in spec["matchConditions"]] == [user]
        assert any(DRIVER in item["expression"] for item in spec["validations"])
        binding = everything.named("ValidatingAdmissionPolicyBinding", name)["spec"]
        assert (binding["policyName"], binding["validationActions"]) == (name, ["Deny"])
    # what it clears away without being asked
    assert manifests.named("ValidatingAdmissionPolicy", NAME)["spec"] == found[NAME]


def test_controller_alone_leaves_nothing_of_the_node(helm: Helm) -> None:
    nodes = f"{RELEASE}-node"
    both = helm.render(DEPLOYED).objects
    alone = helm.render({**DEPLOYED, "node": {"enabled": False}}).objects
    assert any(item["metadata"]["name"].startswith(nodes) for item in both)
    assert [item for item in alone if item["metadata"]["name"].startswith(nodes)] == []
    assert {item["kind"] for item in alone if item["metadata"]["name"] == NAME} >= {"Deployment", "ClusterRole"}


@pytest.mark.parametrize("other", [{"node": {"decommission": True}}, {"globs": "driver: a.b\n"}], ids=["end", "globs"])
def test_what_needs_nodes_cannot_be_combined_with_a_controller_alone(helm: Helm, other: dict[str, Any]) -> None:
    node = {"enabled": False, **other.get("node", {})}
    given = {key: value for key, value in DEPLOYED.items() if "globs" not in other or key == "image"}
    with pytest.raises(Refused, match=r"node\.enabled=false cannot be combined"):
        helm.render({**given, **other, "node": node})


@pytest.mark.parametrize(
    ("given", "first", "uninstall"),
    [
        ({}, "runs on every node that the DaemonSet selects.", "They cannot terminate without the driver"),
        ({"node": {"enabled": False}}, "runs in its controller only.", "`helm uninstall` fails while claims have them"),
        (
            {"node": {"enabled": False}, "controller": {"enabled": False}, "drainGuard": {"enabled": False}},
            "runs neither on nodes nor in a controller:",
            "",
        ),
    ],
    ids=["nodes", "controller-only", "neither"],
)
def test_notes_say_where_the_driver_runs_and_what_stops_its_uninstall(
    helm: Helm, tmp_path: Path, given: dict[str, Any], first: str, uninstall: str
) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    # `helm template` does not print them
    (chart / "templates" / "NOTES.txt").rename(chart / "files" / "notes.txt")
    (chart / "templates" / "notes.yaml").write_text(
        '{{ dict "kind" "Notes" "metadata" (dict "name" "x") "text" (tpl (.Files.Get "files/notes.txt") .) | toYaml }}'
    )
    notes = helm.render({**DEPLOYED, **given}, chart=chart).named("Notes")["text"]
    assert notes.startswith(f"Driver {DRIVER} {first}")
    assert uninstall in notes
    assert ("helm uninstall" in notes) == bool(uninstall)
