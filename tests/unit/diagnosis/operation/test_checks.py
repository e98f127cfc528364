"""Results of ``dra-kit check`` for a cluster and a node, each with a remedy."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import dra_kit as dra
from dra_kit.cli.app import cli
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import RESOURCE_SLICES
from dra_kit.diagnosis.check import (
    Account,
    CheckOptions,
    DriverAccount,
    RoleProcess,
    check_rights,
    required_rights,
    role_process,
    run_checks,
)
from dra_kit.diagnosis.cluster_checks import (
    CheckResult,
    check_gates,
    check_server,
    driver_findings,
    kubelet_configuration_findings,
)
from dra_kit.diagnosis.cluster_checks import kubelet_version_findings as kubelet_versions
from dra_kit.diagnosis.node_checks import containerd_findings, kubelet_root_findings, node_findings, runtime_findings
from dra_kit.kubernetes.release import Release
from tests.support.api import Api
from tests.unit.diagnosis.operation.parts import api_server, whole
from tests.unit.node.drivers import Oven, Waiter, driver


class Server(BaseHTTPRequestHandler):
    """An API server that says what a test wants: a release, served versions, and what may be done."""

    version: dict[str, str] = {"major": "1", "minor": "37"}
    served: Sequence[str] = ("v1",)
    allowed: Sequence[tuple[str, str]] = ()

    def do_GET(self) -> None:
        if self.path == "/version":
            self.answer(self.version)
        else:
            self.answer({"versions": [{"version": item} for item in self.served]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["kind"] == "SelfSubjectReview":
            self.answer(body | {"status": {"userInfo": {"username": "system:serviceaccount:a:b"}}})
            return
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        self.answer(body | {"status": {"allowed": (asked["verb"], resource) in self.allowed}})

    def answer(self, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def server(kind: type[Server] = Server, **says: Any) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Saying", (kind,), says)) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


async def client_of(address: str, tmp_path: Path) -> Client:
    return Client(await load_credentials(kubeconfig(address, tmp_path)), user_agent="test")


@asynccontextmanager
async def asking(tmp_path: Path, **says: Any) -> AsyncIterator[Client]:
    with server(**says) as address:
        async with await client_of(address, tmp_path) as client:
            yield client


def kubeconfig(address: str, tmp_path: Path) -> Path:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize(
    ("version", "served", "line"),
    [
        ("37", ("v1",), "ok   API server: Kubernetes 1.37, resource.k8s.io/v1"),
        (
            "40",
            ("v1",),
            "warn API server: Kubernetes 1.40 is newer than the newest release that dra-kit supports",
        ),
        (
            "33",
            ("v1beta1",),
            "FAIL API server: the API server (Kubernetes 1.33) serves resource.k8s.io only as v1beta1",
        ),
    ],
)
async def test_the_release_of_the_api_server(tmp_path: Path, version: str, served: Any, line: str) -> None:
    async with asking(tmp_path, version={"major": "1", "minor": version}, served=served) as client:
        finding = await check_server(client)
    assert str(finding).startswith(line)
    assert finding.verdict == "ok" or finding.remedy


async def test_an_api_server_that_does_not_answer(tmp_path: Path) -> None:
    async with await client_of("http://127.0.0.1:1", tmp_path) as client:
        finding = await check_server(client)
    assert finding.verdict == "FAIL"
    assert "no connection to http://127.0.0.1:1" in finding.text


async def test_each_right_that_is_missing_is_reported_with_what_needs_it(tmp_path: Path) -> None:
    allowed = [(right.verb, right.resource) for right in required_rights("node", DriverAccount())]
    allowed = [item for item in allowed if item[1] != "resourceclaims/status"]
    async with asking(tmp_path, allowed=allowed) as client:
        missing = await check_rights(client, "node", DriverAccount())
        several = await check_rights(client, "controller", DriverAccount(name="dra.pizza", namespace="pizza"))
    assert [str(item) for item in missing] == [
        f"FAIL rights: system:serviceaccount:a:b may not {verb} resourceclaims/status.resource.k8s.io, which the "
        "status of devices needs; install the chart's roles, or that rule"
        for verb in ("patch", "update")
    ]
    assert [(item.verdict, item.text.split(" may not ")[1].split(", which")[0]) for item in several] == [
        ("FAIL", "list resourceclaims.resource.k8s.io"),
        ("FAIL", "watch resourceclaims.resource.k8s.io"),
        ("FAIL", "list nodes"),
        ("FAIL", "get leases.coordination.k8s.io dra.pizza-controller in pizza"),
        ("FAIL", "update leases.coordination.k8s.io dra.pizza-controller in pizza"),
    ]


async def test_each_part_of_the_driver_needs_its_own_rights(tmp_path: Path) -> None:
    basic = {account: required_rights(account, DriverAccount(name="dra.pizza")) for account in ("node", "controller")}
    allowed = [(right.verb, right.resource) for rights in basic.values() for right in rights]
    allowed = [
        item for item in allowed if item[1] in {"nodes", "resourceclaims/driver"} or item[0] in {"list", "watch"}
    ]
    driven = DriverAccount(name="dra.pizza", code=whole("dra.pizza"))
    async with asking(tmp_path, allowed=allowed) as client:
        lines = [str(item) for item in await check_rights(client, "controller", driven)]
        of_node = [str(item) for item in await check_rights(client, "node", driven)]
    remedy = "install the chart with the values from dra-kit chart TARGET --values FILE"
    reported = [line.split(" may not ")[1] for line in lines if remedy in line]
    assert reported == [
        *(f"{verb} resourceslices.resource.k8s.io, which cluster provider Warehouse needs; {remedy}"
          for verb in ("create", "update")),
        f"get resourceclaims.resource.k8s.io, which binder Courier needs; {remedy}",
        *(f"{verb} resourceclaims/status.resource.k8s.io, which binder Courier needs; {remedy}"
          for verb in ("patch", "update")),
        *(f"arbitrary-node:{verb} resourceclaims/driver.resource.k8s.io dra.pizza, which binder Courier needs; {remedy}"
          for verb in ("patch", "update")),
        *(f"{verb} devicetaintrules.resource.k8s.io, which taint rules Recall needs; {remedy}"
          for verb in ("list", "watch", "create", "update", "delete")),
    ]  # fmt: skip
    assert [line.split(" may not ")[1] for line in of_node if remedy in line] == [
        f"{right}; {remedy}"
        for right in (
            "list nodemenus.kitchen.example, which policy Menu needs",
            "watch nodemenus.kitchen.example, which policy Menu needs",
            "get bells.kitchen.example in kitchen, which effect Bell needs",
            "list bells.kitchen.example in kitchen, which effect Bell needs",
        )
    ]


async def test_decommission_needs_no_right_to_publish(tmp_path: Path) -> None:
    driven = DriverAccount(name="dra.pizza", code=whole("dra.pizza"))
    rights = dict.fromkeys(map(str, required_rights("decommission", driven)))
    assert [right for right in rights if "resourceslices" in right] == [
        "list resourceslices.resource.k8s.io", "delete resourceslices.resource.k8s.io",
    ]  # fmt: skip
    assert "get bells.kitchen.example in kitchen" in rights
    assert not any("nodemenus" in right for right in rights), "nothing is advertised"
    assert {*rights} - {*map(str, required_rights("node", driven))} == {"patch pods/status in default"}
    reader = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter(), reads=[dra.Reads("v1", "configmaps")])
    of_reader = {*map(str, required_rights("decommission", DriverAccount(name="dra.pizza", code=reader)))}
    assert of_reader >= {"get configmaps", "list configmaps"}, "unprepare may read"
    allowed = [(right.verb, right.resource) for right in required_rights("decommission", DriverAccount())]
    async with asking(tmp_path, allowed=allowed) as client:
        [finding] = await check_rights(client, "decommission", DriverAccount())
    assert finding.text.startswith("system:serviceaccount:a:b may do all that the decommission needs")


async def test_the_webhook_needs_rights_only_for_a_self_made_certificate(tmp_path: Path) -> None:
    driven = DriverAccount(name="dra.pizza", namespace="pizza", certificate="pizza-webhook-self-made")
    async with asking(tmp_path, allowed=[]) as client:
        [given] = await check_rights(client, "webhook", DriverAccount(name="dra.pizza"))
        own = await check_rights(client, "webhook", driven)
    assert given.verdict == "ok"
    assert [item.text.split(" may not ")[1].split(", which")[0] for item in own] == [
        f"{verb} secrets pizza-webhook-self-made in pizza" for verb in ("get", "update", "create", "patch")
    ]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["/usr/bin/python3", "/bin/dra-kit", "controller", "pizza:driver"], RoleProcess("controller", "pizza:driver")),
        (["dra-kit", "node", "--globs", "x"], RoleProcess("node", "")),
        (["dra-kit", "webhook"], RoleProcess("webhook", "")),
        (["dra-kit", "decommission", "/state", "pizza:driver", "--stay"], RoleProcess("decommission", "pizza:driver")),
        (["dra-kit", "decommission", "/state", "--driver", "dra.pizza"], RoleProcess("decommission", "")),
        (["dra-kit", "check"], None),
        (["/sbin/init"], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_pod_of_a_role_is_known_by_its_first_process(tmp_path: Path, words: list[str], found: Any) -> None:
    assert role_process(tmp_path) is None
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "cmdline").write_text("".join(f"{word}\0" for word in words))
    assert role_process(tmp_path) == found


class RoleServer(Server):
    """An API server that lets a role do what it needs, has one node, and refuses everything else."""

    asked: list[str]
    node = {
        "metadata": {"name": "node-a"},
        "status": {"nodeInfo": {"kubeletVersion": "v1.37.1", "containerRuntimeVersion": "containerd://2.4.2"}},
    }

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(f"GET {path}")
        if path == "/api/v1/nodes":
            self.answer({"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": [self.node]})
        elif path == "/api/v1/nodes/node-a":
            self.answer(self.node)
        elif path in {"/version", "/apis/resource.k8s.io"}:
            super().do_GET()
        else:
            self.send_error(403)

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(f"POST {path}")
        if path.startswith(("/apis/authorization.k8s.io/", "/apis/authentication.k8s.io/")):
            super().do_POST()
        else:
            self.send_error(403)


@pytest.mark.parametrize(
    ("account", "nodes"),
    [
        ("node", "GET /api/v1/nodes/node-a"),
        ("decommission", "GET /api/v1/nodes/node-a"),
        ("controller", "GET /api/v1/nodes"),
        ("webhook", ""),
    ],
)
def test_a_roles_pod_sends_only_requests_that_the_role_is_allowed(tmp_path: Path, account: Account, nodes: str) -> None:
    asked: list[str] = []
    rights = [(right.verb, right.resource) for right in required_rights(account, DriverAccount(name="dra.pizza"))]
    environment = {"DRA_NODE_NAME": "node-a"} if account in {"node", "decommission"} else {}
    with server(RoleServer, asked=asked, allowed=rights) as address:
        config = kubeconfig(address, tmp_path)
        words = ["check", "--account", account, "--driver", "dra.pizza", "--kubeconfig", str(config)]
        answer = CliRunner().invoke(cli, [*words, "--kubelet-dir", str(tmp_path / "none")], env=environment)

    assert answer.exit_code == 0, answer.output
    assert f"may do all that the {account} of dra.pizza needs" in answer.output
    assert all(line.startswith("ok ") for line in answer.output.splitlines()), answer.output
    reviews = "POST /apis/auth"
    work = {each for each in asked if not each.startswith(reviews)} - {"GET /version", "GET /apis/resource.k8s.io"}
    assert work == ({nodes} if nodes else set())


async def test_a_user_without_rights_is_warned(tmp_path: Path) -> None:
    async with asking(tmp_path, allowed=[("list", "resourceslices")]) as client:
        findings = await check_rights(client, "user", DriverAccount())
    assert {item.verdict for item in findings} == {"warn"}
    assert len(findings) == len(required_rights("user", DriverAccount())) - 1


@pytest.mark.parametrize(
    "gate", ["DRADeviceTaints", "DRAConsumableCapacity", "DRAPartitionableDevices", "DRAExtendedResource"]
)
async def test_a_gate_that_is_off_is_found_by_a_dry_run(tmp_path: Path, gate: str) -> None:
    with api_server(tmp_path, Release.of().without(gate)) as config:
        async with Client(await load_credentials(config), user_agent="test") as client:
            finding = await check_gates(client, separate_counters=True)
            assert (await client.list(RESOURCE_SLICES)).items == [], "nothing is stored"
    assert finding.verdict == "warn"
    on, off = finding.text.split("; off: ")
    assert gate not in on
    assert off == gate


async def test_gates_that_are_on(tmp_path: Path) -> None:
    with api_server(tmp_path) as config:
        async with Client(await load_credentials(config), user_agent="test") as client:
            finding = await check_gates(client, separate_counters=True)
    assert str(finding) == (
        "ok   feature gates: on: DRADeviceTaints, DRADeviceBindingConditions, DRAConsumableCapacity, "
        "DRAPartitionableDevices, DRAExtendedResource"
    )


async def test_gates_of_classes_are_not_known_without_the_right_to_create_them(tmp_path: Path) -> None:
    with Api() as api, api.failing(403, "POST", below="/apis/resource.k8s.io/v1/deviceclasses"):
        credentials = await load_credentials(api.kubeconfig(tmp_path / "kubeconfig"))
        async with Client(credentials, user_agent="test") as client:
            finding = await check_gates(client, separate_counters=True)
    assert finding.text.endswith("not known, as you may not create DeviceClasses: DRAExtendedResource")


def node(name: str, runtime: str, kubelet: str = "v1.37.1") -> dict[str, Any]:
    info = {"containerRuntimeVersion": runtime, "kubeletVersion": kubelet}
    return {"metadata": {"name": name}, "status": {"nodeInfo": info}}


def test_runtimes_without_cdi() -> None:
    nodes = [
        node("a", "containerd://2.4.2"), node("b", "containerd://1.7.20"), node("c", "containerd://1.6.1"),
        node("d", "cri-o://1.34.0"), node("e", "docker://27.0"), node("f", "containerd://2.4.2"),
        node("g", "local-process://1"),
    ]  # fmt: skip
    assert [(item.verdict, item.text) for item in runtime_findings(nodes)] == [
        ("warn", "node b has containerd://1.7.20, where CDI is off by default"),
        ("FAIL", "node c has containerd://1.6.1, which does not support CDI"),
        ("warn", "node e has docker://27.0"),
        ("ok", "2 x containerd://2.4.2, 1 x cri-o://1.34.0, 1 x local-process://1"),
    ]


def test_kubelets_that_are_too_old() -> None:
    nodes = [node("a", "", "v1.37.1"), node("b", "", "v1.33.9"), node("c", "", "v1.34.0+k3s1")]
    assert [(item.verdict, item.text) for item in kubelet_versions(nodes)] == [
        ("FAIL", "node b has kubelet v1.33.9"),
        ("ok", "1 x v1.34.0+k3s1, 1 x v1.37.1"),
    ]


@pytest.mark.parametrize(
    ("config", "verdicts"),
    [
        ({"cpuManagerPolicy": "none"}, ["ok"]),
        ({}, ["ok"]),
        ({"cpuManagerPolicy": "static"}, ["warn"]),
        ({"featureGates": {"DynamicResourceAllocation": False}}, ["FAIL"]),
        (
            {"featureGates": {"KubeletPodResourcesDynamicResources": False}, "cpuManagerPolicy": "static"},
            ["warn", "warn"],
        ),
    ],
)
def test_kubelet_configuration_is_checked(config: dict[str, Any], verdicts: list[str]) -> None:
    assert [item.verdict for item in kubelet_configuration_findings("a", config)] == verdicts


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("version = 3", ["ok"]),
        ('[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = true\ncdi_spec_dirs = ["CDI"]', ["ok"]),
        ('[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false', ["FAIL"]),
        ('[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/elsewhere"]', ["FAIL"]),
        ("[", ["warn"]),
    ],
)
def test_the_configuration_of_containerd(tmp_path: Path, text: str, verdicts: list[str]) -> None:
    cdi, config = Path("/var/run/cdi"), tmp_path / "config.toml"
    assert list(containerd_findings(cdi, config)) == []
    config.write_text(text.replace("CDI", str(cdi)))
    assert [item.verdict for item in containerd_findings(cdi, config)] == verdicts


def test_the_root_directory_of_the_kubelet(tmp_path: Path) -> None:
    root, processes = tmp_path / "kubelet", tmp_path / "proc"
    (processes / "1").mkdir(parents=True)
    (processes / "1" / "cmdline").write_bytes(b"/sbin/init\0")
    [missing] = kubelet_root_findings(root, processes)
    assert missing.text == f"{root} does not exist"
    root.mkdir()
    [unused] = kubelet_root_findings(root, processes)
    assert unused.verdict == "FAIL"
    (root / "plugins_registry").mkdir()
    assert [item.verdict for item in kubelet_root_findings(root, processes)] == ["ok"]
    (processes / "7").mkdir()
    (processes / "7" / "cmdline").write_bytes(b"/usr/bin/kubelet\0--v=2\0--root-dir=/data/kubelet\0")
    [other] = kubelet_root_findings(root, processes)
    assert other.text == f"the kubelet's --root-dir is /data/kubelet, not {root}"
    (processes / "7" / "cmdline").write_bytes(b"k8s\0kubelet\0--root-dir\0" + bytes(root) + b"\0")
    assert [item.verdict for item in kubelet_root_findings(root, processes)] == ["ok"]


def test_sockets_of_drivers(tmp_path: Path) -> None:
    plugin = tmp_path / "plugins" / "dra.pizza"
    plugin.mkdir(parents=True)
    (tmp_path / "plugins_registry").mkdir()
    cdi = tmp_path / "cdi"

    def sockets(driver: str | None = None) -> list[tuple[str, str]]:
        found = node_findings(tmp_path, cdi, driver)
        return [(item.verdict, item.text) for item in found if item.what == "sockets"]

    assert sockets() == [("warn", f"no driver has a socket below {tmp_path}/plugins")]
    assert sockets("dra.pizza") == [("FAIL", f"driver dra.pizza has no socket below {tmp_path}/plugins")]
    with socket.socket(socket.AF_UNIX) as live, socket.socket(socket.AF_UNIX) as dead:
        live.bind(str(plugin / "dra-a.sock"))
        live.listen()
        dead.bind(str(plugin / "dra-b.sock"))
        dead.close()
        assert sockets("dra.pizza") == [
            ("ok", f"{plugin}/dra-a.sock answers"),
            ("warn", f"no process listens at {plugin}/dra-b.sock"),
        ]


def test_a_driver_without_slices_or_class() -> None:
    [none] = driver_findings("dra.pizza", [], [])
    assert none.verdict == "FAIL"
    slices: list[dict[str, Any]] = [
        {"spec": {"nodeName": name, "devices": [{"name": "a"}, {"name": "b"}]}} for name in ("n1", "n2")
    ]
    found, unnamed = driver_findings("dra.pizza", slices, [{"metadata": {"name": "other"}, "spec": {}}])
    assert found.text == "dra.pizza: 4 devices on 2 nodes"
    of_none = {"spec": {"allNodes": True, "pool": {"name": "fabric"}, "devices": [{"name": "c"}]}}
    assert driver_findings("dra.pizza", [slices[0], of_none], [])[0].text == (
        "dra.pizza: 3 devices on 1 node and in 1 pool of no node"
    )
    assert unnamed.verdict == "warn"
    selectors = [{"cel": {"expression": 'device.driver == "dra.pizza"'}}]
    classes = [{"metadata": {"name": "pizza"}, "spec": {"selectors": selectors}}]
    assert [item.verdict for item in driver_findings("dra.pizza", slices, classes)] == ["ok", "ok"]


WAITS = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}


def ended(message: str | None, code: int = 2) -> dict[str, Any]:
    """How a container that is started again and again ended last."""
    return {**WAITS, "lastState": {"terminated": {"exitCode": code, "message": message}}}


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (ended('noise\n{"message": "process ends", "error": "no oven"}\n'), "exited with code 2: no oven"),
        (ended("noise\nerror: no oven\n"), "exited with code 2: no oven"),
        (ended("[1, 2]"), "exited with code 2: [1, 2]"),
        (ended(None, 137), "exited with code 137"),
        ({"state": ended("error: no oven")["lastState"]}, "exited with code 2: no oven"),
        ({**ended("error: no oven"), "state": {"running": {}}, "ready": False}, "exited with code 2: no oven"),
    ],
)
def test_a_driver_without_slices_whose_pod_fails_says_why(status: dict[str, Any], text: str) -> None:
    metadata = {"name": "pizza-node-x", "namespace": "pizza-system"}
    [found] = driver_findings("dra.pizza", [], [], [{"metadata": metadata, "status": {"containerStatuses": [status]}}])

    assert found.verdict == "FAIL"
    assert found.text == f"dra.pizza has published no slice: pod pizza-system/pizza-node-x {text}"


@pytest.mark.parametrize(
    "status",
    [None, {}, {"containerStatuses": [{**ended("error: before"), "state": {"running": {}}, "ready": True}]}],
)
def test_a_driver_without_slices_whose_pod_does_not_fail_is_looked_at_on_the_node(status: Any) -> None:
    pod = {"metadata": {"name": "pizza-node-x", "namespace": "pizza-system"}, "status": status}
    [found] = driver_findings("dra.pizza", [], [], [pod])

    assert found.text == "dra.pizza has published no slice"


def test_the_command_prints_each_result_and_fails_if_one_does(tmp_path: Path) -> None:
    with api_server(tmp_path) as config:
        away = ["--kubelet-dir", str(tmp_path / "none")]
        answer = CliRunner().invoke(cli, ["check", "--kubeconfig", str(config), *away])
        assert answer.exit_code == 0, answer.output
        assert "ok   API server: Kubernetes 1.37" in answer.stdout
        answer = CliRunner().invoke(cli, ["check", "--kubeconfig", str(config), "--driver", "dra.pizza", *away])
        assert answer.exit_code == 1
        assert "FAIL driver: dra.pizza has published no slice; " in answer.stdout
        answer = CliRunner().invoke(cli, ["check", "--kubeconfig", str(config), "-o", "json", *away])
        assert {item["verdict"] for item in json.loads(answer.stdout)["findings"]} <= {"ok", "warn"}


def test_the_socket_of_a_driver_with_pod_hooks_is_checked(tmp_path: Path) -> None:
    def nri(**options: Any) -> list[CheckResult]:
        found = asyncio.run(run_checks(CheckOptions(kubelet_dir=tmp_path, **options), None))
        return [item for item in found if item.what == "NRI"]

    class Pins(dra.PodHooks):
        def pod_stops(self, pod: Any, devices: Any) -> None:
            pass

    made = driver(pod_hooks=Pins())
    assert not nri()
    assert nri(code=made)
    with tempfile.TemporaryDirectory() as short:
        path = Path(short) / "nri.sock"
        [missing] = nri(nri_socket=path)
        assert missing.verdict == "FAIL"
        assert f"no container runtime listens at {path}" in missing.text
        assert "enable_nri = true" in missing.remedy
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen()
            [answers] = nri(nri_socket=path)
    assert (answers.verdict, answers.text) == ("ok", f"{path} answers")
