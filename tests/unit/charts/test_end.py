"""The end of a release: asked before it, and the driver's own end on the nodes."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli
from tests.unit.charts.rendering import DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm, Manifests, Refused

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
    assert arguments == ["drain", f"--driver={DRIVER}", "--wait=60"]
    found = CliRunner().invoke(cli, [*arguments, "--kubeconfig", "/nowhere"])
    assert "/nowhere" in found.output


def test_it_may_be_left_out(helm: Helm) -> None:
    assert "Job" not in helm.render({**DEPLOYED, "drainGuard": {"enabled": False}}).kinds()
    assert "Job" not in helm.render({"driverName": DRIVER}).kinds()
    with pytest.raises(Refused, match="drainGuard"):
        helm.render({**DEPLOYED, "drainGuard": {"waits": 60}})


def test_the_drivers_end_is_its_node_role_with_another_command(helm: Helm) -> None:
    ordinary = helm.render(DEPLOYED).named("DaemonSet")
    ending = helm.render({**DEPLOYED, "node": {"undertake": True}}).named("DaemonSet")
    (container,) = ending["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [
        "undertake",
        f"/var/lib/kubelet/plugins/{DRIVER}",
        "pizza_driver.driver:driver",
        "--stay",
    ]
    (other,) = ordinary["spec"]["template"]["spec"]["containers"]
    container["args"] = other["args"]
    assert ending == ordinary


def test_the_drivers_end_is_where_its_state_is(helm: Helm) -> None:
    manifests = helm.render({**DEPLOYED, "node": {"undertake": True, "stateDir": "/state"}})
    assert manifests.container("node")["args"][:2] == ["undertake", "/state"]
