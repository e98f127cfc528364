"""Subresources of pods and namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kit.apiserver import ApiServer
from dra_kit.errors import NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.resources import PODS
from tests.unit.apiserver.conftest import Http, pod

PATH = "/api/v1/namespaces/default/pods/pod-1"
BINDING = {
    "apiVersion": "v1",
    "kind": "Binding",
    "metadata": {"name": "pod-1"},
    "target": {"kind": "Node", "name": "n"},
}


async def test_a_binding_gives_a_pod_its_node_once(client: Client, http: Http) -> None:
    await client.create(PODS, pod())

    first, _, _ = await http("POST", f"{PATH}/binding", BINDING)
    second, answer, _ = await http("POST", f"{PATH}/binding", BINDING)

    bound = await client.get(PODS, "pod-1", "default")
    assert (first, second) == (201, 409)
    assert "already assigned" in answer["message"]
    assert bound["spec"]["nodeName"] == "n"
    assert [(item["type"], item["status"]) for item in bound["status"]["conditions"]] == [("PodScheduled", "True")]


async def test_an_eviction_deletes_the_pod(client: Client, http: Http) -> None:
    await client.create(PODS, pod())

    status, _, _ = await http("POST", f"{PATH}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction"})

    assert status == 201
    with pytest.raises(NotFound):
        await client.get(PODS, "pod-1", "default")


async def test_logs_come_from_whoever_runs_the_containers(server: ApiServer, client: Client, http: Http) -> None:
    body = pod()
    body["spec"]["containers"].append({"name": "side", "image": "x:1"})
    await client.create(PODS, body)
    server.serve_logs(
        lambda found, container, query: f"{found['metadata']['name']} {container} {query.text('tailLines')}"
    )

    unnamed, answer, _ = await http("GET", f"{PATH}/log")
    named, text, _ = await http("GET", f"{PATH}/log?container=side&tailLines=3")

    assert (unnamed, answer["message"]) == (
        400,
        "a container name must be specified for pod pod-1, choose one of: [main side]",
    )
    assert (named, text) == (200, "pod-1 side 3")


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
)
async def test_the_quality_of_service_follows_from_requests_and_limits(
    client: Client, resources: dict[str, Any], quality: str
) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = resources

    assert (await client.create(PODS, body))["status"]["qosClass"] == quality


@pytest.mark.parametrize(("image", "policy"), [("a", "Always"), ("a:latest", "Always"), ("r:5000/a:1", "IfNotPresent")])
async def test_the_pull_policy_follows_from_the_tag(client: Client, image: str, policy: str) -> None:
    body = pod()
    body["spec"]["containers"][0]["image"] = image

    assert (await client.create(PODS, body))["spec"]["containers"][0]["imagePullPolicy"] == policy


async def test_a_container_uses_claims_that_the_pod_has(http: Http) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}

    status, answer, _ = await http("POST", "/api/v1/namespaces/default/pods", body)

    assert status == 422
    assert [cause["field"] for cause in answer["details"]["causes"]] == ["spec.containers[0].resources.claims[0]"]
