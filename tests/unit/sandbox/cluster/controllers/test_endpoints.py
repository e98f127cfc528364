"""The endpoints of Services: which pods are behind them, and at which ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kit.client.api import STRATEGIC_MERGE_PATCH, Client
from dra_kit.client.resources import ENDPOINT_SLICES, ENDPOINTS, PODS, SERVICES
from dra_kit.sandbox.control_plane import ControlPlane
from dra_kit.sandbox.controllers.endpoints import endpoint_slices, endpoints
from tests.unit.sandbox.cluster.kubelet.polling import until

Object = dict[str, Any]
READY = {"type": "Ready", "status": "True"}


def service(*ports: Object, **spec: Any) -> Object:
    metadata = {"name": "web", "namespace": "default", "uid": "s", "labels": {"team": "a"}}
    listed = list(ports or [{"name": "https", "port": 443, "targetPort": 8443, "protocol": "TCP"}])
    return {"metadata": metadata, "spec": {"selector": {"app": "a"}, "clusterIP": "10.96.0.9", "ports": listed, **spec}}


def pod(name: str = "p", *, ready: bool = True, port: Object | None = None, **metadata: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"u-{name}", **metadata},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "ports": [port] if port else []}]},
        "status": {"podIP": "127.0.0.1", "conditions": [READY] if ready else []},
    }


def test_slice_has_an_endpoint_for_each_pod() -> None:
    (found,) = endpoint_slices(service(), [pod("a"), pod("b", ready=False)])

    metadata = found["metadata"]
    assert metadata["labels"] == {
        "team": "a",
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    assert [item["uid"] for item in metadata["ownerReferences"]] == ["s"]
    assert found["ports"] == [{"name": "https", "protocol": "TCP", "port": 8443}]
    assert found["endpoints"][0] == {
        "addresses": ["127.0.0.1"],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": "n",
        "targetRef": {"kind": "Pod", "namespace": "default", "name": "a", "uid": "u-a"},
    }
    assert found["endpoints"][1]["conditions"] == {"ready": False, "serving": False, "terminating": False}


def test_pod_that_is_being_deleted_serves_but_is_not_ready() -> None:
    (found,) = endpoint_slices(service(), [pod(deletionTimestamp="2026-01-01T12:00:00Z")])

    assert found["endpoints"][0]["conditions"] == {"ready": False, "serving": True, "terminating": True}


def test_named_port_leads_to_the_port_of_each_pod() -> None:
    port = {"name": "https", "port": 443, "targetPort": "hook", "protocol": "TCP"}
    pods = [pod(name, port={"name": "hook", "containerPort": number}) for name, number in (("a", 1), ("b", 2))]

    found = endpoint_slices(service(port), pods)

    ports = {item["ports"][0]["port"]: [entry["targetRef"]["name"] for entry in item["endpoints"]] for item in found}
    assert ports == {1: ["a"], 2: ["b"]}


def test_service_without_pods_has_an_empty_slice() -> None:
    (found,) = endpoint_slices(service(), [])

    assert (found["endpoints"], found["ports"]) == ([], [])


def test_pods_that_are_not_ready_are_published_if_the_service_says_so() -> None:
    unready = pod(ready=False)

    (found,) = endpoint_slices(service(publishNotReadyAddresses=True), [unready])

    assert found["endpoints"][0]["conditions"]["ready"]
    assert "addresses" in endpoints(service(publishNotReadyAddresses=True), [unready])["subsets"][0]
    assert "notReadyAddresses" in endpoints(service(), [unready])["subsets"][0]


@pytest.fixture
async def control_plane() -> AsyncIterator[ControlPlane]:
    async with ControlPlane() as made:
        yield made


async def create(client: Client) -> None:
    """A Service and a pod that it selects, ready at an address."""
    spec = {"selector": {"app": "a"}, "ports": [{"port": 443, "targetPort": 8443}]}
    await client.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec}, "default")
    containers = [{"name": "c", "image": "x"}]
    made = {"metadata": {"name": "p", "labels": {"app": "a"}}, "spec": {"containers": containers}}
    await client.create(PODS, made, "default")
    status = {"status": {"podIP": "127.0.0.1", "phase": "Running", "conditions": [READY]}}
    await client.patch(PODS, "p", status, "default", subresource="status", content_type=STRATEGIC_MERGE_PATCH)


def addresses(control_plane: ControlPlane) -> list[list[str]]:
    """The ready pods of the slices, and the addresses of the Endpoints, of the Service."""
    api = control_plane.server.api
    slices = [
        item
        for item in api.listed(ENDPOINT_SLICES.full_name)
        if item["metadata"]["labels"]["kubernetes.io/service-name"] == "web"
    ]
    ready = [
        entry["targetRef"]["name"]
        for item in slices
        for entry in item["endpoints"] or ()
        if entry["conditions"]["ready"]
    ]
    subsets = (api.lookup("endpoints", "default/web") or {}).get("subsets") or ()
    return [ready, [item["ip"] for subset in subsets for item in subset.get("addresses") or ()]]


async def test_slices_and_endpoints_follow_pods_and_the_service(control_plane: ControlPlane) -> None:
    client = await control_plane.connect("test")
    await create(client)
    await until(lambda: addresses(control_plane) == [["p"], ["127.0.0.1"]])

    await client.patch(PODS, "p", {"metadata": {"labels": {"app": "other"}}}, "default")
    await until(lambda: addresses(control_plane) == [[], []])

    await client.delete(SERVICES, "web", "default")
    api = control_plane.server.api
    await until(lambda: [item["metadata"]["name"] for item in api.listed(ENDPOINT_SLICES.full_name)] == ["kubernetes"])
    await until(lambda: api.lookup("endpoints", "default/web") is None)


async def test_deleted_slice_is_made_again(control_plane: ControlPlane) -> None:
    client = await control_plane.connect("test")
    await create(client)
    await until(lambda: addresses(control_plane) == [["p"], ["127.0.0.1"]])

    for item in (await client.list(ENDPOINT_SLICES, "default")).items:
        if item["metadata"]["name"] != "kubernetes":
            await client.delete(ENDPOINT_SLICES, item["metadata"]["name"], "default")
    await client.delete(ENDPOINTS, "web", "default")

    await until(lambda: addresses(control_plane) == [["p"], ["127.0.0.1"]])


async def test_api_server_has_its_own_endpoint(control_plane: ControlPlane) -> None:
    client = await control_plane.connect("test")

    found = await client.get(ENDPOINT_SLICES, "kubernetes", "default")

    assert (found["endpoints"], found["ports"]) == (
        [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
        [{"name": "https", "port": control_plane.server.port, "protocol": "TCP"}],
    )
