"""Authentication of a server that other users can reach."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dra_kit.apiserver.authentication import Authenticator
from dra_kit.apiserver.server import ApiServer, run_in_thread
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import CONFIG_MAPS, NAMESPACES
from dra_kit.errors import Forbidden, Unavailable
from tests.support.api import eventually
from tests.unit.apiserver.conftest import config_map, pod

MAPS = "/api/v1/namespaces/default/configmaps"
BODY = json.dumps(config_map()).encode()


class Visitor:
    """A client of a server with access control."""

    def __init__(self, server: ApiServer, authenticator: Authenticator, session: aiohttp.ClientSession) -> None:
        self.server, self.authenticator, self.session = server, authenticator, session
        self.ssl = server.connection().ssl_context() or True

    async def ask(
        self, method: str, path: str, *, token: str | None = None, data: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and Status object; ``token`` is the right one unless another is given, empty for none."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        token = self.authenticator.token if token is None else token
        if token:
            given["Authorization"] = f"Bearer {token}"
        async with self.session.request(
            method, self.server.url + path, data=data, headers=given, ssl=self.ssl, skip_auto_headers=["Content-Type"]
        ) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text.startswith("{") else text

    async def maps(self) -> set[str]:
        """The names of the ConfigMaps that there are."""
        async with Client(Credentials(self.server.connection()), user_agent="tests/1") as client:
            return {item["metadata"]["name"] for item in (await client.list(CONFIG_MAPS, "default")).items}


@pytest.fixture
async def visitor() -> AsyncIterator[Visitor]:
    authenticator = Authenticator()
    async with ApiServer(tls=True, authenticator=authenticator) as server, aiohttp.ClientSession() as session:
        yield Visitor(server, authenticator, session)


async def test_request_with_the_token_is_accepted(visitor: Visitor) -> None:
    assert (await visitor.ask("POST", MAPS, data=BODY, Content_Type="application/json"))[0] == 201
    assert await visitor.maps() >= {"settings"}
    assert not visitor.authenticator.refused


@pytest.mark.parametrize("token", ["", "admin", "any"])
@pytest.mark.parametrize("path", ["/api", "/apis", "/version", "/openapi/v3", "/", "/nothing", "/api/v1/pods", MAPS])
async def test_read_without_the_token_is_rejected(visitor: Visitor, path: str, token: str) -> None:
    status, answer = await visitor.ask("GET", path, token=token)

    assert (status, answer["kind"], answer["reason"]) == (401, "Status", "Unauthorized")
    assert visitor.authenticator.refused == {"token": 1}


async def test_write_without_the_token_is_rejected(visitor: Visitor) -> None:
    for token in ("", "wrong"):
        status, _ = await visitor.ask("POST", MAPS, token=token, data=BODY, Content_Type="application/json")
        assert status == 401
    assert "settings" not in await visitor.maps()


@pytest.mark.parametrize("scheme", ["Basic", "Token", ""])
async def test_a_token_counts_as_a_bearer_token_only(visitor: Visitor, scheme: str) -> None:
    header = f"{scheme} {visitor.authenticator.token}".strip()
    assert (await visitor.ask("GET", "/api", token="", Authorization=header))[0] == 401


async def test_only_health_is_public_and_a_wrong_token_is_rejected(visitor: Visitor) -> None:
    for path in ("/livez", "/readyz", "/healthz"):
        assert await visitor.ask("GET", path, token="") == (200, "ok")
        assert (await visitor.ask("GET", path, token="wrong"))[0] == 401
        assert (await visitor.ask("POST", path, token=""))[0] == 401


async def test_each_server_has_its_own_token() -> None:
    tokens = {Authenticator().token for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43  # 32 bytes


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}", ""]
)
async def test_unknown_host_name_is_rejected_despite_the_token(visitor: Visitor, host: str) -> None:
    status, answer = await visitor.ask("GET", "/api", Host=host.format(port=visitor.server.port))

    assert (status, answer["reason"]) == (403, "Forbidden")
    assert visitor.authenticator.refused == {"host": 1}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "[::1]"])
async def test_own_host_names_are_accepted(visitor: Visitor, host: str) -> None:
    assert (await visitor.ask("GET", "/api", Host=f"{host}:{visitor.server.port}"))[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}"])
@pytest.mark.parametrize("path", ["/api", "/livez"])
async def test_requests_of_web_pages_are_rejected_despite_the_token(visitor: Visitor, path: str, origin: str) -> None:
    status, answer = await visitor.ask("GET", path, Origin=origin.format(port=visitor.server.port))

    assert (status, answer["reason"]) == (403, "Forbidden")
    assert visitor.authenticator.refused == {"origin": 1}


@pytest.mark.parametrize(
    "content_type",
    [None, "", " ", "text/plain", "text/plain;application/json", "multipart/form-data; boundary=x",
     "application/x-www-form-urlencoded", "text/json"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", MAPS),
        ("PUT", f"{MAPS}/settings"),
        ("PATCH", f"{MAPS}/settings"),
        ("DELETE", f"{MAPS}/settings"),
        ("DELETE", MAPS),
        ("POST", "/api/v1/namespaces/default/pods/pod-1/eviction"),
        ("POST", "/api/v1/namespaces/default/pods/pod-1/binding"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
    ],
)
async def test_body_needs_a_content_type(visitor: Visitor, method: str, path: str, content_type: str | None) -> None:
    await visitor.ask("POST", MAPS, data=BODY, Content_Type="application/json")
    await visitor.ask(
        "POST", "/api/v1/namespaces/default/pods", data=json.dumps(pod()).encode(), Content_Type="application/json"
    )
    headers = {} if content_type is None else {"Content_Type": content_type}

    status, answer = await visitor.ask(method, path, data=b"{}", **headers)

    assert (status, answer["reason"]) == (415, "UnsupportedMediaType")
    assert "settings" in await visitor.maps()


async def test_scale_may_be_put_without_a_content_type_as_kubectl_does(visitor: Visitor) -> None:
    path = "/apis/apps/v1/namespaces/default/deployments/web/scale"
    scale = {"metadata": {"name": "web"}, "spec": {"replicas": 2}}

    statuses = [
        (await visitor.ask(method, path, data=json.dumps(scale).encode(), **headers))[0]
        for method, headers in [("PUT", {}), ("PUT", {"Content_Type": "text/plain"}), ("POST", {}), ("PATCH", {})]
    ]

    assert statuses == [404, 404, 415, 415]  # the Deployment does not exist


async def test_a_request_without_a_body_needs_no_type(visitor: Visitor) -> None:
    await visitor.ask("POST", MAPS, data=BODY, Content_Type="application/json")

    assert (await visitor.ask("DELETE", f"{MAPS}/settings"))[0] == 200


async def test_certificate_is_valid_for_each_host_name(visitor: Visitor) -> None:
    cluster = visitor.server.kubeconfig()["clusters"][0]["cluster"]
    ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
    for name in ("127.0.0.1", "localhost", "::1"):
        async with visitor.session.get(
            f"{visitor.server.url}/livez", ssl=ssl.create_default_context(cadata=ca), server_hostname=name
        ) as answer:
            assert answer.status == 200


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[Visitor]:
    """One who comes over the unix socket."""
    authenticator = Authenticator()
    server = ApiServer(tls=True, authenticator=authenticator)
    server.socket = tmp_path / "api.sock"
    async with server, aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(server.socket))) as session:
        yield Visitor(server, authenticator, session)


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        (None, {}, 200),
        (None, {"Host": "any"}, 200),
        ("", {}, 401),
        ("wrong", {}, 401),
        (None, {"Origin": "http://evil.example"}, 403),
    ],
)
async def test_unix_socket_requires_the_token(
    inside: Visitor, token: str | None, headers: dict[str, Any], status: int
) -> None:
    assert (await inside.ask("GET", "/api", token=token, **headers))[0] == status
    assert (await inside.ask("POST", MAPS, token=token, data=BODY, **headers))[0] == (415 if status == 200 else status)


async def test_client_of_a_unix_socket_has_only_the_rights_of_its_account(inside: Visitor) -> None:
    token = inside.server.token("default", "default")

    async with Client(Credentials(inside.server.connection(token)), user_agent="tests/1") as client:
        with pytest.raises(Forbidden, match="system:serviceaccount:default:default"):
            await client.list(NAMESPACES)


async def test_unix_socket_is_recreated_when_the_server_listens_again(inside: Visitor) -> None:
    await inside.server.stop_listening()
    with pytest.raises(Unavailable, match=f"no connection to {inside.server.url}"):
        await inside.maps()

    await inside.server.listen()

    assert await inside.maps() == set()


async def test_failed_listen_closes_the_addresses_already_bound(tmp_path: Path) -> None:
    server = ApiServer(tls=True, garbage_collection=False)
    server.socket = tmp_path / "no folder" / "api.sock"

    with pytest.raises(FileNotFoundError):
        await server.listen()

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(server.host, server.port)


def test_abandoned_watch_leaves_no_connection() -> None:
    """Also if the loop stops at once: open connections would be reported by the garbage collection."""

    async def look(server: ApiServer) -> None:
        async with Client(Credentials(server.connection()), user_agent="tests/1") as client:
            found = await client.list(NAMESPACES)
            watching = client.watch(NAMESPACES, resource_version=found.resource_version)
            reading = asyncio.ensure_future(anext(watching))
            await eventually(lambda: server.requests["tests/1", "watch", "namespaces"])
            reading.cancel()
            await asyncio.wait([reading])
            await watching.aclose()

    with run_in_thread(tls=True, authenticator=Authenticator()) as server:
        for _ in range(5):
            asyncio.run(look(server))
            server.requests.clear()
        gc.collect()
