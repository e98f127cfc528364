"""Hooks at pod and container start, with the real kubelet and containerd: they fail closed, also while it is away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.cluster import manifests
from tests.cluster.node_driver import NodeDriver, has_hooks, node_driver
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
def guest(plane: Plane, name: str) -> Iterator[None]:
    """A pod that prints its CPUs and its device's metadata, and goes on."""
    plane.create(*manifests.guest(name, "hooks-example", "sh", "-c", SCRIPT, request="cpu"))
    try:
        yield
    finally:
        plane.kubectl("delete", "--ignore-not-found", f"pod/{name}", f"resourceclaim/{name}")


@contextmanager
def started(plane: Plane, directory: Path) -> Iterator[NodeDriver]:
    """The driver, connected to containerd."""
    shutil.copy(HERE / "driver.py", directory)
    classes = (HERE / "deviceclass.yaml").read_text(encoding="utf-8")
    with node_driver(plane, "./driver.py", DRIVER, classes=classes, directory=directory) as driver:
        until("the connection with containerd", lambda: has_hooks(driver.process), driver.process.tail)
        yield driver


def output(plane: Plane, name: str) -> str:
    return plane.kubectl("logs", name, check=False).stdout


def has_metadata(plane: Plane, name: str) -> bool:
    return "networkData" in output(plane, name)


def test_no_container_starts_without_its_hook_and_nothing_is_lost_by_a_kill(node_plane: Plane, tmp_path: Path) -> None:
    plane = node_plane
    with started(plane, tmp_path) as driver, guest(plane, "pinned"):
        tail = driver.process.tail
        until("the hook's error", lambda: plane.has_event("pinned", "the gate is closed"), tail)
        assert output(plane, "pinned") == ""

        driver.process.process.kill()
        driver.process.process.wait()
        guard = "driver-is-not-connected-to-the-container-runtime"
        until("the guard", lambda: plane.has_event("pinned", guard), tail)
        assert output(plane, "pinned") == ""

        (tmp_path / "open").touch()
        with running(driver.command, log=tmp_path / "again.log", directory=tmp_path) as again:
            until("the container", partial(has_metadata, plane, "pinned"), again.tail)
            text = output(plane, "pinned")
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


def test_hook_that_hangs_fails_its_pod_until_a_repaired_release_takes_over(node_plane: Plane, tmp_path: Path) -> None:
    plane, hanging = node_plane, ("blocks", "waits")
    for name in ("open", *hanging):
        (tmp_path / name).touch()
    with started(plane, tmp_path) as driver, guest(plane, "blocks"), guest(plane, "waits"):
        tail = driver.process.tail
        for name, hook in (("blocks", "Pin.container_starts"), ("waits", "Pin.pod_starts")):
            until(f"the error of pod {name}", partial(plane.has_event, name, f"({hook} has"), tail)
        with plane.holding(manifests.sleeper("other")):
            until("another pod", lambda: plane.get("pod", "other")["status"]["phase"] == "Running", tail)
        assert [output(plane, name) for name in hanging] == ["", ""]

        for name in hanging:
            (tmp_path / name).unlink()
        command = [*driver.command, "--pod-uid", "repaired"]
        with running(command, log=tmp_path / "repaired.log", directory=tmp_path) as repaired:
            until("the takeover", lambda: has_hooks(repaired), repaired.tail)
            driver.process.process.terminate()  # as Kubernetes does when the new process is ready
            for name in hanging:
                until(f"pod {name}", partial(has_metadata, plane, name), repaired.tail)
            for name in hanging:
                plane.kubectl("delete", "pod", name)
