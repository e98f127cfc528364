"""Nodes with their own mounts and network: what programs and containers see there, as root and as an ordinary user."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from dra_kit.client.resources import PODS, RESOURCE_SLICES
from dra_kit.errors import ConfigurationError, KubeletError, SandboxError
from dra_kit.kubelet.cdi.resolution import load_specs
from dra_kit.kubelet.cdi.spec import DeviceNode, Mount, SpecEdits
from dra_kit.kubelet.nri import Plugin
from dra_kit.kubelet.nri import messages as pb
from dra_kit.kubernetes.resource.objects import PodReference
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.containers import node_namespace
from dra_kit.sandbox.containers.images import LocalImage
from dra_kit.sandbox.containers.node_namespace import (
    NodeNamespace,
    NodePlaces,
    Streams,
    namespaces_impossible,
    namespaces_refused,
    parse_node_files,
)
from dra_kit.sandbox.containers.process_runtime import ProcessRuntime
from dra_kit.sandbox.containers.runtime import ContainerConfig, ContainerStatus, SandboxConfig, VolumeMount
from dra_kit.sandbox.drivers import command_processes
from dra_kit.sandbox.drivers.command_processes import read_logs
from dra_kit.sandbox.drivers.commands import parse_commands
from tests.support import foreign_driver
from tests.unit.kubelet.nri.recorder import Recorder, running
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.upstream.__main__ import has_link

REFUSAL = asyncio.run(namespaces_refused())
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(REFUSAL is not None, reason=f"NOT TESTED: {REFUSAL}"),
]
POD = PodReference("kitchen", "guest", "uid-1")


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="n") as directory:
        yield Path(directory)


@asynccontextmanager
async def runtime_in(
    directory: Path, files: Mapping[str, Path] | None = None, ports: Sequence[int] = (), **options: Any
) -> AsyncIterator[ProcessRuntime]:
    place = directory / "1"
    (place / "cdi").mkdir(parents=True)
    namespace = NodeNamespace(NodePlaces(place, place / "cdi"), files or {}, ports, name="node-7")
    given: dict[str, Any] = {"nri_timeout": 60, **options}
    async with ProcessRuntime(directory=place / "containers", namespace=namespace, **given) as made:
        yield made


async def run(runtime: ProcessRuntime, script: str, **config: Any) -> tuple[ContainerStatus, str]:
    """Runs a container to its end; its status and its output."""
    await runtime.run(ContainerConfig(POD, "c", 0, "x", ("sh", "-c", script), **config))
    await until(lambda: not runtime.containers(POD.uid)[-1].running)
    status = runtime.containers(POD.uid)[-1]
    found = runtime.find(status.id)
    assert found is not None
    runtime.remove(POD.uid)
    return status, found.log.text


async def output(runtime: ProcessRuntime, script: str, **config: Any) -> str:
    return (await run(runtime, script, **config))[1]


def in_namespace(runtime: ProcessRuntime, *command: str) -> str:
    """What a program of the node prints."""
    assert runtime.namespace is not None
    argv = runtime.namespace.enter(command)
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


# --- files


async def test_directories_of_the_node_are_where_programs_expect_them(short: Path) -> None:
    async with runtime_in(short) as runtime:
        in_namespace(
            runtime, "sh", "-c",
            "echo plugin > /var/lib/kubelet/a; echo spec > /var/run/cdi/b; ls -A /etc/cdi; echo old > /etc/cdi/c"
        )  # fmt: skip

        assert (short / "1/a").read_text() == "plugin\n"
        assert (short / "1/cdi/b").read_text() == "spec\n"
        assert (short / "1/etc-cdi/c").read_text() == "old\n"
        assert await output(runtime, "cat /var/lib/kubelet/a /run/cdi/b") == "plugin\nspec\n"
        assert in_namespace(runtime, "ls", "/var/run/nri") == "nri.sock\n"
    assert not Path("/var/lib/kubelet/a").exists()


async def test_programs_of_a_node_have_its_host_name_and_containers_their_own(short: Path) -> None:
    async with runtime_in(short) as runtime:
        assert in_namespace(runtime, "uname", "-n") == "node-7\n"
        assert await output(runtime, "uname -n", hostname="guest") == "guest\n"
        assert await output(runtime, "uname -n", hostname="guest", privileged=True) == "guest\n"
        assert in_namespace(runtime, "uname", "-n") == "node-7\n"


async def test_program_of_a_node_is_root_in_the_folder_of_its_caller(short: Path) -> None:
    async with runtime_in(short) as runtime:
        assert in_namespace(runtime, "sh", "-c", "id -u; pwd") == f"0\n{Path.cwd()}\n"


async def test_paths_of_the_node_lead_to_its_files(short: Path) -> None:
    async with runtime_in(short) as runtime:
        namespace = runtime.namespace
        assert namespace is not None
        place = short / "1"
        assert namespace.outside("/var/lib/kubelet/plugins/x/dra.sock") == place / "plugins/x/dra.sock"
        assert namespace.outside("/var/run/cdi/x.json") == namespace.outside("/run/cdi/x.json") == place / "cdi/x.json"
        assert namespace.outside(place / "plugins/x.sock") == place / "plugins/x.sock"
        assert namespace.outside("/etc/passwd").read_text() == Path("/etc/passwd").read_text()
        (place / "plugins").mkdir()
        (place / "plugins" / ("d" * 70)).mkdir()
        (place / "plugins" / ("d" * 70) / "s").write_text("near")
        # as long as a socket's address can be, inside
        long = f"/var/lib/kubelet/plugins/{'d' * 70}/s"
        assert len(str(namespace.outside(long))) <= 107
        assert namespace.outside(long).read_text() == "near"


async def test_fake_files_replace_those_of_the_machine(short: Path, tmp_path: Path) -> None:
    for file in ("sys/class/oven/oven0/vendor", "dev/oven/0", "proc/devices"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"{file}\n")
    files = {f"/{name}": tmp_path / name for name in ("sys", "dev", "proc")}
    async with runtime_in(short, files) as runtime:
        found = in_namespace(runtime, "sh", "-c", "ls /sys; cat /dev/oven/0 /proc/devices; echo x > /dev/null; id -u")
        assert found == "class\ndev/oven/0\nproc/devices\n0\n"
        in_namespace(runtime, "sh", "-c", "echo hot > /sys/class/oven/oven0/vendor; mkdir /dev/new")
        assert in_namespace(runtime, "cat", "/sys/class/oven/oven0/vendor") == "hot\n"
    # the node has copies
    assert (tmp_path / "sys/class/oven/oven0/vendor").read_text() == "sys/class/oven/oven0/vendor\n"
    assert not (tmp_path / "dev/new").exists()


async def test_empty_files_of_a_fake_dev_are_devices(short: Path, tmp_path: Path) -> None:
    for place in ("dev/ovens", "racks"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "0").touch()
    (tmp_path / "dev/menu").write_text("pizza")
    (tmp_path / "dev/ovens/first").symlink_to("0")
    show = "cd /dev && stat -c '%n %F %t:%T' menu ovens/0 racks/0 null && stat -L -c %F ovens/first && echo x > ovens/0"
    kind = "character special file"
    expected = f"menu regular file 0:0\novens/0 {kind} 1:3\nracks/0 {kind} 1:3\nnull {kind} 1:3\n{kind}\n"
    async with runtime_in(short, {"/dev": tmp_path / "dev", "/dev/racks": tmp_path / "racks"}) as runtime:
        assert in_namespace(runtime, "sh", "-c", show) == expected
        edits = SpecEdits(device_nodes=(DeviceNode(path="/dev/ovens/a", host_path="/dev/racks/0"),))
        assert await output(runtime, "stat -c '%F' /dev/ovens/a", edits=edits) == f"{kind}\n"


@pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: only root can make device files")
async def test_device_files_of_any_folder_are_devices(short: Path, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev/oven0", stat.S_IFCHR | 0o600, os.makedev(240, 7))
    (tmp_path / "dev/empty").touch()
    async with runtime_in(short, {"/driver-of-test": tmp_path}) as runtime:
        found = in_namespace(runtime, "sh", "-c", "cd /driver-of-test/dev && stat -c '%n %F %t:%T' *")
        assert found == "empty regular empty file 0:0\noven0 character special file 1:3\n"


async def test_only_privileged_containers_see_all_devices(short: Path, tmp_path: Path) -> None:
    (tmp_path / "oven0").touch()
    async with runtime_in(short, {"/dev": tmp_path}) as runtime:
        assert "oven0" not in await output(runtime, "ls /dev; echo x > /dev/null")
        assert "oven0" in await output(runtime, "ls /dev", privileged=True)


async def test_volume_is_mounted_where_no_folder_is(short: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    volumes = (
        VolumeMount("/srv-of-test/data", str(tmp_path)),
        VolumeMount("/srv-of-test/fixed", str(tmp_path), read_only=True),
        VolumeMount("/srv-of-test/one", str(tmp_path / "file")),
    )
    script = "cd /srv-of-test && echo new > data/file && cat fixed/file one && echo x > fixed/file"
    async with runtime_in(short) as runtime:
        status, text = await run(runtime, script, mounts=volumes)
    assert text.startswith("new\nnew\n")
    assert "Read-only" in text
    assert status.exit is not None
    assert status.exit.code != 0
    assert not Path("/srv-of-test").exists()


async def test_what_is_mounted_in_a_shared_volume_is_seen_on_the_node(short: Path) -> None:
    async with runtime_in(short) as runtime:
        (short / "1/plugins").mkdir()
        (short / "1/plugins/mps").mkdir()
        volume = VolumeMount("/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins", shared=True)
        script = "mount -t tmpfs none /var/lib/kubelet/plugins/mps && touch /var/lib/kubelet/plugins/mps/pipe"
        status, text = await run(runtime, script, mounts=(volume,), privileged=True)
        assert status.exit is not None
        assert (status.exit.code, text) == (0, "")
        assert in_namespace(runtime, "ls", "/var/lib/kubelet/plugins/mps") == "pipe\n"
        assert list((short / "1/plugins/mps").iterdir()) == []  # not on this machine


# --- what CDI asks for


async def test_cdi_mounts_and_device_files_are_made(short: Path, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/oven0").write_text("oven")
    (tmp_path / "menu").write_text("funghi\n")
    edits = SpecEdits(
        mounts=(
            Mount(host_path=str(tmp_path / "menu"), container_path="/etc/menu-of-test", options=("ro", "bind")),
            Mount(host_path="tmpfs", container_path="/mnt/cache", type="tmpfs", options=("size=64k", "mode=700")),
        ),
        device_nodes=(
            DeviceNode(path="/dev/ovens/a", host_path="/dev/oven0"),
            DeviceNode(path="/dev/ovens/b", type="c", major=240, minor=7),
        ),
    )
    script = (
        "cat /etc/menu-of-test /dev/ovens/a; echo; stat -c %a /mnt/cache; stat -c %F,%t,%T /dev/ovens/b; ls /dev/ovens"
    )
    async with runtime_in(short, {"/dev": tmp_path / "dev"}) as runtime:
        status, text = await run(runtime, script, edits=edits)

    device = "character special file,f0,7" if os.getuid() == 0 else "regular empty file,0,0"
    assert text == f"funghi\noven\n700\n{device}\na\nb\n"
    assert status.edits_applied
    assert status.stand_ins == (() if os.getuid() == 0 else ("/dev/ovens/b",))


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (SpecEdits(mounts=(Mount(host_path="/no/menu", container_path="/menu"),)),
         "flags=MS_BIND|MS_REC: no such file or directory"),
        (SpecEdits(device_nodes=(DeviceNode(path="/dev/no-oven"),)),
         'failed to stat CDI host device "/dev/no-oven": no such file or directory'),
    ],
)  # fmt: skip
async def test_container_does_not_start_without_a_file_of_its_claim(
    short: Path, edits: SpecEdits, message: str
) -> None:
    async with runtime_in(short) as runtime:
        status = await runtime.run(ContainerConfig(POD, "c", 0, "x", ("true",), edits=edits))
        assert status.exit is not None
        assert status.exit.reason == "StartError"
        assert status.exit.message.endswith(message)


# --- network


async def test_nodes_have_their_own_ports(short: Path) -> None:
    server = "import http.server as h; h.HTTPServer(('0.0.0.0', 8080), h.SimpleHTTPRequestHandler).serve_forever()"
    async with runtime_in(short / "a") as one, runtime_in(short / "b") as two:
        for runtime in (one, two):
            await runtime.run(ContainerConfig(POD, "c", 0, "x", (sys.executable, "-c", server)))
            assert runtime.namespace is not None
            connection = await _connected(runtime.namespace, 8080)
            with connection:
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(connection, b"GET / HTTP/1.0\r\n\r\n")
                assert (await loop.sock_recv(connection, 1000)).startswith(b"HTTP/1.0 200")


async def _connected(namespace: NodeNamespace, port: int) -> Any:
    async with asyncio.timeout(60):
        while True:
            try:
                return await namespace.connect(port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)


async def test_ports_of_pods_are_reached_at_the_address_of_their_node(sandbox: Sandbox) -> None:
    server = "import http.server as h; h.HTTPServer(('0.0.0.0', 8080), h.SimpleHTTPRequestHandler).serve_forever()"
    for node in ("node-1", "node-2"):
        container = {"name": "c", "image": "x", "command": [sys.executable, "-c", server],
                     "ports": [{"containerPort": 8080}]}  # fmt: skip
        pod = {"metadata": {"name": node}, "spec": {"nodeName": node, "containers": [container]}}
        await sandbox.client.create(PODS, pod, "default")
    addresses = []
    for node in ("node-1", "node-2"):
        address = await _address(sandbox, node)
        assert await _get(address, 8080) == "HTTP/1.0 200 OK"
        addresses.append(address)
        await sandbox.client.delete(PODS, node, "default", grace_period_seconds=0)
        await _refused(address, 8080)
    assert len(set(addresses)) == 2


class InterfaceMover(Plugin):
    """An NRI plugin that runs on the node, and makes a pair of interfaces in the network of each pod but one."""

    def __init__(self, runtime: ProcessRuntime) -> None:
        self._runtime = runtime

    @override
    async def run_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        if pod.name != "other":
            netns = pod.linux.namespaces[0].path
            pair = ("ip", "link", "add", "net1", "netns", netns, "type", "veth", "peer", "net2", "netns", netns)
            await asyncio.to_thread(in_namespace, self._runtime, *pair)


NO_INTERFACES = "" if has_link("veth") else "NOT TESTED: this machine cannot create veth interfaces"


@pytest.mark.skipif(bool(NO_INTERFACES), reason=NO_INTERFACES)
async def test_pod_with_interfaces_has_its_own_network_and_reaches_the_same_ports_of_the_machine(short: Path) -> None:
    other, nri = PodReference("kitchen", "other", "uid-2"), short / "nri.sock"
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    server = (
        f"import socket; socket.create_connection(('127.0.0.1', {port})); print(socket.if_nameindex(), flush=True)\n"
        "s = socket.create_server(('', 8080)); s.accept(); s.accept()"
    )
    async with (
        listening,
        runtime_in(short, ports=(port,), nri_socket=nri, network_namespaces=True) as runtime,
        running(InterfaceMover(runtime), nri) as plugin,
    ):
        assert runtime.nri is not None
        await plugin.until_connected()
        await until(lambda: runtime.nri.plugins)  # type: ignore[union-attr]
        for pod in (POD, other):
            await runtime.run_sandbox(SandboxConfig(pod))
            await runtime.run(ContainerConfig(pod, "c", 0, "x", (sys.executable, "-c", server)))
        reports = [runtime.reports("kitchen", name)[-1] for name in ("guest", "other")]
        await until(lambda: all("lo" in report.log.text for report in reports))

        assert ["net1" in report.log.text for report in reports] == [True, False]
        assert list(runtime.interfaces("kitchen", "guest")) == ["net2", "net1"]
        for pod in (POD, other):  # both listen at the same port
            (await dialed(runtime, pod, 8080))[1].close()
        netns = Path(runtime.nri_pods()[0].linux.namespaces[0].path)
        assert netns.exists()
        await runtime.stop_sandbox(POD.uid)
        await until(lambda: not netns.exists())


class LateMover(InterfaceMover):
    """One that makes them when the second container of a pod is created."""

    @override
    async def run_pod_sandbox(self, pod: pb.PodSandbox) -> None:
        pass

    @override
    async def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> None:
        if container.name == "second":
            await super().run_pod_sandbox(pod)


@pytest.mark.skipif(bool(NO_INTERFACES), reason=NO_INTERFACES)
async def test_container_that_was_there_before_the_interfaces_of_its_pod_is_still_reached(short: Path) -> None:
    nri = short / "nri.sock"
    server = "import socket; s = socket.create_server(('', {})); [s.accept() for _ in range(9)]"
    async with (
        runtime_in(short, nri_socket=nri, network_namespaces=True) as runtime,
        running(LateMover(runtime), nri),
    ):
        await until(lambda: runtime.nri and runtime.nri.plugins)
        other = PodReference("kitchen", "other", "uid-2")
        ids = []
        for pod, name, port in ((POD, "first", 8080), (other, "c", 8081), (POD, "second", 8082)):
            await runtime.run_sandbox(SandboxConfig(pod))
            config = ContainerConfig(pod, name, 0, "x", (sys.executable, "-c", server.format(port)))
            ids.append((await runtime.run(config)).id)
            (await dialed(runtime, pod, port))[1].close()
        assert list(runtime.interfaces("kitchen", "guest")) == ["net2", "net1"]

        (await runtime.dial(POD.uid, 8080))[1].close()
        runtime.stop(ids[0], 0)
        await until(lambda: not runtime.containers(POD.uid)[0].running)
        with pytest.raises(ConnectionRefusedError):  # no container of this pod is in the network of the node
            await runtime.dial(POD.uid, 8081)
        (await runtime.dial(POD.uid, 8082))[1].close()


async def dialed(runtime: ProcessRuntime, pod: PodReference, port: int) -> Streams:
    async with asyncio.timeout(60):
        while True:
            try:
                return await runtime.dial(pod.uid, port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)


@pytest.mark.skipif(bool(NO_INTERFACES), reason=NO_INTERFACES)
async def test_pod_whose_network_is_lost_gets_another_sandbox(short: Path) -> None:
    nri = short / "nri.sock"
    async with (
        runtime_in(short, nri_socket=nri, network_namespaces=True) as runtime,
        running(InterfaceMover(runtime), nri) as plugin,
    ):
        await plugin.until_connected()
        await until(lambda: runtime.nri and runtime.nri.plugins)
        await runtime.run_sandbox(SandboxConfig(POD))
        await _lose_network(runtime)

        await runtime.processes.enter()
        await runtime.run_sandbox(SandboxConfig(POD))
        await runtime.run(ContainerConfig(POD, "c", 0, "x", ("cat", "/proc/net/dev")))
        await until(lambda: "net1:" in runtime.reports("kitchen", "guest")[-1].log.text)
        assert len(runtime.nri_pods()) == 1


async def _lose_network(runtime: ProcessRuntime) -> None:
    assert runtime.processes.process is not None
    os.kill(runtime.processes.process, signal.SIGKILL)
    await until(lambda: not runtime.has_sandbox(POD.uid))


async def test_plugins_undo_a_sandbox_whose_network_is_lost_once(short: Path) -> None:
    nri, plugin = short / "nri.sock", Recorder()
    async with (
        runtime_in(short, nri_socket=nri, network_namespaces=True) as runtime,
        running(plugin, nri),
    ):
        await until(lambda: runtime.nri and runtime.nri.plugins)
        await runtime.run_sandbox(SandboxConfig(POD))
        await _lose_network(runtime)
        plugin.error = RuntimeError("no plate")
        with pytest.raises(KubeletError, match="no plate"):
            await runtime.run_sandbox(SandboxConfig(POD))
        plugin.error = None
        await runtime.run_sandbox(SandboxConfig(POD))
    ids = list(dict.fromkeys(id_ for _, id_ in plugin.calls))
    ended = ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]
    assert [[hook for hook, id_ in plugin.calls if id_ == wanted] for wanted in ids] == [ended, ended, ended[:1]]


async def test_network_that_the_kernel_refuses_is_an_error_of_the_pod(short: Path) -> None:
    nri = short / "nri.sock"
    async with (
        runtime_in(short, nri_socket=nri, network_namespaces=True) as runtime,
        running(InterfaceMover(runtime), nri),
    ):
        await until(lambda: runtime.nri and runtime.nri.plugins)
        assert runtime.processes.process is not None
        resource.prlimit(runtime.processes.process, resource.RLIMIT_NOFILE, (3, 3))
        with pytest.raises(KubeletError) as failed:
            await runtime.run_sandbox(SandboxConfig(POD))
    assert str(failed.value) == (
        "failed to setup network for sandbox: failed to create network namespace: too many open files"
    )


async def test_pods_without_hooks_share_the_network_of_their_node(short: Path) -> None:
    async with runtime_in(short, nri_socket=short / "nri.sock", network_namespaces=True) as runtime:
        await runtime.run_sandbox(SandboxConfig(POD))

        link = "/proc/self/ns/net"
        assert await output(runtime, f"readlink {link}") == in_namespace(runtime, "readlink", link)


HEALTH = """
import grpc, sys
from concurrent.futures import ThreadPoolExecutor
method = grpc.unary_unary_rpc_method_handler(lambda request, context: b"\\x08\\x01")
server = grpc.server(ThreadPoolExecutor())
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": method}),))
assert server.add_insecure_port("0.0.0.0:8081")
server.start()
server.wait_for_termination()
"""


@pytest.mark.parametrize(
    ("program", "probe"),
    [
        (HEALTH, {"grpc": {"port": 8081}}),
        (HEALTH, {"tcpSocket": {"port": 8081}}),
        (
            "import http.server as h; h.HTTPServer(('', 8081), h.SimpleHTTPRequestHandler).serve_forever()",
            {"httpGet": {"port": 8081}},
        ),
    ],
)
async def test_probes_reach_ports_that_are_not_declared(sandbox: Sandbox, program: str, probe: Any) -> None:
    container = {"name": "c", "image": "x", "command": [sys.executable, "-c", program],
                 "readinessProbe": {**probe, "periodSeconds": 1, "timeoutSeconds": 10}}  # fmt: skip
    await sandbox.client.create(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [container]}}, "default")
    api = sandbox.control_plane.server.api

    def is_ready() -> bool:
        status = (api.lookup("pods", "default/p") or {})["status"]
        return any((item["type"], item["status"]) == ("Ready", "True") for item in status.get("conditions", ()))

    await until(is_ready)


async def _address(sandbox: Sandbox, pod: str) -> str:
    api = sandbox.control_plane.server.api
    await until(lambda: (api.lookup("pods", f"default/{pod}") or {})["status"].get("podIP"))
    return str((api.lookup("pods", f"default/{pod}") or {})["status"]["podIP"])


async def _get(address: str, port: int) -> str:
    async with asyncio.timeout(60):
        while True:
            try:
                reader, writer = await asyncio.open_connection(address, port)
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                line = (await reader.read()).partition(b"\r\n")[0]
                writer.close()
                if line:
                    return line.decode()
            except OSError:
                pass
            await asyncio.sleep(0.02)


async def _refused(address: str, port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection(address, port)
                writer.close()
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                pass  # while it was closed
            await asyncio.sleep(0.02)


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox([], SandboxSettings(nodes=2, node_namespaces=True)) as made:
        yield made


async def pod_output(sandbox: Sandbox, script: str, **spec: Any) -> str:
    container = {"name": "c", "image": "x", "command": ["sh", "-c", script]} | spec.pop("container", {})
    spec = {"restartPolicy": "Never", "containers": [container], **spec}
    await sandbox.client.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, "default")
    api = sandbox.control_plane.server.api
    await until(lambda: (api.lookup("pods", "default/p") or {})["status"]["phase"] in {"Succeeded", "Failed"})
    return await sandbox.output("default", "p", "c")


async def test_pods_reach_the_api_server(sandbox: Sandbox) -> None:
    program = (
        "import os, ssl, urllib.request; e = os.environ; "
        "url = f\"https://{e['KUBERNETES_SERVICE_HOST']}:{e['KUBERNETES_SERVICE_PORT']}/livez\"; "
        "ca = '/var/run/secrets/kubernetes.io/serviceaccount/ca.crt'; "
        "print(urllib.request.urlopen(url, context=ssl.create_default_context(cafile=ca)).read())"
    )
    assert await pod_output(sandbox, f'{sys.executable} -I -c "$PROGRAM"', container={
        "env": [{"name": "PROGRAM", "value": program}],
    }) == "b'ok'\n"  # fmt: skip


@pytest.mark.parametrize(("network", "name"), [(False, "p"), (True, "node-2")])
async def test_pod_in_the_network_of_its_node_has_the_host_name_of_the_node(
    sandbox: Sandbox, network: bool, name: str
) -> None:
    script = "echo $(uname -n) $HOSTNAME"
    assert await pod_output(sandbox, script, nodeName="node-2", hostNetwork=network) == f"{name} {name}\n"


async def test_api_server_that_stops_listening_is_away_for_programs_of_nodes(sandbox: Sandbox) -> None:
    namespace, server = sandbox.nodes[0].runtime.namespace, sandbox.control_plane.server
    assert namespace is not None
    await server.stop_listening()
    with await namespace.connect(server.port) as connection:
        assert await _closed(connection)
    await server.listen()
    program = f"import ssl, socket; c = ssl._create_unverified_context(); c.wrap_socket(socket.create_connection(('127.0.0.1', {server.port})))"  # noqa: E501
    process = await asyncio.create_subprocess_exec(*namespace.enter([sys.executable, "-c", program]))
    assert await process.wait() == 0


async def _closed(connection: socket.socket) -> bool:
    try:
        return await asyncio.get_running_loop().sock_recv(connection, 1) == b""
    except ConnectionResetError:
        return True


async def test_cdi_files_of_both_folders_are_used(sandbox: Sandbox) -> None:
    """A driver writes what does not change into /etc/cdi."""
    node = sandbox.nodes[0]
    for folder, device, color in (("/etc/cdi", "static", "red"), ("/var/run/cdi", "dynamic", "blue")):
        spec = {
            "cdiVersion": "0.6.0", "kind": f"kitchen.example/{device}",
            "devices": [{"name": "oven", "containerEdits": {"env": [f"{device.upper()}={color}"]}}],
        }  # fmt: skip
        write = f"import sys; open('{folder}/{device}.json', 'w').write(sys.argv[1])"
        in_namespace(node.runtime, sys.executable, "-I", "-c", write, json.dumps(spec))
    found = load_specs(node.kubelet.cdi_directories)
    edits = found.resolve(["kitchen.example/static=oven", "kitchen.example/dynamic=oven"])
    assert sorted(edits.env) == ["DYNAMIC=blue", "STATIC=red"]


async def test_host_path_that_has_to_be_created_is_not_created_on_this_machine(sandbox: Sandbox) -> None:
    volume = {"name": "v", "hostPath": {"path": "/opt/of-test/drivers", "type": "DirectoryOrCreate"}}
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/drivers"}]}

    found = await pod_output(sandbox, "touch /drivers/a; ls /opt/of-test/drivers", container=mounts, volumes=[volume])

    assert found == "a\n"
    assert not Path("/opt/of-test").exists()


# --- programs of others

ROOT = Path(__file__).resolve().parents[5]
BUILT_IN = (
    "KUBELET_PLUGINS_DIRECTORY_PATH=/var/lib/kubelet/plugins",
    "KUBELET_REGISTRAR_DIRECTORY_PATH=/var/lib/kubelet/plugins_registry",
    "CDI_ROOT=/var/run/cdi",
)


async def test_driver_with_built_in_paths_serves_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    text = shlex.join(["env", *BUILT_IN, sys.executable, foreign_driver.__file__])
    commands = tuple(parse_commands("plugin", [text], directory=Path.cwd()))
    async with Sandbox([], SandboxSettings(nodes=2, commands=commands)) as made:
        assert made.namespaces.startswith("each node has its own mounts and network")
        await until(lambda: len(made.informers.objects(RESOURCE_SLICES)) == 2)
        for node in made.nodes:
            plugin = await node.kubelet.plugins.wait_for_plugin(foreign_driver.DRIVER, timeout=60)
            assert plugin.endpoint == str(node.directory / "plugins" / foreign_driver.DRIVER / "dra.sock")


async def test_programs_share_the_machine_if_namespaces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "READY_SECONDS", 0.0)
    commands = tuple(parse_commands("plugin", ["sleep 3600"], directory=Path.cwd()))
    async with Sandbox([], SandboxSettings(commands=commands, node_namespaces=False)) as made:
        assert made.namespaces.startswith("nodes share the files and ports of this machine")
        assert made.nodes[0].runtime.namespace is None


@pytest.mark.parametrize("namespaces", [True, False])
async def test_programs_get_the_path_of_sysfs(
    namespaces: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_processes, "READY_SECONDS", 0.0)
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1/model").write_text("pizza")
    text = f"{sys.executable} -u -c 'import sys, time; print(sys.argv[1], open(sys.argv[2]).read()); time.sleep(1000)'"
    commands = tuple(parse_commands("plugin", [f"{text} {{sysfs}} {{sysfs}}/model"], directory=Path.cwd()))
    files = (f"/sys={tmp_path}/{{node}}",)
    async with Sandbox([], SandboxSettings(commands=commands, node_files=files, node_namespaces=namespaces)) as made:

        def printed() -> list[str]:
            return [line.text for lines in read_logs(made.directory).values() for line in lines]

        await until(printed)
        assert printed() == [f"{'/sys' if namespaces else tmp_path / 'node-1'} pizza"]
        assert ("{sysfs} is the folder of --node-files" in made.namespaces) is not namespaces


def test_only_sysfs_can_be_given_without_namespaces(tmp_path: Path) -> None:
    parse_node_files([f"/sys={tmp_path}"]).check_without_namespaces()
    with pytest.raises(ConfigurationError, match="without node namespaces, programs see the files of this machine at"):
        parse_node_files([f"/sys={tmp_path}", f"node-1:/dev={tmp_path}"]).check_without_namespaces()


async def test_files_of_an_image_are_at_their_paths(short: Path, tmp_path: Path) -> None:
    for name in ("usr/bin/oven-of-test", "templates-of-test/menu"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(
            "#!/bin/sh\ncat /templates-of-test/menu; ls /usr/bin/oven-of-test; cat /bin/link-of-test\n"
        )
        (tmp_path / name).chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/link-of-test").symlink_to("/templates-of-test/menu")
    (tmp_path / "templates-of-test/menu").write_text("funghi\n")
    async with runtime_in(short) as runtime:
        image = LocalImage("oven", tmp_path)
        await runtime.run(ContainerConfig(POD, "c", 0, "x", ("oven-of-test",), local_image=image))
        await until(lambda: not runtime.containers(POD.uid)[-1].running)
        found = runtime.find(runtime.containers(POD.uid)[-1].id)
        assert found is not None
        assert found.log.text == "funghi\n/usr/bin/oven-of-test\nfunghi\n"
    assert not Path("/usr/bin/oven-of-test").exists()


# --- life


async def test_killed_holder_is_replaced(short: Path) -> None:
    async with runtime_in(short) as runtime:
        namespace = runtime.namespace
        assert namespace is not None
        await runtime.run(ContainerConfig(POD, "c", 0, "x", ("sleep", "3600")))
        holder = int(namespace.enter(["x"])[-2])
        os.kill(holder, signal.SIGKILL)
        await until(lambda: not runtime.containers(POD.uid)[-1].running)
        runtime.remove(POD.uid)
        with pytest.raises(SandboxError, match="process that held them was killed"):
            namespace.enter(["x"])
        assert await output(runtime, "ls /var/run/nri") == "nri.sock\n"
        assert int(namespace.enter(["x"])[-2]) != holder


def test_nothing_is_left_of_a_sandbox_that_was_killed() -> None:
    program = textwrap.dedent("""
        import asyncio
        from dra_kit.kubernetes.resource.objects import PodReference
        from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
        from dra_kit.sandbox.containers.runtime import ContainerConfig
        async def main():
            async with Sandbox([], SandboxSettings(node_namespaces=True)) as sandbox:
                runtime = sandbox.nodes[0].runtime
                command = ("sh", "-c", "echo $$; sleep 3600")
                status = await runtime.run(ContainerConfig(PodReference("a", "b", "c"), "d", 0, "e", command))
                while not (text := runtime.find(status.id).log.text):
                    await asyncio.sleep(0.01)
                print(runtime.namespace.enter(["x"])[-2], text, flush=True)
                await asyncio.Event().wait()
        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # the namespaces end with these: the process that holds them, and a container
        held = process.stdout.readline().split()
        process.kill()
    assert len(held) == 2
    _wait_for(lambda: not any(Path(f"/proc/{number}").exists() for number in held))


def _wait_for(condition: Any) -> None:
    async def wait() -> None:
        await until(condition)

    asyncio.run(wait())


# --- the choice


async def test_namespaces_that_are_forbidden_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_namespace, "probe_arguments", lambda: ["sh", "-c", "echo no space left; exit 1"])
    with pytest.raises(SandboxError, match="nodes cannot have namespaces of their own here: no space left; run the"):
        async with Sandbox([], SandboxSettings(node_namespaces=True)):
            pass


async def test_nodes_share_the_machine_by_default() -> None:
    async with Sandbox([]) as made:
        assert made.namespaces == ""
        assert made.nodes[0].runtime.namespace is None


@pytest.mark.parametrize("text", ["/sys", "sys=x", "/sys=", ":/sys=x", "/=x", "node-1:sys=x"])
def test_invalid_node_files_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not of the form \[NODE:\]PATH=DIR"):
        parse_node_files([text])


def test_files_of_a_node_replace_those_of_every_node(tmp_path: Path) -> None:
    for name in ("all", "node-2"):
        (tmp_path / name).mkdir()
    found = parse_node_files([f"/sys/={tmp_path}/all", f"node-2:/sys={tmp_path}/{{node}}"])
    assert found.of("node-1") == {"/sys": tmp_path / "all"}
    assert found.of("node-2") == {"/sys": tmp_path / "node-2"}
    found.check(["node-1", "node-2"])
    with pytest.raises(ConfigurationError, match="unknown node 'node-2'"):
        found.check(["node-1"])


def test_folder_of_node_files_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a directory; name a directory with the files"):
        parse_node_files([f"/sys={tmp_path}/x"]).check(["node-1"])


def test_error_names_the_remedies() -> None:
    assert "--no-node-namespaces" in str(namespaces_impossible("operation not permitted"))
