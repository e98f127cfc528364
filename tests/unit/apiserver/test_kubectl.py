"""kubectl against the embedded API server, as a user calls it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from tests.unit.apiserver.programs import User, program

pytestmark = pytest.mark.processes

Kubectl: TypeAlias = Callable[..., str]

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: baker, labels: {app: oven}}
spec:
  containers: [{name: main, image: "busybox:1", env: [{name: HEAT, value: "200"}]}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: oven}
spec:
  spec:
    devices:
      requests: [{name: oven, exactly: {deviceClassName: dra.pizza, allocationMode: ExactCount, count: 1}}]
"""


@pytest.fixture
def kubectl(user: User) -> Kubectl:
    return user.kubectl


def test_apply_creates_then_does_nothing_then_changes(kubectl: Kubectl) -> None:
    first = kubectl("apply", "-f", "-", stdin=MANIFEST)
    second = kubectl("apply", "-f", "-", stdin=MANIFEST)
    third = kubectl("apply", "-f", "-", stdin=MANIFEST.replace("app: oven", "app: grill"))
    server_side = kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=MANIFEST)

    assert first == "pod/baker created\nresourceclaimtemplate.resource.k8s.io/oven created\n"
    assert second == "pod/baker unchanged\nresourceclaimtemplate.resource.k8s.io/oven unchanged\n"
    assert third == "pod/baker configured\nresourceclaimtemplate.resource.k8s.io/oven unchanged\n"
    assert (
        server_side == "pod/baker serverside-applied\nresourceclaimtemplate.resource.k8s.io/oven serverside-applied\n"
    )
    assert json.loads(kubectl("get", "pod", "baker", "-o", "json"))["metadata"]["labels"] == {"app": "oven"}


def test_get_and_describe_show_an_object(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=MANIFEST)

    rows = [line.split() for line in kubectl("get", "pods", "-A", "-o", "wide").splitlines()]
    described = kubectl("describe", "pod", "baker")

    assert rows[0][:6] == ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert rows[1][:5] == ["default", "baker", "0/1", "Pending", "0"]
    assert ["HEAT:", "200"] in [line.split() for line in described.splitlines()]
    assert "dra.pizza" in kubectl("describe", "resourceclaimtemplate", "oven")
    assert "dra.pizza" in kubectl("get", "resourceclaimtemplate", "oven", "-o", "yaml")


def test_patch_label_wait_and_delete(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=MANIFEST)

    kubectl("patch", "pod", "baker", "-p", '{"spec":{"containers":[{"name":"main","image":"busybox:2"}]}}')
    kubectl("patch", "pod", "baker", "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Running"}}')
    kubectl("label", "pod", "baker", "heat=high")
    kubectl("wait", "pod/baker", "--for=jsonpath={.status.phase}=Running", "--timeout=60s")
    pod: Any = json.loads(kubectl("get", "pod", "baker", "-o", "json"))
    kubectl("delete", "pod", "baker")
    kubectl("wait", "pod/baker", "--for=delete", "--timeout=60s")

    assert pod["spec"]["containers"][0]["image"] == "busybox:2"
    assert pod["metadata"]["labels"] == {"app": "oven", "heat": "high"}
    assert kubectl("get", "pods", "-o", "name") == ""


def test_explain_knows_every_field(kubectl: Kubectl) -> None:
    devices = kubectl("explain", "resourceslice.spec.devices")
    deep = kubectl("explain", "pod.spec.containers.resources.claims.request")

    assert "FIELD: devices <[]Device>" in devices
    assert "consumesCounters" in devices
    assert "FIELD: request <string>" in deep


def test_create_sends_what_kubectl_encodes(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "team")
    kubectl("create", "configmap", "settings", "-n", "team", "--from-literal=heat=200")
    kubectl("create", "deployment", "web", "-n", "team", "--image=busybox:1", "--replicas=3", "--port=80")

    settings: Any = json.loads(kubectl("get", "configmap", "settings", "-n", "team", "-o", "json"))
    web: Any = json.loads(kubectl("get", "deployment", "web", "-n", "team", "-o", "json"))
    assert settings["data"] == {"heat": "200"}
    assert web["spec"]["replicas"] == 3
    assert web["spec"]["template"]["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"


async def test_watch_prints_changes_as_they_happen(kubectl: Kubectl, user: User) -> None:
    process = await asyncio.create_subprocess_exec(
        program("kubectl"), "get", "pods", "-w", "--no-headers", env=user.environment, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(100):
            await asyncio.to_thread(kubectl, "apply", "-f", "-", stdin=MANIFEST)
            patch = ("patch", "pod", "baker", "--subresource=status", "--type=merge", "-p")
            first = await process.stdout.readline()
            await asyncio.to_thread(kubectl, *patch, '{"status":{"phase":"Running"}}')
            second = await process.stdout.readline()
    finally:
        process.terminate()
        await process.wait()

    assert [line.split()[2] for line in (first, second)] == [b"Pending", b"Running"]
