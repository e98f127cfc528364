"""Hooks at pod and container start, with the real kubelet and containerd: they fail closed, also while it is away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import manifests
from tests.cluster.node_driver import node_driver
from tests.cluster.plane import Plane
from tests.cluster.processes import running
from tests.life.switches import until

HERE = Path(__file__).parent / "hooks"
DRIVER = "hooks.example"
SCRIPT = """
grep Cpus_allowed_list /proc/self/status
echo pinned: $PINNED
cat /var/run/kubernetes.io/dra-device-attributes/resourceclaims/*/cpu/*-metadata.json
exec sleep 100000
"""


@contextmanager
def guest(plane: Plane) -> Iterator[None]:
    """A pod that prints its CPUs and its device's metadata, and goes on."""
    plane.create(*manifests.guest("pinned", "hooks-example", "sh", "-c", SCRIPT, request="cpu"))
    try:
        yield
    finally:
        plane.kubectl("delete", "pod", "pinned", "--ignore-not-found")
        plane.kubectl("delete", "resourceclaim", "pinned", "--ignore-not-found")


def output(plane: Plane) -> str:
    return plane.kubectl("logs", "pinned", check=False).stdout


def reported(plane: Plane, text: str) -> bool:
    """Whether an Event of the pod has the text."""
    events = plane.get("events", "--field-selector", "involvedObject.name=pinned")["items"]
    return any(text in item["message"] for item in events)


def test_no_container_starts_without_its_hook_and_nothing_is_lost_by_a_kill(node_plane: Plane, tmp_path: Path) -> None:
    shutil.copy(HERE / "driver.py", tmp_path)
    classes, plane = (HERE / "deviceclass.yaml").read_text(encoding="utf-8"), node_plane
    with node_driver(plane, "./driver.py", DRIVER, classes=classes, directory=tmp_path) as driver:
        tail = driver.process.tail
        until("the connection with containerd", lambda: "NRI plugin" in tail() and "connected" in tail(), tail)
        with guest(plane):
            until("the hook's error", lambda: reported(plane, "the gate is closed"), tail)
            assert output(plane) == ""

            driver.process.process.kill()
            driver.process.process.wait()
            until("the guard", lambda: reported(plane, "driver-is-not-connected-to-the-container-runtime"), tail)
            assert output(plane) == ""

            (tmp_path / "open").touch()
            with running(driver.command, log=tmp_path / "again.log", directory=tmp_path) as again:
                until("the container", lambda: "networkData" in output(plane), again.tail)
                text = output(plane)
                pod = plane.get("pod", "pinned")
                status = plane.get("resourceclaim", "pinned")["status"]
                plane.kubectl("delete", "pod", "pinned")

    assert "Cpus_allowed_list:\t0\n" in text
    assert "pinned: yes" in text
    document = json.loads(text[text.index("{") :])
    [device] = document["requests"][0]["devices"]
    assert device["networkData"]["interfaceName"].startswith("cni-")
    assert pod["status"]["phase"] == "Running"
    assert status["allocation"]["devices"]["results"][0]["device"] == "cpu-0"
