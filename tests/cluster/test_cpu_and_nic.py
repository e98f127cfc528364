"""The drivers of examples/cpu-driver and examples/nic-driver on one node: kill -9 and a new runtime lose nothing."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import manifests
from tests.cluster.find import REPOSITORY
from tests.cluster.node_driver import NodeDriver, has_hooks, node_driver
from tests.cluster.plane import Plane
from tests.cluster.processes import Running, ip, running
from tests.life.switches import until

EXAMPLES = REPOSITORY / "examples"
NIC = "nic.example.com"
CONFIG = {
    "apiVersion": f"{NIC}/v1", "kind": "NicConfig", "name": "net1", "mtu": 1400, "addresses": ["10.1.2.3/24"],
}  # fmt: skip
SCRIPT = "ip -oneline address show dev net1; ip link show dev net1; exec sleep 100000"

pytestmark = pytest.mark.alone  # it pins every container of the node, and restarts the runtime


class Pods:
    """The pods of the test, as the cluster and the kernel show them."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def create(self) -> None:
        """Create a pod with one CPU and the interface."""
        config = [{"opaque": {"driver": NIC, "parameters": CONFIG}}]
        claim, pod = manifests.guest("server", NIC, "sh", "-c", SCRIPT, request="nic", config=config)
        pod["spec"]["resourceClaims"].append({"name": "cpu", "resourceClaimName": "server-cpu"})
        pod["spec"]["containers"][0]["resources"]["claims"].append({"name": "cpu"})
        self._plane.create(claim, manifests.claim("server-cpu", "dra.cpu", request="cpu"), pod)

    def close(self) -> None:
        """Delete what there is."""
        names = ("pod/server", "pod/neighbour", "resourceclaim/server", "resourceclaim/server-cpu")
        self._plane.kubectl("delete", "--ignore-not-found", *names)

    def output(self) -> str:
        return self._plane.kubectl("logs", "server", check=False).stdout

    def cpus(self, pod: str) -> str:
        """The CPUs of the pod's container, from its cgroup; empty if it does not run."""
        [status] = self._plane.get("pod", pod)["status"].get("containerStatuses", [{}])
        identity = status.get("containerID", "").rpartition("/")[2]
        if not identity:
            return ""
        found = next(Path("/sys/fs/cgroup").glob(f"**/*{identity}*/cpuset.cpus"), None)
        return "" if found is None else found.read_text().strip()

    def devices(self) -> list[dict[str, Any]]:
        """The interface in the status of its claim."""
        found: list[dict[str, Any]] = self._plane.get("resourceclaim", "server")["status"].get("devices", [])
        return found


def kill(process: Running) -> None:
    process.process.kill()
    process.process.wait()


def test_kill_and_restart_between_prepare_and_container_start_lose_nothing(
    node_plane: Plane, interface: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyroute2")
    if Path("/sys/devices/system/cpu/online").read_text().strip() != "0-1":
        pytest.skip("the test is for two CPUs")
    monkeypatch.setenv("DRIVER_INTERFACES", interface)
    plane = node_plane

    def started(name: str, directory: str) -> NodeDriver:
        classes = (EXAMPLES / directory / "deviceclasses.yaml").read_text(encoding="utf-8")
        return stack.enter_context(node_driver(plane, EXAMPLES / directory, name, classes=classes))

    def again(driver: NodeDriver, log: str) -> Running:
        return processes.enter_context(running(driver.command, log=tmp_path / log))

    with ExitStack() as stack:
        cpu, nic = started("dra.cpu", "cpu-driver"), started(NIC, "nic-driver")
        processes = stack.enter_context(ExitStack())
        pods = stack.enter_context(closing(Pods(plane)))
        plane.create(manifests.sleeper("neighbour"))
        until("the shared pool", lambda: pods.cpus("neighbour") == "0-1", cpu.process.tail)

        plane.component("stop", "containerd")
        try:
            pods.create()
            # the kubelet creates the sandbox after it has prepared all claims
            until("a sandbox to fail", lambda: plane.has_event("server", "FailedCreatePodSandBox"), nic.process.tail)
            kill(cpu.process)
            kill(nic.process)
        finally:
            plane.component("start", "containerd")
        until("the guard", lambda: plane.has_event("server", "driver-is-not-connected-to-the-container-runtime"))
        assert pods.output() == ""

        new_cpu, new_nic = again(cpu, "cpu.log"), again(nic, "nic.log")
        until("the container", lambda: "mtu" in pods.output(), new_nic.tail)
        until("the status", pods.devices, new_nic.tail)
        [device] = pods.devices()
        assert sorted((pods.cpus("server"), pods.cpus("neighbour"))) == ["0", "1"]
        assert "inet 10.1.2.3/24" in pods.output()
        assert "mtu 1400" in pods.output()
        assert (device["networkData"]["interfaceName"], device["networkData"]["ips"]) == ("net1", ["10.1.2.3/24"])
        assert ip("link", "show", "dev", interface) == ""

        kill(new_nic)
        newest = again(nic, "newest.log")
        until("the driver", lambda: has_hooks(newest), newest.tail)
        plane.kubectl("delete", "pod", "server")
        until("the interface", lambda: "mtu 1500" in ip("link", "show", "dev", interface), newest.tail)
        until("the CPUs", lambda: pods.cpus("neighbour") == "0-1", new_cpu.tail)
