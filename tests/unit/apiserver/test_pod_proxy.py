"""``pods/proxy`` and ``services/proxy`` on the wire: what a server in a pod gets, and what the client gets of it."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from dra_kit.apiserver.authentication import Authenticator
from dra_kit.apiserver.pod_streams import PodStreamUnavailable
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.resources import ENDPOINT_SLICES, NODES, PODS, SERVICES
from tests.unit.apiserver.conftest import Http, pod

NAMESPACE = "/api/v1/namespaces/default"
PROXY = f"{NAMESPACE}/pods/pod-1:80/proxy"
HELLO = b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 5\r\n\r\nhello"


class Oven:
    """A program in a pod that answers each connection with the same bytes, at port 80."""

    def __init__(self) -> None:
        self.answer = HELLO
        self.received: list[str] = []
        self.server: asyncio.Server | None = None
        self.dialed: list[tuple[str, int]] = []
        self.silent = False  # it never answers
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(length[1])) if length else b""
        self.received.append(head + body.decode())
        if self.silent:
            self.asked.set()
            await reader.read()
            self.left.set()
        writer.write(self.answer)
        writer.close()

    async def dial(self, pod: Any, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.dialed.append((pod["metadata"]["name"], port))
        if port == 81:
            raise PodStreamUnavailable("pod not found")
        if port != 80:
            raise ConnectionRefusedError(111, "")
        assert self.server is not None
        return await asyncio.open_connection(*self.server.sockets[0].getsockname())

    def find(self, pod: Any, container: str = "", *, attach: bool = False) -> None:
        raise NotImplementedError

    async def exec(self, pod: Any, options: Any) -> Any:
        raise NotImplementedError

    async def attach(self, pod: Any, options: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
async def oven(server: ApiServer, client: Client) -> AsyncIterator[Oven]:
    fake = Oven()
    server.serve_streams(fake)
    fake.server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}})
    for name in ("pod-1", "pod-2"):
        ports = {"ports": [{"containerPort": 80}]} if name == "pod-1" else {}
        await client.create(PODS, pod(name, spec={"nodeName": "node-1"}, container=ports))
        await client.patch(PODS, name, {"status": {"podIP": "127.0.0.1"}}, "default", subresource="status")
    yield fake
    fake.server.close()


async def test_request_reaches_the_pod_without_credentials(http: Http, oven: Oven) -> None:
    status, body, _ = await http(
        "POST", f"{PROXY}/a%2Fb//c/?x=%20&y", {"crust": "thin"}, Accept="text/x", Cookie="a=b",
        Authorization="Bearer secret", Impersonate_User="baker", Impersonate_Group="system:masters",
    )  # fmt: skip

    assert (status, body) == (200, "hello")
    [received] = oven.received
    lines = received.split("\r\n")
    assert lines[0] == "POST /a%2Fb//c/?x=%20&y HTTP/1.1"
    assert {"Host: 127.0.0.1:80", "Accept: text/x", "Cookie: a=b", "Connection: close"} <= set(lines)
    assert f"X-Forwarded-Uri: {PROXY}/a%2Fb//c/?x=%20&y" in lines
    assert lines[-1] == '{"crust": "thin"}'
    assert "secret" not in received
    assert "baker" not in received


@pytest.mark.parametrize(
    ("encoding", "sent", "received"),
    [("gzip", gzip.compress(b"dough", mtime=0), None), ("X-Rye", b"dough", "X-Rye")],
    ids=["gzip", "X-Rye"],  # equal in each process that collects tests
)
async def test_body_that_is_decompressed_is_not_called_compressed(
    server: ApiServer, oven: Oven, encoding: str, sent: bytes, received: str | None
) -> None:
    headers = {"Content-Encoding": encoding}
    async with aiohttp.ClientSession(server.url) as session, session.post(f"{PROXY}/", data=sent, headers=headers):
        head, _, body = oven.received[0].partition("\r\n\r\n")

    assert body == "dough"
    assert re.findall(r"(?i)content-encoding: (.*)\r\n", head) == ([received] if received else [])


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.0 404 No\r\n\r\nuntil the end", 404, "until the end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 200, "abcde"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 2\r\n\r\nok", 201, "ok"),
        (b"HTTP/1.1 204 None\r\nContent-Length: 5\r\n\r\n", 204, ""),
        (b"", 503, "error trying to reach service: EOF"),
        (
            b"220 mail\r\n\r\n",
            503,
            (
                "error trying to reach service: net/http: HTTP/1.x transport connection broken: "
                "malformed HTTP response '220 mail'"
            ),
        ),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", 503, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: \xff\r\n\r\nok", 200, "ok"),
        (b"HTTP/1.1 200 O\nK\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 17) + b"\r\n\r\n", 503, None),
    ],
)
async def test_response_is_passed_back(http: Http, oven: Oven, answer: bytes, status: int, body: str | None) -> None:
    oven.answer = answer

    found = await http("GET", f"{PROXY}/")

    assert found[0] == status
    assert body is None or found[1] == body


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: a\nb\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"9" * (1 << 17),
    ],
)
async def test_response_that_is_cut_off_or_invalid_is_not_taken_for_a_whole_one(
    http: Http, oven: Oven, answer: bytes
) -> None:
    oven.answer = answer

    with pytest.raises(aiohttp.ClientError):
        await http("GET", f"{PROXY}/")
    oven.answer = HELLO
    assert (await http("GET", f"{PROXY}/"))[1] == "hello"


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/menu?x=1", f"{PROXY}/menu?x=1"),
        ("http://127.0.0.1:80/menu", f"{PROXY}/menu"),
        ("http://elsewhere.example/menu", "http://elsewhere.example/menu"),
        ("//elsewhere.example/menu", "//elsewhere.example/menu"),
        ("menu", "menu"),
    ],
)
async def test_redirection_within_the_pod_stays_there(
    server: ApiServer, oven: Oven, location: str, expected: str
) -> None:
    oven.answer = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()

    async with aiohttp.ClientSession(server.url) as session, session.get(f"{PROXY}/", allow_redirects=False) as found:
        assert (found.status, found.headers["Location"]) == (302, expected)


async def test_client_that_leaves_closes_the_connection_to_the_pod(server: ApiServer, oven: Oven) -> None:
    oven.silent = True

    async with aiohttp.ClientSession(server.url) as session:
        request = asyncio.ensure_future(session.get(f"{PROXY}/"))
        await asyncio.wait_for(oven.asked.wait(), 60)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    await asyncio.wait_for(oven.left.wait(), 60)


async def test_path_without_a_slash_is_redirected(server: ApiServer, oven: Oven) -> None:
    async with (
        aiohttp.ClientSession(server.url) as session,
        session.get(f"{PROXY}?x=1", allow_redirects=False) as found,
    ):
        assert (found.status, found.headers["Location"]) == (301, f"{PROXY}/?x=1")
    assert oven.dialed == []


async def test_other_methods_go_on_without_a_slash(http: Http, oven: Oven) -> None:
    assert (await http("POST", f"{PROXY}?x=1", {}))[:2] == (200, "hello")

    assert oven.received[0].startswith("POST /?x=1 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("pods/pod-1", 200, "hello"),
        ("pods/http:pod-1:80", 200, "hello"),
        ("pods/pod-1:82", 503, "error trying to reach service: dial tcp 127.0.0.1:82: connect: connection refused"),
        ("pods/pod-1:81", 503, "error trying to reach service: dial tcp 127.0.0.1:81: pod not found"),
        ("pods/pod-1:web", 503, "error trying to reach service: dial tcp 127.0.0.1:web: lookup tcp/web: unknown port"),
        ("pods/pod-1:99999", 503, None),
        ("pods/ftp:pod-1:80", 400, 'invalid pod request "ftp:pod-1:80"'),
        ("pods/:80", 400, 'invalid pod request ":80"'),
        ("pods/missing:80", 404, 'pods "missing" not found'),
        ("services/a:b:c:d", 400, 'invalid service request "a:b:c:d"'),
        ("services/nothing", 503, 'no endpoints available for service "nothing"'),
    ],
)
@pytest.mark.usefixtures("oven")
async def test_names_have_a_scheme_and_a_port(http: Http, name: str, status: int, message: str | None) -> None:
    code, answer, _ = await http("GET", f"{NAMESPACE}/{name}/proxy/")

    assert code == status
    assert message is None or message == (answer["message"] if isinstance(answer, dict) else answer)


async def test_pod_without_an_address_is_not_reached(client: Client, http: Http, oven: Oven) -> None:
    await client.create(PODS, pod("new"))

    status, answer, _ = await http("GET", f"{NAMESPACE}/pods/new:80/proxy/")

    assert (status, answer["message"], oven.dialed) == (400, "address not allowed", [])


async def target(client: Client, name: str, **changed: str) -> dict[str, str]:
    """The reference of an endpoint to a pod."""
    metadata = (await client.get(PODS, name, "default"))["metadata"]
    return {"kind": "Pod", "namespace": "default", "name": name, "uid": metadata["uid"], **changed}


async def endpoints(client: Client, targets: list[tuple[dict[str, str], bool]], **port: int | None) -> None:
    """Add endpoints to a Service, each with whether it is ready."""
    slice_ = {
        "metadata": {"name": "ovens-1", "labels": {"kubernetes.io/service-name": "ovens"}}, "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["127.0.0.1"], "conditions": {"ready": ready}, "targetRef": item} for item, ready in targets
        ],
        "ports": [{"name": "web", **(port or {"port": 80})}],
    }  # fmt: skip
    await client.create(ENDPOINT_SLICES, slice_, "default")


@pytest.mark.parametrize("changed", [{"uid": "of-a-former-one"}, {"kind": "VirtualMachine"}, None])
async def test_service_leads_to_no_other_object_and_no_missing_port(
    client: Client, http: Http, oven: Oven, changed: dict[str, str] | None
) -> None:
    port: dict[str, None] = {} if changed else {"port": None}
    await endpoints(client, [(await target(client, "pod-1", **(changed or {})), True)], **port)

    status, answer, _ = await http("GET", f"{NAMESPACE}/services/ovens:web/proxy/")

    assert (status, answer["message"]) == (503, 'no endpoints available for service "ovens"')
    assert oven.dialed == []


@pytest.mark.parametrize("name", ["ovens:web", "ovens:8080", "http:ovens:web"])
async def test_service_leads_to_a_ready_pod(client: Client, http: Http, oven: Oven, name: str) -> None:
    port = {"name": "web", "port": 8080}
    await client.create(SERVICES, {"metadata": {"name": "ovens"}, "spec": {"ports": [port]}}, "default")
    await endpoints(client, [
        (await target(client, "pod-1"), True), (await target(client, "pod-2"), False),
        ({"kind": "Pod", "namespace": "default", "name": "gone", "uid": "u"}, True),
    ])  # fmt: skip

    assert (await http("GET", f"{NAMESPACE}/services/{name}/proxy/"))[:2] == (200, "hello")
    assert oven.dialed == [("pod-1", 80)]
    _, answer, _ = await http("GET", f"{NAMESPACE}/services/ovens:81/proxy/")
    assert answer["message"] == 'no service port 81 found for service "ovens"'


async def test_websocket_is_rejected(http: Http, oven: Oven) -> None:
    status, answer, _ = await http("GET", f"{PROXY}/", Connection="Upgrade", Upgrade="websocket")

    assert (status, answer["message"]) == (501, "WebSockets are not passed on; use kubectl port-forward")
    assert oven.dialed == []


async def test_head_has_no_body(server: ApiServer, oven: Oven) -> None:
    oven.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"

    async with aiohttp.ClientSession(server.url) as session, session.head(f"{PROXY}/") as found:
        assert (found.status, found.headers["Content-Length"]) == (200, "5")


async def test_proxy_needs_a_right() -> None:
    async with ApiServer(authenticator=Authenticator()) as server:
        client_of_account = aiohttp.ClientSession(server.url)
        async with client_of_account as session:
            token = server.token("default", "default")
            async with session.get(f"{PROXY}/", headers={"Authorization": f"Bearer {token}"}) as found:
                answer = await found.json()

    assert found.status == 403
    assert 'cannot get resource "pods/proxy" in API group "" in the namespace "default"' in answer["message"]
