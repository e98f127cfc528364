"""The server itself: how it runs, and what it says about itself."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from typing import Any

import aiohttp
import pytest
import yaml

from dra_kit.apiserver.server import ApiServer, run_in_thread
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import NAMESPACES, PODS
from dra_kit.kubernetes.release import Release
from tests.support.api import eventually
from tests.unit.apiserver.conftest import Http, pod


async def test_its_kubeconfig_is_all_a_client_needs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_in_thread(tls=True) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(server.kubeconfig()))
        monkeypatch.setenv("KUBECONFIG", str(path))

        async with Client(await load_credentials(), user_agent="tests/1") as client:
            found = await client.list(NAMESPACES)

    assert server.url.startswith("https://127.0.0.1:")
    assert {item["metadata"]["name"] for item in found.items} >= {"default", "kube-system"}


async def test_tls_certificate_is_verified_by_its_own_authority_only() -> None:
    async with ApiServer(tls=True) as server:
        bundle = server.kubeconfig()["clusters"][0]["cluster"]["certificate-authority-data"]
        trusting = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{server.url}/version", ssl=trusting) as answer:
                assert (await answer.json())["gitVersion"] == "v1.37.1"
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(f"{server.url}/version")


async def test_server_stop_closes_connections_that_failed_in_the_tls_handshake() -> None:
    async with ApiServer(tls=True, garbage_collection=False) as server:
        with socket.create_connection((server.host, server.port)):
            await eventually(lambda: server.open_connections)
    assert not server.open_connections, "its socket would be left to the garbage collector"


async def test_server_stop_breaks_connections_whose_client_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kit.apiserver.server._GONE_SECONDS", 0.1)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with ApiServer(tls=True, garbage_collection=False) as server:
        connected = socket.create_connection((server.host, server.port))
        client = await asyncio.to_thread(trusting.wrap_socket, connected)  # which then reads nothing
    with client:
        assert not server.open_connections, "its socket would be left to the garbage collector"


async def test_in_a_thread_it_answers_while_the_caller_blocks() -> None:
    import urllib.request

    with run_in_thread() as server:
        answer = urllib.request.urlopen(f"{server.url}/readyz", timeout=30)  # noqa: ASYNC210, S310 - it blocks, that is the point
        assert answer.read() == b"ok"


async def test_requests_are_counted_by_agent_verb_and_resource(server: ApiServer, client: Client) -> None:
    await client.create(PODS, pod())
    await client.patch(PODS, "pod-1", {"status": {"phase": "Running"}}, "default", subresource="status")
    await client.list(PODS)

    counted = {key[1:]: count for key, count in server.requests.items() if key[0] == "tests/1"}
    assert counted == {("create", "pods"): 1, ("patch", "pods/status"): 1, ("list", "pods"): 1}


async def test_reset_deletes_everything_except_the_initial_namespaces(server: ApiServer, client: Client) -> None:
    await client.create(PODS, pod())

    server.reset()

    assert (await client.list(PODS)).items == []
    assert len((await client.list(NAMESPACES)).items) == 4


async def test_both_forms_of_discovery_are_consistent(http: Http) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    _, groups, _ = await http("GET", "/apis")
    _, everything, _ = await http("GET", "/apis", Accept=accept)

    aggregated = {
        f"{item['metadata']['name']}/{version['version']}": {one["resource"] for one in version["resources"]}
        for item in everything["items"]
        for version in item["versions"]
    }
    plain = {}
    for group in groups["groups"]:
        for version in group["versions"]:
            _, found, _ = await http("GET", f"/apis/{version['groupVersion']}")
            names = {one["name"] for one in found["resources"] if "/" not in one["name"]}
            plain[version["groupVersion"]] = names
    assert aggregated == plain
    assert plain["resource.k8s.io/v1beta1"] == {
        "deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices",
    }  # fmt: skip


async def test_openapi_describes_every_type_that_it_mentions(http: Http) -> None:
    _, index, _ = await http("GET", "/openapi/v3")

    for path, entry in json.loads(index)["paths"].items():
        _, document, _ = await http("GET", entry["serverRelativeURL"])
        text = json.dumps(document)
        mentioned = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
        assert mentioned <= set(document["components"]["schemas"]), path


async def test_openapi_has_descriptions_of_our_own_types(http: Http) -> None:
    _, document, _ = await http("GET", "/openapi/v3/apis/resource.k8s.io/v1")

    schemas = document["components"]["schemas"]
    assert schemas["io.k8s.api.resource.v1.ResourceSlice"]["description"] == "Part of a pool of devices."
    requests = schemas["io.k8s.api.resource.v1.ResourceClaimStatus"]["properties"]["devices"]
    assert requests["x-kubernetes-list-map-keys"] == ["driver", "device", "pool", "shareID"]


@pytest.mark.parametrize(
    ("path", "spec", "expected"),
    [
        (
            "authorization.k8s.io/v1/selfsubjectaccessreviews",
            {"resourceAttributes": {"verb": "get"}},
            {"allowed": True},
        ),
        (
            "authorization.k8s.io/v1/subjectaccessreviews",
            {"user": "alice", "nonResourceAttributes": {"path": "/metrics", "verb": "get"}},
            {"allowed": False},
        ),
        ("authentication.k8s.io/v1/selfsubjectreviews", {}, {"userInfo"}),
        ("authentication.k8s.io/v1/tokenreviews", {"token": "t"}, {"user", "error"}),
    ],
)
async def test_reviews_are_answered_and_not_stored(http: Http, path: str, spec: Any, expected: Any) -> None:
    status, answer, _ = await http("POST", f"/apis/{path}", {"spec": spec})

    assert status == 201
    assert answer["status"] == expected if isinstance(expected, dict) else answer["status"].keys() == expected


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/apis/resource.k8s.io/v9/resourceslices", 404),
        ("POST", "/api/v1/pods", 405),
        ("DELETE", "/api/v1/pods", 405),
        ("DELETE", "/api/v1/namespaces", 405),
        ("PUT", "/api/v1/namespaces/default/pods", 405),
    ],
)
async def test_other_paths_and_methods_are_refused(http: Http, method: str, path: str, status: int) -> None:
    assert (await http(method, path))[0] == status


def test_gates_can_be_switched_on_and_off() -> None:
    assert "DRADerivedAttributes" not in Release.of()
    assert "DRADerivedAttributes" in Release.alpha()
    assert "DRADeviceTaints" not in Release.of().without("DRADeviceTaints")
