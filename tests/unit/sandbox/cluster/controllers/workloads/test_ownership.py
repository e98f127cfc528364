"""Workloads adopt and release pods, and report what they do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dra_kit.client.api import Client
from dra_kit.client.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    NODES,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Resource,
)
from dra_kit.sandbox.control_plane import ControlPlane
from tests.unit.sandbox.cluster.kubelet.polling import until

Object = dict[str, Any]
LABELS = {"app": "a"}


class Cluster:
    def __init__(self, control_plane: ControlPlane, client: Client) -> None:
        self.control_plane, self.client = control_plane, client

    def stored(self, resource: Resource) -> list[Object]:
        return list(self.control_plane.server.api.listed(resource.full_name))

    async def until(self, resource: Resource, condition: Callable[[list[Object]], object]) -> list[Object]:
        await until(lambda: condition(self.stored(resource)))
        return self.stored(resource)

    async def create(self, resource: Resource, name: str = "web", **spec: Any) -> Object:
        body = {"metadata": {"name": name}, "spec": {**spec_of_workload(), **spec}}
        return await self.client.create(resource, body, "default")

    async def reported(self, kind: str, number: int) -> list[tuple[str, str, str]]:
        """Controller, reason and note of the Events about a kind, sorted, once there are so many."""
        async with asyncio.timeout(60):
            while True:
                found = [
                    (item["reportingController"], item["reason"], item["note"])
                    for item in (await self.client.list(EVENTS, "default")).items
                    if item["regarding"]["kind"] == kind
                ]
                if len(found) >= number:
                    return sorted(found)
                await asyncio.sleep(0.02)


def spec_of_workload() -> Object:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "main", "image": "a:1"}]}}
    return {"selector": {"matchLabels": LABELS}, "template": template}


def owners(obj: Object) -> list[str]:
    return [item["name"] for item in obj["metadata"].get("ownerReferences", ()) if item.get("controller")]


def orphan(name: str, **labels: str) -> Object:
    spec = {"containers": [{"name": "main", "image": "a:1"}]}
    return {"metadata": {"name": name, "labels": labels or LABELS}, "spec": spec}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with ControlPlane(time_scale=100) as control_plane:
        yield Cluster(control_plane, await control_plane.connect("test"))


@pytest.mark.parametrize(
    ("resource", "name"), [(REPLICA_SETS, "any"), (STATEFUL_SETS, "web-0")], ids=["ReplicaSet", "StatefulSet"]
)
async def test_workload_adopts_matching_pod_that_has_no_controller(
    cluster: Cluster, resource: Resource, name: str
) -> None:
    await cluster.client.create(PODS, orphan(name), "default")
    await cluster.create(resource, replicas=1, **({"serviceName": "web"} if resource is STATEFUL_SETS else {}))

    (pod,) = await cluster.until(PODS, lambda pods: all(map(owners, pods)))

    assert (pod["metadata"]["name"], owners(pod)) == (name, ["web"])


async def test_pod_that_comes_later_is_adopted_and_deleted_as_surplus(cluster: Cluster) -> None:
    await cluster.create(REPLICA_SETS, replicas=1)
    (first,) = await cluster.until(PODS, lambda pods: len(pods) == 1)

    await cluster.client.create(PODS, orphan("late"), "default")

    await cluster.until(PODS, lambda pods: len(pods) == 1 and all(map(owners, pods)))
    assert first["metadata"]["name"].startswith("web-")


async def test_replica_set_releases_pod_that_no_longer_matches_and_replaces_it(cluster: Cluster) -> None:
    await cluster.create(REPLICA_SETS, replicas=1)
    (pod,) = await cluster.until(PODS, lambda pods: len(pods) == 1)
    name = pod["metadata"]["name"]

    await cluster.client.patch(PODS, name, {"metadata": {"labels": {"app": "debug"}}}, "default")

    found = await cluster.until(PODS, lambda pods: len(pods) == 2 and sum(bool(owners(item)) for item in pods) == 1)
    assert [owners(item) for item in found if item["metadata"]["name"] == name] == [[]]


async def test_deployment_adopts_a_replica_set_with_its_template(cluster: Cluster) -> None:
    body = {"metadata": {"name": "left", "labels": LABELS}, "spec": {**spec_of_workload(), "replicas": 1}}
    await cluster.client.create(REPLICA_SETS, body, "default")

    await cluster.create(DEPLOYMENTS, replicas=1)

    (found,) = await cluster.until(REPLICA_SETS, lambda sets: all(map(owners, sets)))
    assert (found["metadata"]["name"], owners(found)) == ("left", ["web"])


async def test_pod_of_another_controller_is_left_alone(cluster: Cluster) -> None:
    await cluster.create(REPLICA_SETS, "other", replicas=1)
    await cluster.until(PODS, lambda pods: len(pods) == 1)

    await cluster.create(REPLICA_SETS, replicas=1)

    found = await cluster.until(PODS, lambda pods: len(pods) == 2)
    assert sorted(owners(pod)[0] for pod in found) == ["other", "web"]


async def test_deployment_and_replica_set_report_what_they_do(cluster: Cluster) -> None:
    await cluster.create(DEPLOYMENTS, replicas=2)
    (replica_set,) = await cluster.until(REPLICA_SETS, lambda sets: len(sets) == 1)
    pods = await cluster.until(PODS, lambda found: len(found) == 2)
    await cluster.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 1}}, "default")
    (left,) = await cluster.until(PODS, lambda found: len(found) == 1)

    name = replica_set["metadata"]["name"]
    assert await cluster.reported("Deployment", 2) == [
        ("deployment-controller", "ScalingReplicaSet", f"Scaled down replica set {name} from 2 to 1"),
        ("deployment-controller", "ScalingReplicaSet", f"Scaled up replica set {name} from 0 to 2"),
    ]
    gone = next(item for item in pods if item["metadata"]["uid"] != left["metadata"]["uid"])
    assert await cluster.reported("ReplicaSet", 3) == sorted(
        [
            *(("replicaset-controller", "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}") for pod in pods),
            ("replicaset-controller", "SuccessfulDelete", f"Deleted pod: {gone['metadata']['name']}"),
        ]
    )


async def test_daemon_set_reports_its_pods(cluster: Cluster) -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    await cluster.client.create(NODES, {"metadata": {"name": "node-1"}, "status": status})
    await cluster.create(DAEMON_SETS)
    (pod,) = await cluster.until(PODS, lambda found: len(found) == 1)

    assert await cluster.reported("DaemonSet", 1) == [
        ("daemonset-controller", "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
    ]


async def test_stateful_set_reports_its_pods(cluster: Cluster) -> None:
    await cluster.create(STATEFUL_SETS, replicas=1, serviceName="web")

    assert await cluster.reported("StatefulSet", 1) == [
        ("statefulset-controller", "SuccessfulCreate", "create Pod web-0 in StatefulSet web successful")
    ]


async def test_pod_that_the_api_server_refuses_is_reported_with_its_words(cluster: Cluster) -> None:
    template = {"metadata": {"labels": LABELS}, "spec": {**orphan("p")["spec"], "serviceAccountName": "missing"}}
    await cluster.create(REPLICA_SETS, replicas=1, template=template)

    (found, *_) = await cluster.reported("ReplicaSet", 1)

    cause = 'error looking up service account default/missing: serviceaccount "missing" not found'
    assert found[:2] == ("replicaset-controller", "FailedCreate")
    assert re.fullmatch(rf'Error creating: pods "web-[a-z0-9]+" is forbidden: {cause}', found[2])
