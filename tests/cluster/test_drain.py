"""``dra-kit drain`` and the chart's removal on a real API server, with nodes that no kubelet serves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.charts.rendering import DEPLOYED
from tests.charts.test_confirmation_policy import MINE
from tests.cluster.deployed import wait_until
from tests.cluster.documented import run_command
from tests.cluster.plane import Plane
from tests.cluster.release import Release, release

DRIVER = "draining.pizza.example"
FIRST, SECOND = "draining-a", "draining-b"
LABEL = "kitchen.pizza.example/draining"
pytestmark = pytest.mark.any_release  # it reads pods, nodes and DaemonSets only


def wanted_node(pod: Any) -> str:
    """The node that a DaemonSet's pod is for; the scheduler binds none to a node that says nothing of itself."""
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


@dataclass(frozen=True)
class Removal:
    """A driver that is being removed from two nodes.

    Attributes:
        made: its release.
        folder: where commands are run.
    """

    made: Release
    folder: Path

    def drain(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = " ".join(["dra-kit drain --driver", DRIVER, "--until-removed -o json", *arguments])
        return run_command(self.made.plane, command, self.folder)

    def unconfirmed(self, *arguments: str) -> dict[str, str]:
        """Why nodes have not confirmed, by node."""
        result = self.drain(*arguments)
        assert result.stdout, result.stderr
        return {item["node"]: item["reason"] for item in json.loads(result.stdout)["removal"]["unconfirmed"]}

    def pods(self) -> dict[str, str]:
        """Names of the driver's pods by their nodes; none of one that is on its way out."""
        items: list[Any] = [pod for pod in self.made.pods("node") if "deletionTimestamp" not in pod["metadata"]]
        return {wanted_node(pod): pod["metadata"]["name"] for pod in items}

    def confirm(self, node: str) -> None:
        """What `dra-kit decommission` on a node does when nothing is left there."""
        patch = json.dumps({"status": {"conditions": [MINE]}})
        self.made.kubectl("patch", "pod", self.pods()[node], "--subresource=status", "--patch", patch)


@pytest.fixture
def removal(helm_plane: Plane, tmp_path: Path) -> Iterator[Removal]:
    plane = helm_plane
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {LABEL: "yes"}}}
             for name in (FIRST, SECOND)]  # fmt: skip
    plane.create(*nodes)
    node = {"decommission": True, "nodeSelector": {LABEL: "yes"}}
    values = {**DEPLOYED, "driverName": DRIVER, "controller": {"enabled": False}, "node": node}
    try:
        with release(plane, "draining", values) as made:
            made.apply()
            found = Removal(made, tmp_path)
            wait_until("a pod on each node", lambda: set(found.pods()) == {FIRST, SECOND})
            try:
                yield found
            finally:
                plane.kubectl("delete", "node", FIRST, SECOND, "--ignore-not-found")
                # no kubelet says that they have ended
                plane.kubectl("delete", "pods", "--all", "--namespace", made.namespace, "--force", "--grace-period=0")
    finally:
        plane.kubectl("delete", "node", FIRST, SECOND, "--ignore-not-found")


def test_nodes_that_have_not_confirmed_are_named_until_they_have(removal: Removal) -> None:
    assert set(removal.unconfirmed()) == {FIRST, SECOND}
    removal.confirm(FIRST)
    assert set(removal.unconfirmed()) == {SECOND}
    removal.confirm(SECOND)
    result = removal.drain()
    assert (result.returncode, json.loads(result.stdout)["removal"]["confirmed"]) == (0, [FIRST, SECOND])


def test_a_node_that_is_dead_may_be_skipped(removal: Removal) -> None:
    removal.confirm(FIRST)
    assert removal.drain().returncode == 4
    assert removal.drain("--skip-node", SECOND).returncode == 0


def test_a_node_that_is_deleted_is_not_waited_for(removal: Removal) -> None:
    removal.confirm(FIRST)
    removal.made.plane.kubectl("delete", "node", SECOND)
    assert removal.drain("--wait 300").returncode == 0


def test_a_release_that_still_runs_the_driver_is_not_being_removed(removal: Removal) -> None:
    removal.made.apply({"node": {"nodeSelector": {LABEL: "yes"}}})
    result = removal.drain()
    assert result.returncode == 2
    assert f"DaemonSet {removal.made.namespace}/draining-node runs dra-kit node" in result.stderr
