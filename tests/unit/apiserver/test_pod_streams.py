"""``pods/exec``, ``pods/attach`` and ``pods/portforward`` on the wire, with fake containers.

The answers are those of kube-apiserver 1.37.1 with a kubelet.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
from aiohttp.abc import AbstractStreamWriter
from aiohttp.test_utils import make_mocked_request

from dra_kit.apiserver.pod_streams import (
    V5,
    CommandResult,
    PodStreamUnavailable,
    StreamOptions,
    running_tasks,
    serve_exec,
)
from dra_kit.apiserver.port_forward import SpdySession, StreamData
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.resources import NODES, PODS
from tests.unit.apiserver.conftest import Http, pod
from tests.unit.apiserver.test_spdy import SpdyClient
from tests.unit.sandbox.cluster.kubelet.polling import until

PATH = "/api/v1/namespaces/default/pods/pod-1"
EXEC = f"{PATH}/exec?container=main&command=cat"
UPGRADE = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}


class Echo:
    """A command that repeats its input, until it ends."""

    def __init__(self, result: CommandResult) -> None:
        self._result = result
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        self._ended = asyncio.Event()
        self.sizes: list[tuple[int, int]] = []
        self.closed = asyncio.Event()

    async def read_output(self) -> bytes:
        data = await self._input.get()
        if not data:
            self._ended.set()
        return data

    async def read_errors(self) -> bytes:
        return b""

    async def write(self, data: bytes) -> None:
        self._input.put_nowait(data)

    def close_input(self) -> None:
        self._input.put_nowait(b"")

    def resize(self, width: int, height: int) -> None:
        self.sizes.append((width, height))

    async def result(self) -> CommandResult:
        await self._ended.wait()
        return self._result

    def close(self) -> None:
        self.closed.set()


class FakePods:
    """One pod whose containers run a command, and whose port 80 repeats what it gets."""

    def __init__(self) -> None:
        self.commands: list[Echo] = []
        self.result = CommandResult()
        self.missing = ""
        self.server: asyncio.Server | None = None
        self.dialed, self.hanging = asyncio.Event(), asyncio.Event()
        self.dialing = asyncio.Event()  # connections are made
        self.dialing.set()

    def find(self, pod: Any, container: str = "", *, attach: bool = False) -> None:
        if self.missing:
            raise PodStreamUnavailable(self.missing)

    async def exec(self, pod: Any, options: StreamOptions) -> Echo:
        self.commands.append(Echo(self.result))
        return self.commands[-1]

    async def attach(self, pod: Any, options: StreamOptions) -> Echo:
        return await self.exec(pod, options)

    async def dial(self, pod: Any, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.dialed.set()
        await self.dialing.wait()
        if port == 82:
            self.hanging.set()
            await asyncio.Event().wait()
        if port != 80:
            raise ConnectionRefusedError(111, "")
        assert self.server is not None
        return await asyncio.open_connection(*self.server.sockets[0].getsockname())


async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"<" + await reader.read() + b">")
    writer.close()


@pytest.fixture
async def pods(server: ApiServer, client: Client) -> AsyncIterator[FakePods]:
    fake = FakePods()
    server.serve_streams(fake)
    fake.server = await asyncio.start_server(repeat, "127.0.0.1", 0)
    await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}})
    await client.create(PODS, pod(spec={"nodeName": "node-1"}))
    yield fake
    fake.server.close()


@pytest.fixture
async def session(server: ApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url) as connected:
        yield connected


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("name", ["exec?command=ls", "attach?stdout=1", "portforward?ports=80"])
async def test_request_without_upgrade_is_rejected(http: Http, method: str, name: str) -> None:
    status, answer, _ = await http(method, f"{PATH}/{name}")

    assert (status, answer["message"]) == (400, "Upgrade request required")


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD"])
async def test_other_methods_are_rejected(http: Http, method: str) -> None:
    assert (await http(method, EXEC))[0] == 405


async def test_spdy_without_websocket_is_rejected_after_what_the_pod_lacks(http: Http, pods: FakePods) -> None:
    refused = await http("POST", f"{EXEC}&stdout=1", **UPGRADE)
    pods.missing = 'container not found ("main")'
    missing = await http("POST", f"{EXEC}&stdout=1", **UPGRADE)

    assert refused[0] == 400
    assert refused[1]["message"].startswith("SPDY/3.1 is not served here, only WebSockets; use kubectl 1.31")
    assert missing[:2] == (500, 'container not found ("main")')
    assert not pods.commands


async def test_request_without_streams_is_rejected(http: Http, pods: FakePods) -> None:
    answer = await http("GET", EXEC, **UPGRADE)

    assert answer[:2] == (400, "you must specify at least 1 of stdin, stdout, stderr")


async def test_unknown_container_is_rejected(http: Http, pods: FakePods) -> None:
    _, answer, _ = await http("GET", f"{PATH}/exec?container=oven", **UPGRADE)

    assert answer["message"] == "container oven is not valid for pod pod-1"


async def test_cluster_without_containers_has_no_streams(http: Http, client: Client) -> None:
    await client.create(PODS, pod())

    assert (await http("GET", EXEC, **UPGRADE))[0] == 501


async def test_pod_without_a_node_has_no_streams(http: Http, client: Client, pods: FakePods) -> None:
    await client.create(PODS, pod("pod-2"))

    _, answer, _ = await http("GET", EXEC.replace("pod-1", "pod-2"), **UPGRADE)

    assert answer["message"] == "pod pod-2 does not have a host assigned"


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize("protocols", [(), ("v3.channel.k8s.io",)])
async def test_unknown_protocol_is_rejected(session: aiohttp.ClientSession, protocols: tuple[str, ...]) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await session.ws_connect(f"{EXEC}&stdout=1", protocols=protocols)

    assert refused.value.status == 403


async def test_command_does_not_start_for_an_invalid_handshake(http: Http, pods: FakePods) -> None:
    """No client would read its output or end it."""
    _, answer, _ = await http(
        "GET", f"{EXEC}&stdout=1",
        **{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Protocol": "v5.channel.k8s.io"},
    )  # fmt: skip

    assert answer["message"] == "the WebSocket handshake lacks a valid Sec-WebSocket-Key or Sec-WebSocket-Version"
    assert pods.commands == []


@pytest.mark.parametrize("end", [ConnectionResetError(), asyncio.CancelledError()])
async def test_streams_are_closed_for_a_client_that_leaves_before_the_handshake(end: BaseException) -> None:
    writer = AsyncMock(AbstractStreamWriter)
    writer.write_headers.side_effect = end  # the handshake cannot be answered, or the server ends the request
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(), "Sec-WebSocket-Protocol": V5}  # fmt: skip
    pods = FakePods()
    with suppress(asyncio.CancelledError):
        upgrade = serve_exec(pods, {}, StreamOptions(stdin=True, stdout=True))
        await upgrade.answer(make_mocked_request("GET", EXEC, headers, writer=writer))

    assert [command.closed.is_set() for command in pods.commands] == [True]


async def test_tasks_that_have_ended_are_forgotten() -> None:
    async def fail() -> None:
        raise ConnectionResetError

    async with running_tasks() as start:
        task = weakref.ref(start(fail()))
        await until(lambda: (gc.collect(), task())[1] is None)


FAILED = "Internal error occurred: error executing command in container: no oven"


@pytest.mark.parametrize(
    ("protocol", "result", "status"),
    [
        ("v4.channel.k8s.io", CommandResult(), {"status": "Success"}),
        ("v5.channel.k8s.io", CommandResult(), {"metadata": {}, "status": "Success"}),
        (
            "v5.channel.k8s.io",
            CommandResult(3),
            {
                "metadata": {},
                "status": "Failure",
                "message": "command terminated with non-zero exit code: command terminated with exit code 3",
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
            },
        ),
        (
            "v5.channel.k8s.io",
            CommandResult(None, "no oven"),
            {
                "metadata": {},
                "status": "Failure",
                "message": f"Internal error occurred: {FAILED}",
                "reason": "InternalError",
                "details": {"causes": [{"message": FAILED}]},
                "code": 500,
            },
        ),
    ],
)
async def test_command_ends_with_its_output_and_a_status(
    session: aiohttp.ClientSession, pods: FakePods, protocol: str, result: CommandResult, status: Any
) -> None:
    pods.result = result
    async with session.ws_connect(f"{EXEC}&stdin=1&stdout=1", protocols=[protocol]) as socket:
        assert await socket.receive_bytes() == b"\x01"
        await socket.send_bytes(b"\x00dough")
        assert await socket.receive_bytes() == b"\x01dough"
        await (pods.commands[0].write(b"") if protocol.startswith("v4") else socket.send_bytes(b"\xff\x00"))
        last = await socket.receive_bytes()
        end = await socket.receive()

    assert (last[0], json.loads(last[1:])) == (3, status)
    assert (end.type, end.data) == (aiohttp.WSMsgType.CLOSE, 1000)
    assert pods.commands[0].closed.is_set()


async def test_sizes_reach_the_terminal(session: aiohttp.ClientSession, pods: FakePods) -> None:
    async with session.ws_connect(f"{EXEC}&stdin=1&stdout=1&tty=1", protocols=["v5.channel.k8s.io"]) as socket:
        for message in (b'\x04{"Width":80,"Height":24}', b"\x04{", b'\x04"x"', b"\x04{}", b"\x07?", b"", b"\x00x"):
            await socket.send_bytes(message)
        assert [await socket.receive_bytes() for _ in range(2)] == [b"\x01", b"\x01x"]

    assert pods.commands[0].sizes == [(80, 24)]


async def test_client_that_leaves_closes_the_streams(session: aiohttp.ClientSession, pods: FakePods) -> None:
    async with session.ws_connect(f"{EXEC}&stdin=1&stdout=1", protocols=["v5.channel.k8s.io"]) as socket:
        await socket.receive_bytes()
        connection = socket.get_extra_info("socket")
        assert connection is not None

    await asyncio.wait_for(pods.commands[0].closed.wait(), 60)


@pytest.mark.usefixtures("pods")
async def test_tunnel_carries_connections_both_ways(session: aiohttp.ClientSession) -> None:
    client = SpdyClient()
    frames = bytearray()
    async with session.ws_connect(f"{PATH}/portforward", protocols=["SPDY/3.1+portforward.k8s.io"]) as socket:
        for stream, kind in ((1, "error"), (3, "data")):
            await socket.send_bytes(client.open(stream, {"streamtype": kind, "port": "80", "requestid": "0"}))
        await socket.send_bytes(b"\0\0\0\3\0\0\0\5dough")
        await socket.send_bytes(b"\0\0\0\3\1\0\0\0")  # half closed: the answer still comes
        for stream, kind in ((5, "error"), (7, "data")):
            await socket.send_bytes(client.open(stream, {"streamtype": kind, "port": "81", "requestid": "1"}))
        await socket.send_bytes(b"\x80\3\0\6\0\0\0\4\0\0\0\x2a")
        wanted = (b"<dough>", b"\0\0\0\3\1\0\0\0", b"\0\0\0\7\1\0\0\0", b"\x80\3\0\6\0\0\0\4\0\0\0\x2a")
        while not all(item in frames for item in wanted):
            frames += await socket.receive_bytes(timeout=60)

    assert b"error forwarding port 81 to pod" in frames
    assert b"connect: connection refused" in frames


async def test_client_that_leaves_while_ports_are_connected_closes_them(
    session: aiohttp.ClientSession, pods: FakePods
) -> None:
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        left.set()
        writer.close()

    assert pods.server is not None
    pods.server.close()
    pods.server = await asyncio.start_server(serve, "127.0.0.1", 0)
    path, at_once = f"{PATH}/portforward?ports=80,82", aiohttp.ClientWSTimeout(ws_close=0.01)
    async with session.ws_connect(path, protocols=["v4.channel.k8s.io"], timeout=at_once):
        await asyncio.wait_for(pods.hanging.wait(), 60)

    await asyncio.wait_for(left.wait(), 60)


def opened(client: SpdyClient, stream: int, kind: str, request: int) -> bytes:
    return client.open(stream, {"streamtype": kind, "port": "80", "requestid": str(request)})


def data(stream: int, content: bytes, *, finished: bool = False) -> bytes:
    return SpdySession.data(stream, content, finished=finished)


async def received(socket: aiohttp.ClientWebSocketResponse, *wanted: bytes) -> bytes:
    """Return frames until each of these has come."""
    frames = bytearray()
    while not all(item in frames for item in wanted):
        frames += await socket.receive_bytes(timeout=60)
    return bytes(frames)


PING = b"\x80\3\0\6\0\0\0\4\0\0\0\x2a"


@pytest.mark.usefixtures("pods")
async def test_tunnel_keeps_few_streams_that_wait_for_their_second_one(session: aiohttp.ClientSession) -> None:
    client = SpdyClient()
    async with session.ws_connect(f"{PATH}/portforward", protocols=["SPDY/3.1+portforward.k8s.io"]) as socket:
        for number in range(200):
            await socket.send_bytes(opened(client, 2 * number + 1, "data", number))
        await socket.send_bytes(PING)
        frames = await received(socket, PING)
        refused = [number for number in range(200) if SpdySession.reset(2 * number + 1) in frames]
        assert refused == list(range(128, 200))

        await socket.send_bytes(SpdySession.reset(1))  # makes room for another one
        for stream, kind in ((401, "data"), (403, "error")):
            await socket.send_bytes(opened(client, stream, kind, 200))
        await socket.send_bytes(data(401, b"dough", finished=True))
        await received(socket, b"<dough>")


@pytest.mark.usefixtures("pods")
async def test_tunnel_resets_a_stream_that_sends_much_without_its_second_one(session: aiohttp.ClientSession) -> None:
    client = SpdyClient()
    async with session.ws_connect(f"{PATH}/portforward", protocols=["SPDY/3.1+portforward.k8s.io"]) as socket:
        await socket.send_bytes(opened(client, 1, "data", 0))
        for _ in range(10):
            await socket.send_bytes(data(1, bytes(100_000)))
        await socket.send_bytes(PING)

        assert SpdySession.reset(1) in await received(socket, PING)


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize("kind", ["data", "error"])
async def test_tunnel_takes_one_stream_of_a_kind_for_a_request(session: aiohttp.ClientSession, kind: str) -> None:
    client = SpdyClient()
    async with session.ws_connect(f"{PATH}/portforward", protocols=["SPDY/3.1+portforward.k8s.io"]) as socket:
        for stream in (1, 3):
            await socket.send_bytes(opened(client, stream, kind, 0))
        await socket.send_bytes(PING)

        frames = await received(socket, PING)
        assert (SpdySession.reset(1) in frames, SpdySession.reset(3) in frames) == (False, True)


async def test_tunnel_loses_nothing_that_is_sent_while_it_connects(
    session: aiohttp.ClientSession, pods: FakePods
) -> None:
    client, pods.dialing = SpdyClient(), asyncio.Event()
    dough = bytes(range(256)) * 400

    async def send(socket: aiohttp.ClientWebSocketResponse) -> None:
        for stream, kind in ((1, "error"), (3, "data")):
            await socket.send_bytes(opened(client, stream, kind, 0))
        for _ in range(20):
            await socket.send_bytes(data(3, dough))
        await socket.send_bytes(data(3, b"", finished=True))

    async with session.ws_connect(f"{PATH}/portforward", protocols=["SPDY/3.1+portforward.k8s.io"]) as socket:
        sending = asyncio.create_task(send(socket))
        await asyncio.wait_for(pods.dialed.wait(), 60)
        pods.dialing.set()
        events: list[Any] = []
        spdy = SpdySession()
        while not any(isinstance(item, StreamData) and item.stream == 3 and item.finished for item in events):
            events += spdy.receive(await socket.receive_bytes(timeout=60))
        await sending

    assert b"".join(item.data for item in events if isinstance(item, StreamData)) == b"<" + dough * 20 + b">"


@pytest.mark.usefixtures("pods")
async def test_tunnel_ends_with_an_invalid_frame(session: aiohttp.ClientSession) -> None:
    async with session.ws_connect(f"{PATH}/portforward", protocols=["SPDY/3.1+portforward.k8s.io"]) as socket:
        await socket.send_bytes(b"\x80\2\0\1\0\0\0\0")

        assert (await socket.receive(timeout=60)).type is aiohttp.WSMsgType.CLOSE


async def test_permission_to_get_is_not_enough(http: Http, client: Client, pods: FakePods) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]}]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "get"},
        "rules": rules,
    }
    await http("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "get"},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "get"},
               "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "cook"}]}  # fmt: skip
    await http("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)

    status, answer, _ = await http("GET", EXEC, Impersonate_User="cook")

    assert (status, answer["message"]) == (403, 'pods "pod-1" is forbidden: ')
    assert answer["details"] == {"name": "pod-1", "kind": "pods"}
