"""kubectl's ways to change objects, and what it shows of pods, against the embedded API server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.sandbox.stories.manifests import apply_files
from tests.unit.apiserver.programs import User
from tests.unit.apiserver.test_pod_log import NODE, echo

pytestmark = pytest.mark.processes

CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: oven, labels: {{kitchen: {kitchen}}}}}
spec: {{selectors: [{{cel: {{expression: "device.driver == 'dra.pizza'"}}}}]}}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: baker}
spec: {containers: [{name: main, image: 'busybox:1'}]}
"""


def test_server_side_apply_remembers_who_manages_what(user: User) -> None:
    manifest = CLASS.format(kitchen="north")
    apply = ("apply", "--server-side", "-f", "-")

    user.kubectl(*apply, "--field-manager=chef", stdin=manifest)
    refused = user.attempt("kubectl", *apply, "--field-manager=owner", stdin=CLASS.format(kitchen="south"))
    user.kubectl(*apply, "--field-manager=owner", "--force-conflicts", stdin=CLASS.format(kitchen="south"))

    assert refused.returncode == 1
    assert 'Apply failed with 1 conflict: conflict with "chef"' in refused.stderr
    assert ".metadata.labels.kitchen" in refused.stderr
    shown: Any = json.loads(user.kubectl("get", "deviceclass", "oven", "-o", "json", "--show-managed-fields"))
    assert shown["metadata"]["labels"] == {"kitchen": "south"}
    owns = {
        item["manager"]: "f:labels" in item["fieldsV1"].get("f:metadata", {})
        for item in shown["metadata"]["managedFields"]
    }
    assert owns == {"chef": False, "owner": True}


def test_server_side_apply_takes_over_what_the_client_applied(user: User) -> None:
    settings: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    user.kubectl("apply", "-f", "-", stdin=json.dumps(settings | {"data": {"kept": "1", "gone": "1"}}))

    user.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(settings | {"data": {"kept": "1"}}))

    shown = json.loads(user.kubectl("get", "configmap", "settings", "-o", "json"))
    assert shown["data"] == {"kept": "1"}


@pytest.mark.parametrize("verb", ["create", "apply"])
def test_list_printed_by_kubectl_can_be_applied(user: User, verb: str) -> None:
    user.kubectl("apply", "-f", "-", stdin=CLASS.format(kitchen="north"))
    printed = user.kubectl("get", "deviceclasses", "-o", "yaml")
    assert "kind: List" in printed
    user.kubectl("delete", "deviceclass", "oven")

    user.kubectl(verb, "-f", "-", stdin=printed)

    assert user.kubectl("get", "deviceclass", "oven", "-o", "name") == "deviceclass.resource.k8s.io/oven\n"


def test_diff_shows_what_apply_would_change(user: User) -> None:
    user.kubectl("apply", "-f", "-", stdin=CLASS.format(kitchen="north"))

    same = user.attempt("kubectl", "diff", "-f", "-", stdin=CLASS.format(kitchen="north"))
    other = user.attempt("kubectl", "diff", "-f", "-", stdin=CLASS.format(kitchen="south"))

    assert (same.returncode, same.stdout) == (0, "")
    assert other.returncode == 1
    changed = [line for line in other.stdout.splitlines() if line.startswith(("-  ", "+  "))]
    assert "-    kitchen: north" in changed
    assert "+    kitchen: south" in changed
    assert json.loads(user.kubectl("get", "deviceclass", "oven", "-o", "json"))["metadata"]["labels"] == {
        "kitchen": "north"
    }


def test_edit_writes_the_edited_object(user: User) -> None:
    user.kubectl("apply", "-f", "-", stdin=CLASS.format(kitchen="north"))
    editor = user.home / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/kitchen: north/kitchen: south/' \"$1\"\n")
    editor.chmod(0o755)

    said = user.kubectl("edit", "deviceclass", "oven", EDITOR=str(editor))
    unchanged = user.attempt("kubectl", "edit", "deviceclass", "oven", EDITOR="true")

    assert said == "deviceclass.resource.k8s.io/oven edited\n"
    assert "Edit cancelled, no changes made." in unchanged.stdout + unchanged.stderr
    shown: Any = json.loads(user.kubectl("get", "deviceclass", "oven", "-o", "json"))
    assert shown["metadata"]["labels"] == {"kitchen": "south"}


def test_api_resources_lists_kinds_as_a_real_cluster_does(user: User) -> None:
    rows = [line.split() for line in user.kubectl("api-resources", "--no-headers").splitlines()]

    assert ["pods", "po", "v1", "true", "Pod"] in rows
    assert ["resourceslices", "resource.k8s.io/v1", "false", "ResourceSlice"] in rows
    assert not [row for row in rows if "resource.k8s.io/v1alpha3" in row]  # off by default
    assert ["daemonsets", "ds", "apps/v1", "true", "DaemonSet"] in rows
    assert ["networkpolicies", "netpol", "networking.k8s.io/v1", "true", "NetworkPolicy"] in rows


def test_rollout_restart_changes_the_template(user: User) -> None:
    user.kubectl("create", "deployment", "web", "--image=busybox:1")

    said = user.kubectl("rollout", "restart", "deployment/web")

    assert said == "deployment.apps/web restarted\n"
    web: Any = json.loads(user.kubectl("get", "deployment", "web", "-o", "json"))
    assert "kubectl.kubernetes.io/restartedAt" in web["spec"]["template"]["metadata"]["annotations"]
    assert web["metadata"]["generation"] == 2


def test_rollout_status_waits_while_no_controller_runs(user: User) -> None:
    user.kubectl("create", "deployment", "web", "--image=busybox:1")

    for seconds in (1, 10, 60):  # where the machine is slow, kubectl does not come to its first look at once
        waited = user.attempt("kubectl", "rollout", "status", "deployment/web", f"--timeout={seconds}s")
        if waited.stdout:
            break

    assert waited.returncode == 1
    assert "Waiting for deployment spec update to be observed" in waited.stdout
    assert "timed out" in waited.stderr


def test_logs_come_from_the_registered_log_source(user: User) -> None:
    user.server.serve_logs(echo)
    user.kubectl("apply", "-f", "-", stdin=json.dumps(NODE))
    user.kubectl("apply", "-f", "-", stdin=POD.replace("spec: {", "spec: {nodeName: here, "))

    assert user.kubectl("logs", "baker") == "baker/main\n"
    refused = user.attempt("kubectl", "logs", "baker", "-c", "other")
    assert "container other is not valid for pod baker" in refused.stderr


def test_logs_without_a_log_source_are_an_error(user: User) -> None:
    user.kubectl("apply", "-f", "-", stdin=POD)

    refused = user.attempt("kubectl", "logs", "baker")

    assert refused.returncode == 1
    assert "this cluster runs no containers" in refused.stderr


WITH_NAMESPACE = """
apiVersion: v1
kind: Namespace
metadata: {name: kitchen}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: kitchen}
---
apiVersion: v1
kind: Pod
metadata: {name: baker, namespace: kitchen}
spec: {containers: [{name: main, image: "busybox:1"}]}
"""


def test_a_file_with_its_namespace_is_deleted(user: User) -> None:
    user.kubectl("apply", "-f", "-", stdin=WITH_NAMESPACE)

    told = user.kubectl("delete", "-f", "-", "--timeout=60s", stdin=WITH_NAMESPACE)

    assert told.splitlines() == [
        'namespace "kitchen" deleted', 'configmap "settings" deleted from kitchen namespace',
        'pod "baker" deleted from kitchen namespace',
    ]  # fmt: skip
    assert user.attempt("kubectl", "get", "namespace", "kitchen").returncode == 1


def bakery(labels: dict[str, str], strategy: str, **ovens: str) -> dict[str, Any]:
    """A Deployment with a container for each image."""
    containers = [
        {"name": name, "image": image, "env": [{"name": "HEAT", "value": image}, {"name": image, "value": "1"}],
         "ports": [{"containerPort": 80 + len(image)}], "volumeMounts": [{"name": "box", "mountPath": f"/{image}"}]}
        for name, image in ovens.items()
    ]  # fmt: skip
    source: dict[str, Any] = {"emptyDir": {}} if strategy == "Recreate" else {"configMap": {"name": "crumbs"}}
    pod = {"containers": containers, "volumes": [{"name": "box", **source}], "nodeSelector": labels}
    template = {"metadata": {"labels": {"app": "bakery", **labels}}, "spec": pod}
    spec = {
        "selector": {"matchLabels": {"app": "bakery"}}, "template": template, "strategy": {"type": strategy}
    }  # fmt: skip
    metadata = {"name": "bakery", "namespace": "default", "labels": labels, "finalizers": [f"a.org/{strategy.lower()}"]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("first", ["kubectl", "files"])
def test_files_are_applied_as_kubectl_applies_them(user: User, first: str) -> None:
    former = bakery({"a": "1", "b": "1"}, "RollingUpdate", left="old", right="old", top="old")
    wanted = bakery({"b": "2"}, "Recreate", top="old", left="new", spare="new")
    injected = [{"name": "left", "env": [{"name": "THEIRS", "value": "1"}]}, {"name": "sidecar", "image": "theirs"}]
    spec = {"replicas": 3, "template": {"spec": {"containers": injected}}}
    theirs = {"metadata": {"labels": {"c": "1"}, "finalizers": ["b.org/x"]}, "spec": spec}

    def by_kubectl(body: dict[str, Any]) -> None:
        user.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def by_files(body: dict[str, Any]) -> None:
        (user.home / "bakery.json").write_text(json.dumps(body))
        asyncio.run(apply_file(user.home))

    def outcome(*applications: Any) -> dict[str, Any]:
        for body, apply in zip((former, wanted), applications, strict=True):
            apply(body)
            if body is former:
                user.kubectl("patch", "deployment", "bakery", "--type=strategic", "-p", json.dumps(theirs))
        shown = json.loads(user.kubectl("get", "deployment", "bakery", "-o", "json"))
        free = {"metadata": {"finalizers": None}}
        user.kubectl("patch", "deployment", "bakery", "--type=merge", "-p", json.dumps(free))
        user.kubectl("delete", "deployment", "bakery")
        for key in ("uid", "creationTimestamp", "resourceVersion"):
            del shown["metadata"][key]
        return dict(shown)

    one = by_kubectl if first == "kubectl" else by_files
    assert outcome(one, by_files) == outcome(by_kubectl, by_kubectl)


async def apply_file(home: Path) -> None:
    """Apply the files of a folder with the kubeconfig in it."""
    async with Client(await load_credentials(kubeconfig=home / "kubeconfig"), user_agent="tests/1") as client:
        await apply_files(client, [home / "bakery.json"])
