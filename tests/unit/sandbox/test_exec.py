"""``pods/exec``, ``pods/attach`` and ``pods/portforward`` of a whole sandbox, with kubectl and kubernetes_asyncio."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import ssl
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import aiohttp
import pytest
import pytest_asyncio
from kubernetes_asyncio import client as kubernetes
from kubernetes_asyncio import config
from kubernetes_asyncio.stream import WsApiClient
from yarl import URL

from dra_kit.client.resources import ENDPOINT_SLICES, PODS
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.containers.process_runtime import MOUNTS_VARIABLE
from tests.unit.apiserver.programs import program
from tests.unit.sandbox.cluster.kubelet.polling import until

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

SLEEP = "exec sleep 3600"
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"baked\\n" * 20000)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    settings = SandboxSettings(time_scale=100, webhook=False, controller=False)
    async with Sandbox((), settings) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def baker(sandbox: Sandbox) -> str:
    """A pod that runs until the end of the tests."""
    await create(sandbox, "baker", SLEEP, env=[{"name": "HEAT", "value": "200"}])
    return "baker"


async def create(sandbox: Sandbox, name: str, script: str, **container: Any) -> None:
    main = {"name": "main", "image": "x", "command": ["sh", "-c", script], **container}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [main]}
    metadata = {"name": name, "namespace": "default"}
    await sandbox.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    await until(lambda: phase(sandbox, name) in {"Running", "Succeeded", "Failed"})


def phase(sandbox: Sandbox, name: str) -> str:
    found = sandbox.informers.objects(PODS).get(("default", name), {}).get("status", {})
    return str(found.get("phase", ""))


class Result(NamedTuple):
    code: int | None
    out: str
    err: str


async def start(sandbox: Sandbox, *arguments: str, stdin: int = PIPE) -> asyncio.subprocess.Process:
    env = {"PATH": os.environ["PATH"], "HOME": str(sandbox.directory), "KUBECONFIG": str(sandbox.kubeconfig)}
    return await asyncio.create_subprocess_exec(
        program("kubectl"), *arguments, env=env, stdin=stdin, stdout=PIPE, stderr=PIPE
    )


async def kubectl(sandbox: Sandbox, *arguments: str, stdin: bytes = b"") -> Result:
    process = await start(sandbox, *arguments)
    out, err = await asyncio.wait_for(process.communicate(stdin), 100)
    return Result(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def websocket(
    sandbox: Sandbox, path: str, protocol: str = "v5.channel.k8s.io", **headers: str
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    server = sandbox.control_plane.server
    context = ssl.create_default_context(cadata=server.authority)
    named = {"Authorization": f"Bearer {sandbox.control_plane.door.token}", **headers}
    async with aiohttp.ClientSession() as session:
        url = URL(f"{server.url}/api/v1/namespaces/default/pods/{path}", encoded=True)
        async with session.ws_connect(url, protocols=[protocol], headers=named, ssl=context) as socket:
            yield socket


async def test_exec_gives_output_errors_and_exit_code(sandbox: Sandbox, baker: str) -> None:
    done = await kubectl(sandbox, "exec", baker, "--", "sh", "-c", "echo out; echo err >&2; exit 7")

    assert done == Result(7, "out\n", "err\ncommand terminated with exit code 7\n")


async def test_exec_runs_in_environment_and_directory_of_the_container(sandbox: Sandbox, baker: str) -> None:
    [directory] = (sandbox.nodes[0].directory / "containers").glob("main-*")

    done = await kubectl(sandbox, "exec", baker, "--", "sh", "-c", "pwd; echo $HEAT; echo $HOSTNAME")

    assert done == Result(0, f"{directory}\n200\nbaker\n", "")


async def test_exec_sees_the_volumes_of_the_container(sandbox: Sandbox, baker: str) -> None:
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    report = sandbox.nodes[0].runtime.report("default", baker, "main")
    assert report is not None
    if MOUNTS_VARIABLE in report.environment:
        pytest.skip("this machine does not let the user mount")

    done = await kubectl(sandbox, "exec", baker, "--", "sh", "-c", f"wc -l <{token}")

    assert done == Result(0, "0\n", "")


async def test_exec_passes_input_to_its_end(sandbox: Sandbox, baker: str) -> None:
    data = os.urandom(300_000).hex().encode()

    done = await kubectl(sandbox, "exec", "-i", baker, "--", "wc", "-c", stdin=data)

    assert done == Result(0, "600000\n", "")


async def test_copy_to_a_pod_and_back(sandbox: Sandbox, baker: str, tmp_path: Path) -> None:
    (tmp_path / "dough").write_bytes(os.urandom(200_000))

    assert (await kubectl(sandbox, "exec", baker, "--", "mkdir", "bread")).code == 0
    there = await kubectl(sandbox, "cp", str(tmp_path / "dough"), f"{baker}:bread/dough")
    back = await kubectl(sandbox, "cp", f"{baker}:bread/dough", str(tmp_path / "bread"))

    assert (there.code, back.code) == (0, 0), (there, back)
    assert (tmp_path / "bread").read_bytes() == (tmp_path / "dough").read_bytes()


async def test_terminal_has_a_size_and_ends_with_the_command(sandbox: Sandbox, baker: str) -> None:
    script = "tty >/dev/null && echo terminal; read word; stty size; echo $word-$word; exit 3"
    options = [("command", word) for word in ("sh", "-c", script)]
    query = urlencode([("container", "main"), ("stdin", 1), ("stdout", 1), ("tty", 1), *options])
    async with websocket(sandbox, f"{baker}/exec?{query}") as socket:
        await socket.send_bytes(b'\x04{"Width":100,"Height":30}')
        await socket.send_bytes(b"\x00olive\n")
        messages = [message.data async for message in socket]

    received = b"".join(data[1:] for data in messages if data[0] == 1)
    [status] = [json.loads(data[1:]) for data in messages if data[0] == 3]
    assert sorted(received.split()) == [b"100", b"30", b"olive", b"olive-olive", b"terminal"]
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]


async def test_kubectl_offers_a_terminal(sandbox: Sandbox, baker: str) -> None:
    ours, theirs = pty.openpty()
    try:
        process = await start(sandbox, "exec", "-it", baker, "--", "sh", "-c", "tty; read x; echo $x", stdin=theirs)
        os.write(ours, b"margherita\n")
        out, _ = await asyncio.wait_for(process.communicate(), 100)
    finally:
        os.close(ours)
        os.close(theirs)

    assert process.returncode == 0
    assert re.search(rb"/dev/pts/\d+\r\n", out)
    assert out.endswith(b"margherita\r\n")


async def test_kubernetes_client_of_python_gets_output(sandbox: Sandbox, baker: str) -> None:
    configuration = kubernetes.Configuration()
    await config.load_kube_config(str(sandbox.kubeconfig), client_configuration=configuration)
    async with WsApiClient(configuration=configuration) as api:
        core: Any = kubernetes.CoreV1Api(api)
        out = await core.connect_get_namespaced_pod_exec(
            baker, "default", command=["sh", "-c", "echo $HEAT"], stdout=True, stderr=True, stdin=False, tty=False
        )

    assert out.strip() == "200"


async def test_unknown_program_is_reported_as_by_a_kubelet(sandbox: Sandbox, baker: str) -> None:
    done = await kubectl(sandbox, "exec", baker, "--", "oven")

    assert done.code == 1
    assert re.fullmatch(
        "error: Internal error occurred: Internal error occurred: error executing command in container: failed to exec "
        'in container: failed to start exec "[0-9a-f]{64}": OCI runtime exec failed: exec failed: unable to start '
        'container process: exec: "oven": executable file not found in \\$PATH\n',
        done.err,
    )


async def test_missing_containers_and_pods_are_reported_as_by_a_kubelet(sandbox: Sandbox) -> None:
    await create(sandbox, "burnt", "exit 1")
    nowhere = {"containers": [{"name": "main", "image": "x"}], "nodeSelector": {"no": "where"}}
    metadata = {"name": "raw", "namespace": "default"}
    await sandbox.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": nowhere})

    failed = [await kubectl(sandbox, *words) for words in (
        ("exec", "raw", "--", "true"), ("exec", "missing", "--", "true"), ("port-forward", "burnt", ":80"),
    )]  # fmt: skip
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with websocket(sandbox, "burnt/exec?container=main&stdout=1&command=true"):
            pass

    assert [item.err.splitlines()[-1] for item in failed] == [
        "error: unable to upgrade connection: pod raw does not have a host assigned",
        'Error from server (NotFound): pods "missing" not found',
        "error: unable to forward port because pod is not running. Current status=Failed",
    ]
    assert refused.value.status == 500


async def test_client_needs_the_permission_to_create(sandbox: Sandbox, baker: str) -> None:
    for verb in ("get", "create"):
        await kubectl(sandbox, "create", "role", verb, f"--verb={verb}", "--resource=pods,pods/exec")
    await kubectl(sandbox, "create", "rolebinding", "get", "--role=get", "--user=cook")
    before = await kubectl(sandbox, "exec", "--as=cook", baker, "--", "true")
    await kubectl(sandbox, "create", "rolebinding", "create", "--role=create", "--user=cook")
    after = await kubectl(sandbox, "exec", "--as=cook", baker, "--", "true")

    assert (before.code, after.code) == (1, 0)
    assert "forbidden" in before.err


async def test_commands_end_with_their_container(sandbox: Sandbox, tmp_path: Path) -> None:
    await create(sandbox, "short", SLEEP)
    process = await start(sandbox, "exec", "short", "--", "sh", "-c", f"echo $$ >{tmp_path}/pid; sleep 3600")
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())

    await sandbox.client.delete(PODS, "short", "default")

    await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 137
    await until(lambda: not Path("/proc", (tmp_path / "pid").read_text().strip()).exists())


async def test_container_without_a_command_runs_commands(sandbox: Sandbox) -> None:
    await create(sandbox, "empty", "", command=[], env=[{"name": "DOUGH", "value": "pan"}])

    assert await kubectl(sandbox, "exec", "empty", "--", "sh", "-c", "echo $DOUGH") == Result(0, "pan\n", "")


async def test_attach_reaches_input_and_output(sandbox: Sandbox) -> None:
    await create(sandbox, "echo", "while read word; do echo got $word; done; echo end", stdin=True, stdinOnce=True)
    process = await start(sandbox, "attach", "-i", "echo", "-q")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"basil\n")

    assert await asyncio.wait_for(process.stdout.readline(), 100) == b"got basil\n"
    out, _ = await asyncio.wait_for(process.communicate(b""), 100)
    assert out == b"end\n"
    await until(lambda: phase(sandbox, "echo") == "Succeeded")


async def test_attach_to_a_terminal(sandbox: Sandbox) -> None:
    await create(sandbox, "shell", "tty; while read word; do echo $word-$word; done", stdin=True, tty=True)
    async with websocket(sandbox, "shell/attach?stdin=1&stdout=1&tty=1") as socket:
        await socket.send_bytes(b"\x00olive\n")
        received = b""
        while b"olive-olive\r\n" not in received:
            received += (await socket.receive_bytes(timeout=100))[1:]

    assert "/dev/pts/" in (await kubectl(sandbox, "logs", "shell")).out


async def served_port(sandbox: Sandbox, name: str) -> int:
    """The port that the server of a pod has printed."""
    [report] = sandbox.nodes[0].runtime.reports("default", name)
    await until(lambda: report.log.text.endswith("\n"))
    return int(report.log.text)


async def test_port_forward_carries_connections(sandbox: Sandbox) -> None:
    await create(sandbox, "web", "", command=["python3", "-c", SERVER])
    port = await served_port(sandbox, "web")
    process = await start(sandbox, "port-forward", "web", f":{port}", ":1", stdin=DEVNULL)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 100)
        local = re.findall(rb"127.0.0.1:(\d+)", line + await asyncio.wait_for(process.stdout.readuntil(b"-> 1\n"), 100))
        async with aiohttp.ClientSession() as session:
            bodies = await asyncio.gather(*(_get(session, int(local[0])) for _ in range(5)))
            with pytest.raises(aiohttp.ClientError):
                await _get(session, int(local[1]))
        error = await asyncio.wait_for(process.stderr.readline(), 100)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()

    assert bodies == [b"baked\n" * 20000] * 5
    assert b"connect: connection refused" in error


async def _get(session: aiohttp.ClientSession, port: int) -> bytes:
    async with session.get(f"http://127.0.0.1:{port}/") as answer:
        return await answer.read()


async def test_debug_runs_a_container_in_the_pod(sandbox: Sandbox) -> None:
    await create(sandbox, "patient", SLEEP)

    process = await start(
        sandbox, "debug", "patient", "--image=busybox:stable", "--target=main", "--env=DOCTOR=x", "-i", "--quiet",
        "--container=doctor", "--", "sh", "-c", "read line; echo $line $DOCTOR $HOSTNAME; exit 3",
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"hello\n")
    line = await asyncio.wait_for(process.stdout.readline(), 100)  # the end of the input would detach kubectl
    await asyncio.wait_for(process.communicate(), 100)

    assert line == b"hello x patient\n"
    found = sandbox.informers.objects(PODS)
    await until(lambda: "terminated" in _doctor(found["default", "patient"])["state"])
    status = _doctor(found["default", "patient"])
    assert (status["state"]["terminated"]["exitCode"], status["ready"], status["restartCount"]) == (3, False, 0)
    assert phase(sandbox, "patient") == "Running"
    assert "hello x patient" in (await kubectl(sandbox, "logs", "patient", "-c", "doctor")).out
    await kubectl(sandbox, "delete", "pod", "patient")
    await until(lambda: ("default", "patient") not in found)


def _doctor(pod: Any) -> Any:
    return pod["status"].get("ephemeralContainerStatuses", [{"state": {}}])[0]


async def test_debugger_that_runs_ends_with_its_pod(sandbox: Sandbox) -> None:
    await create(sandbox, "brief", "read line", stdin=True)
    await kubectl(sandbox, "debug", "brief", "--image=x", "--container=doctor", "--", "sleep", "3600")
    found = sandbox.informers.objects(PODS)
    await until(lambda: "running" in _doctor(found["default", "brief"])["state"])

    await kubectl(sandbox, "attach", "-i", "brief", "-c", "main", stdin=b"go\n")

    await until(lambda: phase(sandbox, "brief") == "Succeeded")
    assert _doctor(found["default", "brief"])["state"]["terminated"]["exitCode"] != 0


async def test_raw_requests_reach_pods_and_services(sandbox: Sandbox) -> None:
    await create(sandbox, "shop", "", command=["python3", "-c", SERVER])
    port = await served_port(sandbox, "shop")
    await kubectl(sandbox, "label", "pod", "shop", "app=shop")
    await kubectl(sandbox, "create", "service", "clusterip", "shop", f"--tcp=80:{port}")
    slices = sandbox.informers.objects(ENDPOINT_SLICES)
    await until(lambda: any(item.get("endpoints") for (_, name), item in slices.items() if name.startswith("shop")))

    for place in (f"pods/shop:{port}", f"pods/http:shop:{port}", "services/shop:80"):
        done = await kubectl(sandbox, "get", "--raw", f"/api/v1/namespaces/default/{place}/proxy/menu")
        assert (done.code, done.out) == (0, "baked\n" * 20000)


async def test_port_forward_has_a_channel_for_each_port(sandbox: Sandbox) -> None:
    await create(sandbox, "web-2", "", command=["python3", "-c", SERVER])
    port = await served_port(sandbox, "web-2")
    async with websocket(sandbox, f"web-2/portforward?ports=1&ports={port}", "v4.channel.k8s.io") as socket:
        await socket.send_bytes(b"\x02GET / HTTP/1.0\r\n\r\n")
        received: dict[int, bytes] = {}
        async for message in socket:
            received[message.data[0]] = received.get(message.data[0], b"") + message.data[1:]

    assert received[0] == b"\x01\x00"
    assert received[1].startswith(b"\x01\x00error forwarding port 1 to pod")
    assert received[2].startswith(port.to_bytes(2, "little") + b"HTTP/1.0 200 OK\r\n")
    assert received[2].endswith(b"baked\n" * 20000)
    assert received[3] == port.to_bytes(2, "little")
