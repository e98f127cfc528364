"""A daemon that a claim needs, beside the real kubelet: killed, it comes back; it goes with its last claim."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_kit.node.effects.program import find_marked, session_of
from tests.cluster import manifests
from tests.cluster.node_driver import CDI_DIR, node_driver
from tests.cluster.plane import Plane
from tests.cluster.processes import running
from tests.life.switches import until
from tests.support.files import files_below

HERE = Path(__file__).parent / "daemons"
DRIVER = "daemons.example"


@contextmanager
def guest(plane: Plane) -> Iterator[None]:
    """A pod that prints its daemon's process ID and goes on."""
    command = ("sh", "-c", "echo $DAEMON_PID; exec sleep 100000")
    plane.create(*manifests.guest("guest", "daemons-example", *command, request="card"))
    try:
        yield
    finally:
        plane.kubectl("delete", "pod", "guest", "--ignore-not-found")
        plane.kubectl("delete", "resourceclaim", "guest", "--ignore-not-found")


def daemon(state: Path) -> int:
    """The process ID of the one daemon that runs; 0 while there is none, or more than one."""
    found = find_marked(state / "children")
    return found[0].pid if len(found) == 1 else 0


def given() -> set[str]:
    """What a container would be given now."""
    texts = [path.read_text(encoding="utf-8") for path in files_below(CDI_DIR) if DRIVER in path.name]
    edits = [item["containerEdits"] for text in texts for item in json.loads(text)["devices"]]
    return {variable for item in edits for variable in item.get("env", ()) if variable.startswith("DAEMON_PID")}


def told_to_the_pod(plane: Plane) -> list[str]:
    selector = "reason=EffectReplaced,regarding.kind=Pod"
    events = plane.get("events.events.k8s.io", "--field-selector", selector)["items"]
    return [item["regarding"]["name"] for item in events]


def test_a_killed_daemon_comes_back_also_with_a_killed_driver(node_plane: Plane, tmp_path: Path) -> None:
    shutil.copy(HERE / "driver.py", tmp_path)
    classes, plane = (HERE / "deviceclass.yaml").read_text(encoding="utf-8"), node_plane
    with node_driver(plane, "./driver.py", DRIVER, classes=classes, directory=tmp_path) as driver:
        state = driver.state_dir
        with guest(plane):
            until("the pod to run", lambda: plane.kubectl("logs", "guest", check=False).stdout, driver.process.tail)
            first = daemon(state)
            assert plane.kubectl("logs", "guest").stdout.split() == [str(first)]

            os.kill(first, signal.SIGKILL)
            until("another daemon", lambda: daemon(state) not in {0, first}, driver.process.tail)
            second = daemon(state)
            until("its files", lambda: given() == {f"DAEMON_PID={second}"}, driver.process.tail)
            until("an Event for the pod", lambda: told_to_the_pod(plane) == ["guest"], driver.process.tail)

            driver.process.process.kill()
            os.kill(second, signal.SIGKILL)
            driver.process.process.wait()
            with running(driver.command, log=tmp_path / "again.log", directory=tmp_path) as again:
                until("a third daemon", lambda: daemon(state) not in {0, second}, again.tail)
                third = daemon(state)
                until("its files", lambda: given() == {f"DAEMON_PID={third}"}, again.tail)
                plane.kubectl("delete", "pod", "guest")
                until("the daemon to end", lambda: not session_of(third), again.tail)
                assert any("program output" in line and "up" in line for line in again.lines())
