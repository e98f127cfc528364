"""Which nodes have confirmed that nothing of a driver is left on them, as ``dra-kit drain`` reports it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from dra_kit.client.resources import DECOMMISSIONED
from dra_kit.diagnosis.drain import DriverRemoval, UnconfirmedNode, removal_confirmations
from tests.support.api import Api
from tests.unit.diagnosis.drain.test_drain import DRIVER, claim, drain, drain_while, node_slice

LABELS = {"app.kubernetes.io/name": DRIVER, "app.kubernetes.io/component": "node"}
DECOMMISSION = ["decommission", f"/var/lib/kubelet/plugins/{DRIVER}", "pizza:driver", "--stay"]
LAST = "/api/v1/nodes"  # what a look asks for last


class Cluster:
    """A cluster in which a driver is being removed, by the chart.

    Args:
        api: that serves it.
        kubeconfig: of it.
    """

    def __init__(self, api: Api, kubeconfig: Path) -> None:
        self.api = api
        self.kubeconfig = kubeconfig

    def daemon_set(self, desired: int, *, args: Sequence[str] = DECOMMISSION, seen: bool = True) -> None:
        """The driver's DaemonSet, which wants a pod on so many nodes."""
        template = {"spec": {"containers": [{"args": list(args)}]}}
        metadata = {"name": "pizza-node", "namespace": "pizza", "labels": LABELS, "uid": "ds", "generation": 2}
        spec = {"selector": {"matchLabels": LABELS}, "template": template}
        status = {"observedGeneration": 2 if seen else 1, "desiredNumberScheduled": desired}
        self.api.put("daemonsets", {"metadata": metadata, "spec": spec, "status": status})

    def node(self, name: str, *, ready: bool = True) -> None:
        condition = {"type": "Ready", "status": "True" if ready else "Unknown"}
        self.api.put("nodes", {"metadata": {"name": name}, "status": {"conditions": [condition]}})

    def pod(
        self,
        node: str,
        confirmed: bool | None = None,
        *,
        name: str = "",
        args: Sequence[str] = DECOMMISSION,
        left: str = "",
        waiting: str = "",
        bound: bool = True,
    ) -> None:
        """A pod of the DaemonSet; without a verdict it has not said anything yet."""
        self.node(node)
        owner = {"uid": "ds", "kind": "DaemonSet", "name": "pizza-node"}
        metadata = {
            "name": name or f"pizza-{node}", "namespace": "pizza", "labels": LABELS, "ownerReferences": [owner],
        }  # fmt: skip
        spec: dict[str, Any] = {"containers": [{"args": list(args)}]}
        if bound:
            spec["nodeName"] = node
        else:
            fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
            required = {"nodeSelectorTerms": [{"matchFields": fields}]}
            spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        status: dict[str, Any] = {"phase": "Running" if bound else "Pending"}
        if waiting:
            status["containerStatuses"] = [{"state": {"waiting": {"reason": waiting}}}]
        if confirmed is not None:
            said = {"type": DECOMMISSIONED, "status": "True" if confirmed else "False", "message": left}
            status["conditions"] = [{"type": "Ready", "status": "True"}, said]
        self.api.put("pods", {"metadata": metadata, "spec": spec, "status": status})

    def drain(self, *arguments: str) -> Result:
        return drain(self.kubeconfig, *arguments)

    def removal(self, *arguments: str) -> dict[str, Any]:
        """What the command says of the removal, as JSON."""
        found: dict[str, Any] = json.loads(self.drain("-o", "json", *arguments).stdout)["removal"]
        return found

    def unconfirmed(self, *arguments: str) -> dict[str, str]:
        """Why nodes have not confirmed, by node."""
        return {item["node"]: item["reason"] for item in self.removal(*arguments)["unconfirmed"]}

    def looked(self, times: int) -> None:
        """Wait until the command has looked so often."""
        end = time.monotonic() + 300
        while self.api.asked("GET", LAST) < times:
            assert time.monotonic() < end, "the command does not look any more"
            time.sleep(0.01)


@pytest.fixture
def cluster(kubeconfig: tuple[Api, Path]) -> Cluster:
    return Cluster(*kubeconfig)


def test_the_driver_is_removed_when_all_nodes_have_confirmed(cluster: Cluster) -> None:
    cluster.daemon_set(2)
    cluster.pod("node-1", confirmed=True)
    cluster.pod("node-2", confirmed=True)
    found = cluster.drain("--until-removed")
    assert (found.exit_code, found.output) == (
        0,
        "driver dra.pizza: no claim is in use\ndriver dra.pizza: nothing is left on 2 nodes: node-1, node-2\n",
    )


def test_nodes_that_have_not_confirmed_are_named_and_how_to_skip_them(cluster: Cluster) -> None:
    cluster.daemon_set(2)
    cluster.pod("node-1", confirmed=True)
    cluster.pod("node-2", confirmed=False, left="left: claims default/lunch (uid)")
    found = cluster.drain("--until-removed")
    assert found.exit_code == 4
    assert found.output == (
        "driver dra.pizza: no claim is in use\n"
        "NODE    NOT CONFIRMED\n"
        "node-2  left: claims default/lunch (uid)\n"
        "driver dra.pizza: node-2 did not confirm that nothing is left; wait, or repair the nodes. To skip nodes "
        "that are permanently gone: dra-kit drain --until-removed --skip-node node-2, then helm uninstall "
        "--no-hooks; or drainGuard.skipNodes in the chart's values\n"
    )


def test_claims_in_use_come_before_confirmations(cluster: Cluster) -> None:
    cluster.daemon_set(1)
    cluster.pod("node-1")
    cluster.api.put("resourceclaims", claim("lunch"))
    assert cluster.drain("--until-removed").exit_code == 3


def test_a_decommissioning_daemon_set_is_awaited_without_an_option(cluster: Cluster) -> None:
    cluster.daemon_set(1)
    cluster.pod("node-1")
    assert cluster.drain().exit_code == 4
    assert cluster.drain("--no-until-removed").exit_code == 0


def test_an_ordinary_driver_needs_no_confirmations(cluster: Cluster) -> None:
    cluster.daemon_set(1, args=["node", "pizza:driver"])
    cluster.pod("node-1", args=["node", "pizza:driver"])
    found = cluster.drain("-o", "json")
    assert (found.exit_code, json.loads(found.output)["removal"]) == (0, None)


def test_a_driver_without_dra_kit_needs_no_confirmations(cluster: Cluster) -> None:
    cluster.api.put("resourceslices", node_slice("node-1"))
    assert cluster.drain().exit_code == 0


def test_a_removal_that_was_not_requested_is_an_error(cluster: Cluster) -> None:
    cluster.daemon_set(1, args=["node", "pizza:driver"])
    found = cluster.drain("--until-removed", "--wait", "600")
    assert found.exit_code == 2
    assert found.stderr == (
        "error: driver dra.pizza is not being removed: DaemonSet pizza/pizza-node runs dra-kit node; upgrade the "
        "release with node.decommission=true first [not-being-removed]\n"
    )


def test_a_change_that_the_daemon_set_controller_has_not_seen_is_awaited(cluster: Cluster) -> None:
    cluster.daemon_set(1, seen=False)
    cluster.pod("node-1", confirmed=True)
    reason = "DaemonSet pizza/pizza-node has not been rolled out since its last change"
    assert cluster.unconfirmed() == {"": reason}


def test_a_pod_from_before_the_removal_is_awaited(cluster: Cluster) -> None:
    cluster.daemon_set(1)
    cluster.pod("node-1", confirmed=True)
    cluster.pod("node-1", name="old", args=["node", "pizza:driver"])
    assert cluster.unconfirmed() == {"node-1": "pod old still runs the driver"}


def test_a_pod_that_is_not_created_yet_is_awaited(cluster: Cluster) -> None:
    cluster.daemon_set(3)
    cluster.pod("node-1", confirmed=True)
    assert cluster.unconfirmed() == {"": "DaemonSet pizza/pizza-node has no pod yet on 2 nodes"}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({}, "pod pizza-node-1 is Running and has not confirmed"),
        ({"bound": False}, "pod pizza-node-1 is Pending and has not confirmed"),
        ({"waiting": "ImagePullBackOff"}, "pod pizza-node-1 is waiting: ImagePullBackOff"),
        ({"waiting": "CrashLoopBackOff"}, "pod pizza-node-1 is waiting: CrashLoopBackOff"),
    ],
)
def test_a_pod_that_has_not_confirmed_says_why(how: dict[str, Any], reason: str, cluster: Cluster) -> None:
    cluster.daemon_set(1)
    cluster.pod("node-1", **how)
    assert cluster.unconfirmed() == {"node-1": reason}


def test_slices_that_are_still_published_are_awaited(cluster: Cluster) -> None:
    cluster.daemon_set(1)
    cluster.pod("node-1", confirmed=True)
    cluster.node("node-2")
    for node in ("node-1", "node-2"):
        cluster.api.put("resourceslices", node_slice(node))
    cluster.api.put("resourceslices", node_slice("node-3", "other.example.com"))
    assert cluster.unconfirmed() == {
        "node-1": "its slices are still published",
        "node-2": "no pod of the driver is there, and its slices are still published",
    }


def test_a_node_that_is_not_ready_is_named_so(cluster: Cluster) -> None:
    cluster.daemon_set(1)
    cluster.pod("node-1")
    cluster.node("node-1", ready=False)
    assert cluster.unconfirmed()["node-1"].startswith("node is not ready; ")


def test_a_node_that_is_gone_is_not_awaited(cluster: Cluster) -> None:
    cluster.daemon_set(1)
    cluster.pod("node-1", confirmed=True)
    cluster.pod("node-2")
    cluster.api.put("resourceslices", node_slice("node-2"))
    cluster.api.delete("nodes", "node-2")
    assert cluster.drain().exit_code == 0


@pytest.mark.parametrize(("skipped", "code"), [("node-2", 0), ("node-gone", 4)])
def test_only_a_node_of_the_cluster_counts_as_skipped_for_a_missing_pod(
    skipped: str, code: int, cluster: Cluster
) -> None:
    cluster.daemon_set(2)
    cluster.pod("node-1", confirmed=True)
    cluster.node("node-2")
    assert cluster.drain("--until-removed", "--skip-node", skipped).exit_code == code


def test_nodes_may_be_skipped(cluster: Cluster) -> None:
    cluster.daemon_set(3)
    cluster.pod("node-1", confirmed=True)
    cluster.pod("node-2")
    cluster.node("node-3")
    cluster.api.put("resourceclaims", claim("lunch", node="node-2"))
    found = cluster.drain("--skip-node", "node-2", "--skip-node", "node-3")
    assert found.exit_code == 0
    assert "in use and skipped: default/lunch on node-2\n" in found.output
    assert "skipped: node-2; anything left on them remains\n" in found.output


def test_one_node_may_be_selected(cluster: Cluster) -> None:
    cluster.daemon_set(2)
    cluster.pod("node-1", confirmed=True)
    cluster.pod("node-2")
    assert cluster.drain("--node", "node-1").exit_code == 0
    assert list(cluster.unconfirmed("--node", "node-2")) == ["node-2"]


def test_nodes_without_a_pod_are_reported_as_skipped(cluster: Cluster) -> None:
    cluster.daemon_set(1)
    cluster.pod("node-1", confirmed=True)
    for number in range(2, 9):
        cluster.node(f"node-{number}")
    found = cluster.drain()
    assert found.exit_code == 0
    assert (
        "not asked: node-2, node-3, node-4, node-5, node-6 and 2 more; no pod of the driver runs there." in found.output
    )


def test_without_the_right_to_list_nodes_all_other_nodes_still_count(cluster: Cluster) -> None:
    cluster.daemon_set(2)
    cluster.pod("node-1", confirmed=True)
    cluster.pod("node-2")
    with cluster.api.failing(403, "GET", below="/api/v1/nodes"):
        removal = cluster.removal()
    assert (removal["confirmed"], [item["node"] for item in removal["unconfirmed"]]) == (["node-1"], ["node-2"])
    assert removal["not_asked"] is None


@pytest.mark.parametrize("below", ["/apis/apps/v1/daemonsets", "/api/v1/namespaces/pizza/pods"])
def test_a_right_that_confirmations_need_is_named(below: str, cluster: Cluster) -> None:
    cluster.daemon_set(1)
    cluster.pod("node-1", confirmed=True)
    with cluster.api.failing(403, "GET", below=below):
        found = cluster.drain("--until-removed")
    assert found.exit_code == 1
    assert f"LIST {below.rpartition('/')[2]}" in found.stderr


def test_without_a_daemon_set_only_slices_are_awaited(cluster: Cluster) -> None:
    cluster.node("node-1")
    cluster.api.put("resourceslices", node_slice("node-1"))
    assert cluster.drain("--until-removed").exit_code == 4
    cluster.api.delete("resourceslices", f"{DRIVER}-node-1")
    assert cluster.drain("--until-removed", "--allow-unknown").exit_code == 0


def test_it_waits_until_the_nodes_have_confirmed(cluster: Cluster) -> None:
    cluster.daemon_set(1)
    cluster.pod("node-1")

    def confirm() -> None:
        cluster.looked(1)
        cluster.pod("node-1", confirmed=True)

    found = drain_while(confirm, cluster.kubeconfig, "--until-removed")
    assert found.exit_code == 0
    assert "waiting for the confirmation of node-1\n" in found.stderr


@pytest.mark.processes
def test_a_node_whose_pod_is_deleted_before_it_confirmed_is_awaited(cluster: Cluster) -> None:
    cluster.daemon_set(1)
    cluster.pod("node-1", confirmed=True)
    cluster.pod("node-2")

    def unlabel() -> None:
        cluster.looked(1)
        cluster.api.delete("pods", "pizza-node-2", "pizza")
        cluster.looked(3)
        cluster.pod("node-2", confirmed=True)

    found = drain_while(unlabel, cluster.kubeconfig, "--until-removed")
    assert found.exit_code == 0


def test_a_node_that_lost_its_pod_says_so() -> None:
    found = removal_confirmations(DriverRemoval(), remembered=["node-2"])
    reason = "the pod of the driver was deleted before it had confirmed"
    assert found.unconfirmed == (UnconfirmedNode("node-2", reason),)
