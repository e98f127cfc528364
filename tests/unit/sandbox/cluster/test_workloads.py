"""kubectl and helm wait for workloads of a sandbox, and come to an end; a test plays the kubelet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.informer import ObjectChange
from dra_kit.client.resources import NODES, PODS
from dra_kit.errors import Conflict, NotFound
from dra_kit.sandbox.control_plane import ControlPlane
from tests.unit.apiserver.programs import User

DRIVER_CHART = Path(__file__).parents[4] / "charts" / "dra-driver"
TEMPLATE = '{metadata: {labels: {app: a}}, spec: {containers: [{name: main, image: "a:1"}]}}'
SPEC = f"selector: {{matchLabels: {{app: a}}}}, template: {TEMPLATE}"
MANIFEST = f"""
{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: web}}, spec: {{replicas: 2, {SPEC}}}}}
---
{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{name: agent}}, spec: {{{SPEC}}}}}
---
{{apiVersion: apps/v1, kind: StatefulSet, metadata: {{name: db}}, spec: {{replicas: 2, serviceName: db, {SPEC}}}}}
"""
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


async def play_kubelet(client: Client, changes: asyncio.Queue[ObjectChange]) -> None:
    """Pods on a node are ready at once, and gone at once."""
    while True:
        change = await changes.get()
        pod, metadata = change.object, change.object["metadata"]
        if change.type == "DELETED" or not pod["spec"].get("nodeName"):
            continue
        with suppress(NotFound, Conflict):
            if "deletionTimestamp" in metadata:
                await client.delete(PODS, metadata["name"], metadata["namespace"], grace_period_seconds=0)
            elif pod["status"]["phase"] == "Pending" and "broken" not in pod["spec"]["containers"][0]["image"]:
                status = {"phase": "Running", "conditions": [*pod["status"]["conditions"], READY]}
                await client.patch(
                    PODS, metadata["name"], {"status": status}, metadata["namespace"], subresource="status"
                )


@pytest.fixture
async def user(tmp_path: Path) -> AsyncIterator[User]:
    """A user of a cluster with two nodes and short waits."""
    async with ControlPlane(time_scale=100) as control_plane:
        client = await control_plane.connect("kubelet")
        changes: asyncio.Queue[ObjectChange] = asyncio.Queue()
        control_plane.informers.listen(PODS, changes.put_nowait)
        kubelet = asyncio.create_task(play_kubelet(client, changes))
        ready = {"allocatable": {"pods": "30", "cpu": "8", "memory": "8Gi"}, "conditions": [READY]}
        for name in ("node-1", "node-2"):
            await client.create(NODES, {"metadata": {"name": name}, "status": ready})
        yield User(tmp_path, control_plane.server)
        kubelet.cancel()
        await asyncio.wait([kubelet])


async def kubectl(user: User, *arguments: str, stdin: str = "") -> str:
    return await asyncio.to_thread(user.kubectl, *arguments, stdin=stdin)


async def rolled_out(user: User, workload: str) -> str:
    return await kubectl(user, "rollout", "status", workload, "--timeout=90s")


async def test_rollouts_end(user: User) -> None:
    await kubectl(user, "apply", "-f", "-", stdin=MANIFEST)
    told = [await rolled_out(user, name) for name in ("deployment/web", "daemonset/agent", "statefulset/db")]
    await kubectl(user, "set", "image", "deployment/web", "daemonset/agent", "main=a:2")
    told += [await rolled_out(user, name) for name in ("deployment/web", "daemonset/agent")]
    pods = json.loads(await kubectl(user, "get", "pods", "-o", "json"))["items"]

    assert [text.splitlines()[-1] for text in told] == [
        'deployment "web" successfully rolled out', 'daemon set "agent" successfully rolled out',
        "partitioned roll out complete: 2 new pods have been updated...",
        'deployment "web" successfully rolled out', 'daemon set "agent" successfully rolled out',
    ]  # fmt: skip
    assert sorted(image(pod) for pod in pods if "deletionTimestamp" not in pod["metadata"]) == [
        "a:1", "a:1", "a:2", "a:2", "a:2", "a:2"
    ]  # fmt: skip


def image(pod: Any) -> str:
    return str(pod["spec"]["containers"][0]["image"])


async def test_the_rollout_of_a_deployment_whose_pods_do_not_get_ready_ends_too(user: User) -> None:
    manifest = (
        MANIFEST.split("---", maxsplit=1)[0]
        .replace("a:1", "broken:1")
        .replace("replicas: 2", "progressDeadlineSeconds: 100")
    )
    await kubectl(user, "apply", "-f", "-", stdin=manifest)

    done = await asyncio.to_thread(user.attempt, "kubectl", "rollout", "status", "deployment/web", "--timeout=90s")

    assert (done.returncode, "exceeded its progress deadline" in done.stderr) == (1, True)


async def test_kubectl_scale_changes_the_number_of_pods(user: User) -> None:
    await kubectl(user, "apply", "-f", "-", stdin=MANIFEST)
    await rolled_out(user, "deployment/web")

    told = await kubectl(user, "scale", "deployment/web", "--current-replicas=2", "--replicas=4", "--timeout=90s")

    assert told == "deployment.apps/web scaled\n"
    await rolled_out(user, "deployment/web")
    shown = await kubectl(user, "get", "deployment/web", "-o", "jsonpath={.status.readyReplicas}")
    assert shown == "4"


async def test_pods_of_a_deleted_workload_are_deleted(user: User) -> None:
    await kubectl(user, "apply", "-f", "-", stdin=MANIFEST)
    await rolled_out(user, "deployment/web")

    await kubectl(user, "delete", "-f", "-", "--cascade=foreground", "--timeout=90s", stdin=MANIFEST)

    assert await kubectl(user, "get", "replicasets", "-o", "name") == ""


@pytest.mark.processes
async def test_helm_waits_for_the_chart_of_a_driver(user: User) -> None:
    values = {
        "driverName": "dra.pizza", "target": "pizza:driver", "image.repository": "example.com/pizza", "image.tag": "v1",
    }  # fmt: skip
    arguments = [str(DRIVER_CHART), "-n", "drivers", *(f"--set={name}={value}" for name, value in values.items())]
    waiting = ["upgrade", "--install", "pizza", *arguments, "--create-namespace", "--wait", "--timeout=90s"]

    await asyncio.to_thread(user.run, "helm", *waiting)
    await asyncio.to_thread(user.run, "helm", *waiting, "--set=image.tag=v2")

    listed = await kubectl(user, "get", "daemonset", "-n", "drivers", "-o", "json")
    [node] = json.loads(listed)["items"]
    assert (node["status"]["desiredNumberScheduled"], node["status"]["updatedNumberScheduled"]) == (2, 2)


async def test_rejected_pod_of_a_workload_is_reported(user: User) -> None:
    manifest = MANIFEST.split("---", maxsplit=1)[0].replace("containers:", "serviceAccountName: missing, containers:")
    await kubectl(user, "apply", "-f", "-", stdin=manifest)

    async with asyncio.timeout(60):
        told = ""
        while 'serviceaccount "missing" not found' not in told:
            told = await kubectl(user, "get", "events")
