"""Probes of containers, in a whole sandbox. The messages are those of a kubelet 1.37.1."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.client.resources import EVENTS, PODS
from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.containers.node_namespace import RelayedConnections
from dra_kit.sandbox.kubelet.probes import ProbeSettings, ProbeVerdict, check_grpc, port_of
from tests.unit.sandbox.cluster.kubelet.polling import until

Object = dict[str, Any]
SLEEP = "exec sleep 3600"
NOT_CONNECTED = 'failed to connect service "127.0.0.1:1" within 1s: context deadline exceeded'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox((), SandboxSettings(time_scale=100, webhook=False, controller=False)) as running:
        yield running


async def create(
    sandbox: Sandbox, name: str, script: str = SLEEP, *, init: Object | None = None, **probes: Any
) -> None:
    container = {"name": "main", "image": "x", "command": ["sh", "-c", script], **probes}
    spec = {
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        **({"initContainers": [init]} if init else {}),
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
    await sandbox.client.create(PODS, pod)


def status(sandbox: Sandbox, name: str) -> Object:
    """Of the container."""
    pod = sandbox.informers.objects(PODS).get(("default", name)) or {}
    found = (pod.get("status") or {}).get("containerStatuses")
    return dict(found[0]) if found else {"state": {}, "restartCount": 0}


async def events(sandbox: Sandbox, name: str, reason: str) -> list[str]:
    found = (await sandbox.client.list(EVENTS, "default")).items
    return [item["note"] for item in found if (item["regarding"]["name"], item["reason"]) == (name, reason)]


async def event(sandbox: Sandbox, name: str, reason: str) -> str:
    """Wait for the first one."""
    async with asyncio.timeout(60):
        while not (found := await events(sandbox, name, reason)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found[0]


PATIENT = {"timeoutSeconds": 60}
"""A probe that succeeds or fails for another reason than its timeout, however slow the machine is."""


def run(*command: str) -> Object:
    return {"exec": {"command": list(command)}, **PATIENT}


@pytest.mark.processes
@pytest.mark.asyncio(loop_scope="module")
class TestSandbox:
    async def test_failed_liveness_restarts_the_container(self, sandbox: Sandbox) -> None:
        probe = {**run("sh", "-c", "echo bad; exit 3"), "failureThreshold": 2}
        await create(sandbox, "live", livenessProbe=probe)

        await until(lambda: status(sandbox, "live")["restartCount"] >= 1)

        assert await event(sandbox, "live", "Unhealthy") == "Liveness probe failed: bad\n"
        assert await event(sandbox, "live", "Killing") == "Container main failed liveness probe, will be restarted"

    async def test_container_is_ready_while_its_probe_succeeds(self, sandbox: Sandbox, tmp_path: Path) -> None:
        (tmp_path / "hot").touch()
        await create(
            sandbox, "ready", readinessProbe={**run("test", "-e", str(tmp_path / "hot")), "failureThreshold": 1}
        )

        await until(lambda: status(sandbox, "ready").get("ready"))
        (tmp_path / "hot").unlink()
        await until(lambda: status(sandbox, "ready").get("ready") is False)

        pod = sandbox.informers.objects(PODS)["default", "ready"]
        conditions = {item["type"]: item for item in pod["status"]["conditions"]}
        assert conditions["Ready"]["message"] == "containers with unready status: [main]"
        assert status(sandbox, "ready")["restartCount"] == 0

    async def test_other_probes_wait_for_the_startup_probe(self, sandbox: Sandbox, tmp_path: Path) -> None:
        started = {**run("test", "-e", str(tmp_path / "hot")), "failureThreshold": 100_000}
        await create(sandbox, "start", startupProbe=started, livenessProbe=run("test", "-e", str(tmp_path / "hot")))

        await event(sandbox, "start", "Unhealthy")
        await until(lambda: "running" in status(sandbox, "start")["state"])
        before = status(sandbox, "start")
        (tmp_path / "hot").touch()
        await until(lambda: status(sandbox, "start").get("started"))

        assert (before["started"], before["ready"], before["restartCount"]) == (False, False, 0)
        assert status(sandbox, "start")["ready"]
        assert set(await events(sandbox, "start", "Unhealthy")) == {"Startup probe failed: "}

    async def test_containers_wait_until_a_sidecar_has_started(self, sandbox: Sandbox, tmp_path: Path) -> None:
        probe = {**run("test", "-e", str(tmp_path / "hot")), "failureThreshold": 100_000}
        sidecar = {"name": "side", "image": "x", "command": ["sh", "-c", SLEEP], "restartPolicy": "Always",
                   "startupProbe": probe}  # fmt: skip
        await create(sandbox, "side", init=sidecar)

        await event(sandbox, "side", "Unhealthy")
        await until(lambda: status(sandbox, "side")["state"])
        before = status(sandbox, "side")["state"]
        (tmp_path / "hot").touch()

        await until(lambda: "running" in status(sandbox, "side")["state"])
        assert before["waiting"]["reason"] == "PodInitializing"

    @pytest.mark.parametrize(
        ("name", "probe", "text"),
        [
            ("http", {"httpGet": {"port": 1, "path": "/x"}, **PATIENT},
             'Readiness probe failed: Get "http://127.0.0.1:1/x": dial tcp 127.0.0.1:1: connect: connection refused'),
            ("tcp", {"tcpSocket": {"port": 1}, **PATIENT},
             "Readiness probe failed: dial tcp 127.0.0.1:1: connect: connection refused"),
            ("slow", {"exec": {"command": ["sleep", "3600"]}},
             'Readiness probe failed: command timed out: "sleep 3600" timed out after 1s'),
            ("grpc", {"grpc": {"port": 1}}, f'Readiness probe failed: timeout: {NOT_CONNECTED}'),
            ("port", {"httpGet": {"port": "oven"}},
             'Readiness probe errored and resulted in unknown state: strconv.Atoi: parsing "oven": invalid syntax'),
        ],
    )  # fmt: skip
    async def test_failures_are_reported_as_by_a_kubelet(
        self, sandbox: Sandbox, name: str, probe: Object, text: str
    ) -> None:
        await create(sandbox, name, readinessProbe=probe)

        assert await event(sandbox, name, "Unhealthy") == text
        await sandbox.client.delete(PODS, name, "default")

    async def test_missing_program_leaves_the_state_unknown(self, sandbox: Sandbox) -> None:
        await create(sandbox, "missing", livenessProbe={**run("oven"), "failureThreshold": 1})

        note = await event(sandbox, "missing", "Unhealthy")

        begin = "Liveness probe errored and resulted in unknown state: rpc error: code = Unknown desc = failed to exec"
        assert note.startswith(begin)
        assert status(sandbox, "missing")["restartCount"] == 0
        await sandbox.client.delete(PODS, "missing", "default")

    async def test_command_has_the_values_of_the_spec_for_its_variables(self, sandbox: Sandbox) -> None:
        env = [
            {"name": "OVEN", "value": "$(POD)-hot"},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]
        await create(sandbox, "words", env=env, readinessProbe=run("sh", "-c", "echo '$(OVEN) $(POD) $(NONE)'; exit 1"))

        assert await event(sandbox, "words", "Unhealthy") == "Readiness probe failed: $(POD)-hot  $(NONE)\n"
        await sandbox.client.delete(PODS, "words", "default")

    async def test_container_without_a_process_is_not_probed(self, sandbox: Sandbox) -> None:
        await create(sandbox, "empty", readinessProbe=run("false"), livenessProbe=run("false"), command=[])

        await until(lambda: status(sandbox, "empty").get("ready"))

    @pytest.mark.parametrize("path", ["ok", "moved", "named"])
    async def test_http_succeeds_with_a_good_status(self, sandbox: Sandbox, path: str) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = await reader.readuntil(b"\r\n\r\n")
            assert b"X-Oven: hot" in request
            line = b"302 Found\r\nLocation: /ok" if b"/moved" in request else b"204 No Content"
            writer.write(b"HTTP/1.1 " + line + b"\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        number = server.sockets[0].getsockname()[1]
        headers = [{"name": "X-Oven", "value": "hot"}]
        port = "web" if path == "named" else number
        probe = {"httpGet": {"port": port, "path": f"/{path}", "httpHeaders": headers}, **PATIENT}
        ports = [{"name": "web", "containerPort": number}]
        async with server:
            await create(sandbox, path, readinessProbe=probe, ports=ports)
            await until(lambda: status(sandbox, path).get("ready"))
            await sandbox.client.delete(PODS, path, "default")


async def test_servers_see_the_release_of_the_kubelet() -> None:
    agents: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        agents.extend(line for line in lines if line.startswith("User-Agent: "))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    settings = SandboxSettings(time_scale=100, webhook=False, controller=False, release=Release.parse("1.38"))
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    probe = {"httpGet": {"port": server.sockets[0].getsockname()[1]}, **PATIENT}
    async with server, Sandbox((), settings) as sandbox:
        await create(sandbox, "seen", readinessProbe=probe)
        await until(lambda: status(sandbox, "seen").get("ready"))

    assert agents[0] == "User-Agent: kube-probe/1.38"


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4), st.integers(1, 4))
def test_verdict_is_that_of_the_last_long_row(results: list[bool], success: int, failure: int) -> None:
    verdict = ProbeVerdict("readiness", ProbeSettings(success_threshold=success, failure_threshold=failure))
    expected = False
    for count in range(1, len(results) + 1):
        before = verdict.holds
        changed = verdict.add(success=results[count - 1])
        needed = success if results[count - 1] else failure
        row = results[:count][-needed:]
        if len(row) == needed and len(set(row)) == 1:
            expected = results[count - 1]
        assert verdict.holds is expected
        assert changed is (before is not expected)


@pytest.mark.parametrize(("answer", "expected"), [(b"\x08\x01", True), (b"\x08\x02", False), (b"", False)])
async def test_grpc_health(answer: bytes, expected: bool) -> None:
    seen = []

    async def check(request: bytes, _: Any) -> bytes:
        seen.append(request)
        return answer

    handler = grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(check)}
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        result = await check_grpc(f"127.0.0.1:{port}", "oven", 60, shown="oven:1", agent="kube-probe/1.36")
        other = await check_grpc(f"127.0.0.1:{port}", "", 60, shown="oven:1", agent="kube-probe/1.36")
    finally:
        await server.stop(None)

    assert result.success is other.success is expected
    assert seen == [b"\x0a\x04oven", b""]


@pytest.mark.parametrize("turns", range(6))
async def test_connection_that_comes_while_a_probe_ends_is_closed(tmp_path: Path, turns: int) -> None:
    async def connect() -> Any:
        await asyncio.Event().wait()

    connections = RelayedConnections()
    with warnings.catch_warnings(record=True) as found, socket.socket(socket.AF_UNIX) as client:
        warnings.simplefilter("always")
        server = await asyncio.start_unix_server(connections.to(connect), tmp_path / "s")
        client.connect(str(tmp_path / "s"))
        client.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await connections.close()
        server.close()
        with suppress(ConnectionError):
            async with asyncio.timeout(60):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        gc.collect()
    assert [str(each.message) for each in found if each.category is ResourceWarning] == []


async def test_server_without_health_is_unhealthy() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        result = await check_grpc(f"127.0.0.1:{port}", "", 60, shown="oven:1", agent="kube-probe/1.36")
    finally:
        await server.stop(None)

    assert result.success is False
    assert "does not implement the grpc health protocol" in result.output


def test_port_may_be_a_number_in_a_text() -> None:
    assert port_of({"ports": [{"name": "web", "containerPort": 80}]}, "web") == 80
    assert port_of({}, "81") == 81
