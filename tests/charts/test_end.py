"""The end of a release: asked before it, and the driver's own end on the nodes."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import DAEMON_SETS
from dra_kit.diagnosis.drain import DrainQuery, wait_drained
from dra_kit.sandbox.drivers.accounts import create_accounts
from tests.charts.clients import serving
from tests.charts.life import accounts
from tests.charts.rendering import DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm, Manifests, Refused
from tests.charts.rights import Audit, Right, granted

GUARD = f"{RELEASE}-drain-guard"


@pytest.fixture(scope="module")
def deployed(helm: Helm) -> Manifests:
    return helm.render(DEPLOYED)


def guard(manifests: Manifests) -> Any:
    """The container that asks."""
    (container,) = manifests.named("Job", GUARD)["spec"]["template"]["spec"]["containers"]
    return container


def test_it_is_asked_before_an_uninstall_and_never_before_an_upgrade(deployed: Manifests) -> None:
    hooks = {
        item["kind"]: item["metadata"]["annotations"]["helm.sh/hook"]
        for item in deployed.objects
        if item["metadata"]["name"] == GUARD
    }
    assert hooks == dict.fromkeys(("Job", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"), "pre-delete")


def test_what_asks_goes_again_whatever_the_answer(deployed: Manifests) -> None:
    for item in deployed.objects:
        if item["metadata"]["name"] == GUARD:
            policy = item["metadata"]["annotations"]["helm.sh/hook-delete-policy"].split(",")
            assert {"hook-succeeded", "hook-failed", "before-hook-creation"} == set(policy)


def test_its_account_comes_before_it_and_may_list_claims_only(deployed: Manifests) -> None:
    weight = deployed.named("ServiceAccount", GUARD)["metadata"]["annotations"]["helm.sh/hook-weight"]
    assert int(weight) < 0
    rules = deployed.named("ClusterRole", GUARD)["rules"]
    assert rules == [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["list"]}]
    assert deployed.named("ClusterRoleBinding", GUARD)["subjects"] == [
        {"kind": "ServiceAccount", "name": GUARD, "namespace": NAMESPACE}
    ]


def test_it_is_asked_once_and_says_who_it_is(deployed: Manifests) -> None:
    job = deployed.named("Job", GUARD)
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert job["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-failed"


def test_its_arguments_are_those_of_the_command(helm: Helm) -> None:
    arguments = guard(helm.render({**DEPLOYED, "drainGuard": {"wait": 60}}))["args"]
    assert arguments == ["drain", f"--driver={DRIVER}", "--allow-unknown", "--wait=60", "--no-until-removed"]
    found = CliRunner().invoke(cli, [*arguments, "--kubeconfig", "/nowhere"])
    assert "/nowhere" in found.output


def test_it_may_be_left_out(helm: Helm) -> None:
    assert "Job" not in helm.render({**DEPLOYED, "drainGuard": {"enabled": False}}).kinds()
    assert "Job" not in helm.render({"driverName": DRIVER}).kinds()
    with pytest.raises(Refused, match="drainGuard"):
        helm.render({**DEPLOYED, "drainGuard": {"waits": 60}})


def test_the_drivers_end_is_its_node_role_with_another_command(helm: Helm) -> None:
    ordinary = helm.render(DEPLOYED).named("DaemonSet")
    ending = helm.render({**DEPLOYED, "node": {"decommission": True}}).named("DaemonSet")
    (container,) = ending["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [
        "decommission",
        f"/var/lib/kubelet/plugins/{DRIVER}",
        "pizza_driver.driver:driver",
        "--stay",
        f"--pod={NAMESPACE}/$(DRA_POD_NAME)",
    ]
    (other,) = ordinary["spec"]["template"]["spec"]["containers"]
    added = [item for item in container["env"] if item not in other["env"]]
    assert added == [{"name": "DRA_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    container["args"], container["env"] = other["args"], other["env"]
    # the driver's own folder can be removed if it is not a mount point
    assert container["volumeMounts"].pop(0) == {"name": "plugin", "mountPath": "/var/lib/kubelet/plugins"}
    assert ending["spec"]["template"]["spec"]["volumes"].pop(0)["hostPath"]["path"] == "/var/lib/kubelet/plugins"
    other["volumeMounts"].pop(0)
    ordinary["spec"]["template"]["spec"]["volumes"].pop(0)
    del ending["spec"]["updateStrategy"], ordinary["spec"]["updateStrategy"]
    assert ending == ordinary


@pytest.mark.parametrize(
    ("strategy", "rolling"),
    [
        ({}, {"maxSurge": "100%", "maxUnavailable": 0}),
        ({"type": "OnDelete", "rollingUpdate": None}, {"maxSurge": "100%", "maxUnavailable": 0}),
        ({"rollingUpdate": {"maxSurge": "10%"}}, {"maxSurge": "100%", "maxUnavailable": 0}),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}, {"maxSurge": 0, "maxUnavailable": "100%"}),
        ({"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": 1}}, {"maxSurge": 0, "maxUnavailable": "100%"}),
    ],
)
def test_all_nodes_begin_at_once(strategy: dict[str, Any], rolling: dict[str, Any], helm: Helm) -> None:
    ending = helm.render({**DEPLOYED, "node": {"decommission": True, "updateStrategy": strategy}}).named("DaemonSet")
    assert ending["spec"]["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": rolling}


DECOMMISSIONING = {**DEPLOYED, "node": {"decommission": True}}


def test_before_an_uninstall_the_nodes_are_waited_for_less_long_than_helm_waits(helm: Helm) -> None:
    arguments = guard(helm.render(DECOMMISSIONING))["args"]
    assert arguments[2:] == ["--allow-unknown", "--wait=240", "--until-removed", f"--namespace={NAMESPACE}"]
    longer = guard(helm.render({**DECOMMISSIONING, "drainGuard": {"wait": 280}}))["args"]
    assert "--wait=280" in longer
    shorter = guard(helm.render({**DECOMMISSIONING, "drainGuard": {"decommissionWait": 0}}))["args"]
    assert "--wait=0" in shorter


@pytest.mark.parametrize("values", [DEPLOYED, DECOMMISSIONING])
def test_nodes_may_be_skipped_before_an_uninstall(values: dict[str, Any], helm: Helm) -> None:
    arguments = guard(helm.render({**values, "drainGuard": {"skipNodes": ["node-b", "node-c"]}}))["args"]
    assert arguments[-2:] == ["--skip-node=node-b", "--skip-node=node-c"]


GUARD_RIGHTS: list[Right] = [
    ("", "nodes", "list"),
    ("", "pods", "list"),
    ("apps", "daemonsets", "list"),
    ("resource.k8s.io", "resourceclaims", "list"),
    ("resource.k8s.io", "resourceslices", "list"),
]


async def test_what_asks_the_nodes_needs_all_of_its_rights_and_no_others(helm: Helm) -> None:
    manifests, audit = helm.render(DECOMMISSIONING), Audit()
    assert sorted(granted(manifests, GUARD)) == GUARD_RIGHTS
    inside = {rule["resources"][0] for rule in manifests.named("Role", GUARD)["rules"]}
    assert inside == {"pods", "daemonsets"}, "of the release's namespace only"
    audit.follow(GUARD)
    async with serving() as served:
        server, admin = served.server, served.admin
        server.api.rbac.audit = audit
        await create_accounts(accounts(manifests), server, admin)
        await admin.create(DAEMON_SETS, manifests.named("DaemonSet"))
        credentials = Credentials(server.connection(server.token(NAMESPACE, GUARD)))
        query = DrainQuery(driver=DRIVER, until_removed=True, namespace=NAMESPACE, may_be_unknown=True)
        found = await wait_drained(credentials, query, changed=lambda _: None)
    assert found.removal is not None
    assert audit.refused() == {GUARD: []}
    for right in GUARD_RIGHTS:
        assert audit.lost(manifests, GUARD, right), right


def test_the_drivers_end_is_where_its_state_is(helm: Helm) -> None:
    manifests = helm.render({**DEPLOYED, "node": {"decommission": True, "stateDir": "/state"}})
    assert manifests.container("node")["args"][:2] == ["decommission", "/state"]
