"""Networks of CNI plugins by examples/nic-driver on a real node: pods join and leave them, also after a kill -9."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster import manifests
from tests.cluster.find import REPOSITORY
from tests.cluster.node_driver import node_driver
from tests.cluster.plane import Plane
from tests.cluster.processes import running
from tests.life.switches import until

PROJECT = REPOSITORY / "examples" / "nic-driver"
DRIVER = "nic.example.com"
SCRIPT = "ip -oneline address show dev net1; ip link show dev net1; exec sleep 100000"

NETWORK = {
    "apiVersion": f"{DRIVER}/v1", "kind": "CniConfig", "interface": "net1",
    "conflist": {"cniVersion": "1.0.0", "name": "blue", "plugins": [{"type": "wire"}]},
}  # fmt: skip
PLUGIN = """#!/bin/sh
PATH=$PATH:/sbin:/usr/sbin
echo "$CNI_COMMAND $CNI_CONTAINERID" >> "$CNI_PATH/log"
end=dcni$(echo "$CNI_CONTAINERID" | cut -c 1-8)
[ "$CNI_COMMAND" = ADD ] || { ip link delete "$end" 2> /dev/null; exit 0; }
set -e
ip link add "$end" mtu 1400 type veth peer name "$CNI_IFNAME" mtu 1400 netns "$CNI_NETNS"
nsenter --net="$CNI_NETNS" ip address add 10.1.2.3/24 dev "$CNI_IFNAME"
cat << END
{"interfaces": [{"name": "$CNI_IFNAME", "mac": "", "sandbox": "$CNI_NETNS"}],
 "ips": [{"address": "10.1.2.3/24", "interface": 0}]}
END
"""


def ip(*arguments: str) -> str:
    """What the command prints; empty if it fails."""
    command = [shutil.which("ip") or "/sbin/ip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout


def test_a_pod_joins_a_network_of_a_cni_plugin_and_leaves_it(
    node_plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyroute2")
    plugin, log = tmp_path / "bin" / "wire", tmp_path / "bin" / "log"
    plugin.parent.mkdir()
    plugin.write_text(PLUGIN, encoding="utf-8")
    plugin.chmod(0o755)
    monkeypatch.setenv("DRIVER_CNI_PLUGINS", "wire")
    monkeypatch.setenv("DRIVER_CNI_BIN", str(plugin.parent))
    monkeypatch.setenv("PYTHONPATH", f"{PROJECT / 'src'}:{REPOSITORY}")
    classes, plane = (PROJECT / "deviceclasses.yaml").read_text(encoding="utf-8"), node_plane
    opaque = [{"opaque": {"driver": DRIVER, "parameters": NETWORK}}]
    with node_driver(plane, "nic_driver.driver:driver", DRIVER, classes=classes, directory=tmp_path) as driver:
        tail = driver.process.tail
        plane.create(*manifests.guest("server", f"cni.{DRIVER}", "sh", "-c", SCRIPT, request="nic", config=opaque))
        try:
            until("the pod to run", lambda: "mtu" in plane.kubectl("logs", "server", check=False).stdout, tail)
            text = plane.kubectl("logs", "server").stdout
            until("the status", lambda: devices(plane), tail)
            [device] = devices(plane)

            driver.process.process.kill()
            driver.process.process.wait()
            with running(driver.command, log=tmp_path / "again.log", directory=tmp_path) as again:
                until("the driver", lambda: "NRI plugin" in again.tail() and "connected" in again.tail(), again.tail)
                plane.kubectl("delete", "pod", "server")
                until("DEL", lambda: ended(log), again.tail)
                plane.kubectl("delete", "resourceclaim", "server")
        finally:
            plane.kubectl("delete", "pod,resourceclaim", "server", "--ignore-not-found")

    assert "inet 10.1.2.3/24" in text
    assert "mtu 1400" in text
    assert device["networkData"]["interfaceName"] == "net1"
    assert device["networkData"]["ips"] == ["10.1.2.3/24"]
    assert "dcni" not in ip("link", "show", "type", "veth")


def ended(log: Path) -> bool:
    """Return whether the last call of the plugin for each sandbox was DEL."""
    calls = (line.split() for line in log.read_text(encoding="utf-8").splitlines())
    last = {sandbox: command for command, sandbox in calls}
    return set(last.values()) == {"DEL"}


def devices(plane: Plane) -> list[dict[str, dict[str, object]]]:
    found: list[dict[str, dict[str, object]]] = plane.get("resourceclaim", "server")["status"].get("devices", [])
    return found
