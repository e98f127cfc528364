"""Pods that hang in Terminating, and drivers that are gone or being removed, in ``dra-kit explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api
from tests.unit.cli.cluster.saved import CLASS, DRIVER, Document, claim, node, pod, run, save, slice_of, words

SINCE = "2026-11-20T10:00:00Z"
ENDED: Document = {"name": "eater", "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}
RUNS: Document = {"name": "eater", "state": {"running": {"startedAt": SINCE}}}
REMEDY = (
    f"→ install {DRIVER} again, or with node.decommission=true if it is to be removed: it then releases the devices of "
    "pods on node-1 (docs/how-to/remove-a-driver.md)"
)


def guest(*statuses: Document, deleted: bool = True, phase: str = "Running", **metadata: Any) -> Document:
    """A pod that has ``rustica`` of node-1, deleted at SINCE with half a minute of grace."""
    document = pod("guest", claim="lunch", nodeName="node-1")
    document["status"] = {"phase": phase, "containerStatuses": list(statuses or [ENDED])}
    if deleted:
        document["metadata"] |= {"deletionTimestamp": "2026-11-20T10:00:30Z", "deletionGracePeriodSeconds": 30}
    document["metadata"] |= metadata
    return document


def driver_pod(*args: str, node_name: str = "node-1", driver: str = DRIVER, phase: str = "Running") -> Document:
    document = pod("pizza-node-x7k2p", nodeName=node_name)
    labels = {"app.kubernetes.io/name": driver, "app.kubernetes.io/component": "node"}
    document["metadata"] = {"name": "pizza-node-x7k2p", "namespace": "pizza-system", "uid": "d", "labels": labels}
    document["spec"]["containers"] = [{"name": "node", "image": "pizza:1", "args": list(args)}]
    document["status"] = {"phase": phase}
    return document


WORKS = driver_pod("node", "pizza_driver:driver")
REMOVES = driver_pod("decommission", "/var/lib/kubelet/plugins/dra.pizza", "pizza_driver:driver", "--stay")
LUNCH = claim("lunch", held=("node-1", "rustica"))
PIZZAS = slice_of("node-1", rustica="cheddar")
ELSEWHERE = slice_of("node-2", rustica="cheddar")


def explained(tmp_path: Path, *documents: Document, what: tuple[str, ...] = ("pod", "guest")) -> tuple[int, str]:
    nodes = [] if any(each["kind"] == "Node" for each in documents) else [node("node-1"), node("node-2")]
    saved = save(tmp_path / "objects.yaml", CLASS, *nodes, *documents)
    result = run("explain", *what, "--from", saved)
    return result.exit_code, words(result.output)


def test_a_pod_whose_driver_is_gone_waits_for_it(tmp_path: Path) -> None:
    code, text = explained(tmp_path, guest(), LUNCH, ELSEWHERE)

    assert code == 3
    assert (
        f"✗ pod default/guest is being deleted since {SINCE}, and waits for {DRIVER} to release its devices: "
        f"the driver has no slice of node-1, so it is not registered there {REMEDY}"
    ) in text
    assert "not why its containers do not run" not in text


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Pending"])
def test_pod_that_hangs_in_terminating_is_not_finished(tmp_path: Path, phase: str) -> None:
    code, text = explained(tmp_path, guest(phase=phase), LUNCH, ELSEWHERE)

    assert code == 3
    assert f"waits for {DRIVER} to release its devices" in text


def test_a_pod_whose_driver_is_being_removed_says_so(tmp_path: Path) -> None:
    code, text = explained(tmp_path, guest(), LUNCH, REMOVES)

    assert code == 3
    assert (
        f"waits for {DRIVER} to release its devices: the driver is being removed (node.decommission), by pod "
        "pizza-system/pizza-node-x7k2p"
    ) in text
    assert "the log of pod pizza-system/pizza-node-x7k2p lists them" in text


def test_a_driver_that_has_a_pod_and_no_slice_is_to_be_looked_at(tmp_path: Path) -> None:
    code, text = explained(tmp_path, guest(), LUNCH, WORKS)

    assert code == 3
    assert "has no slice of node-1, although its pod pizza-system/pizza-node-x7k2p exists" in text
    assert "`dra-kit status` in it" in text


def test_a_pod_of_the_driver_that_has_ended_or_is_on_another_node_or_of_another_driver_does_not_count(
    tmp_path: Path,
) -> None:
    for one in (driver_pod("node", node_name="node-2"), driver_pod("node", driver="other"), driver_pod(phase="Failed")):
        assert "so it is not registered there" in explained(tmp_path, guest(), LUNCH, one)[1]


def test_a_driver_that_works_and_does_not_release_is_named(tmp_path: Path) -> None:
    code, text = explained(tmp_path, guest(), LUNCH, PIZZAS, WORKS)

    assert code == 3
    assert f"waits for {DRIVER} to release its devices → `dra-kit status` in the driver's pod on node-1" in text
    assert "no slice" not in text


def test_of_two_drivers_the_one_that_is_gone_is_what_a_pod_waits_for(tmp_path: Path) -> None:
    other = claim("drink", held=("node-1", "cola"))
    other["status"]["allocation"]["devices"]["results"][0]["driver"] = "drinks.example"
    both = guest()
    both["spec"]["resourceClaims"].append({"name": "drink", "resourceClaimName": "drink"})
    _, text = explained(tmp_path, both, LUNCH, other, PIZZAS)

    assert "waits for drinks.example to release its devices: the driver has no slice of node-1" in text
    assert f"waits for {DRIVER}" not in text


def test_a_pod_whose_containers_still_run_does_not_wait_for_a_driver(tmp_path: Path) -> None:
    code, text = explained(tmp_path, guest(RUNS), LUNCH, ELSEWHERE)

    assert code == 0
    assert f"is being deleted since {SINCE}, and waits for its containers to terminate: eater" in text


def test_a_pod_on_a_node_that_does_not_answer_waits_for_the_node(tmp_path: Path) -> None:
    silent = node("node-1", taints=[{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}])
    code, text = explained(tmp_path, guest(RUNS), LUNCH, PIZZAS, silent)

    assert code == 3
    assert "waits for the kubelet of node-1: the node does not answer (taint node.kubernetes.io/unreachable)" in text


def test_finalizers_of_a_pod_are_listed(tmp_path: Path) -> None:
    _, text = explained(tmp_path, guest(finalizers=["batch.kubernetes.io/job-tracking"]), LUNCH, ELSEWHERE)

    assert "its finalizers, which their controllers remove: batch.kubernetes.io/job-tracking" in text


def test_devices_of_no_node_do_not_show_where_their_driver_is(tmp_path: Path) -> None:
    network = slice_of("node-1", rustica="cheddar")
    network["spec"] = {**network["spec"], "allNodes": True}
    del network["spec"]["nodeName"]
    _, text = explained(tmp_path, guest(), LUNCH, network)

    assert f"waits for {DRIVER} to release its devices" in text
    assert "no slice" not in text


def test_a_pod_that_runs_says_that_its_driver_is_being_removed(tmp_path: Path) -> None:
    code, text = explained(tmp_path, guest(RUNS, deleted=False), LUNCH, REMOVES)

    assert code == 0
    assert f"✓ pod default/guest runs on node-1 {DRIVER} is being removed from node-1 (node.decommission" in text


def test_a_pod_that_starts_says_that_its_driver_is_not_registered(tmp_path: Path) -> None:
    waiting = {"name": "eater", "state": {"waiting": {"reason": "ContainerCreating"}}}
    _, text = explained(tmp_path, guest(waiting, deleted=False, phase="Pending"), LUNCH, ELSEWHERE)

    assert f"{DRIVER}: the driver has no slice of node-1, so it is not registered there" in text


def test_a_pod_whose_driver_works_has_nothing_to_say_about_it(tmp_path: Path) -> None:
    _, text = explained(tmp_path, guest(RUNS, deleted=False), LUNCH, PIZZAS, WORKS)

    assert text.endswith("✓ pod default/guest runs on node-1")


def test_a_claim_that_is_being_deleted_names_its_pod_and_the_driver_that_is_gone(tmp_path: Path) -> None:
    going = claim("lunch", held=("node-1", "rustica"))
    going["metadata"]["deletionTimestamp"] = SINCE
    _, text = explained(tmp_path, going, ELSEWHERE, what=("claim", "lunch"))

    assert f"✗ default/lunch is being deleted since {SINCE}, and waits for pod guest, for which it is reserved" in text
    assert f"! {DRIVER}: the driver has no slice of node-1, so it is not registered there {REMEDY}" in text


def test_a_claim_without_devices_says_that_its_driver_is_being_removed(tmp_path: Path) -> None:
    code, text = explained(tmp_path, claim("dinner"), REMOVES, what=("claim", "dinner"))

    assert code == 3
    assert f"driver {DRIVER} is being removed (node.decommission): it has withdrawn its devices" in text


def test_programs_get_what_a_deletion_waits_for(tmp_path: Path) -> None:
    saved = save(tmp_path / "objects.yaml", CLASS, node("node-1"), guest(), LUNCH, ELSEWHERE)
    [found] = json.loads(run("explain", "pod", "guest", "--from", saved, "-o", "json").output)["explanations"]

    assert found["outcome"] == "terminating"
    assert (found["deletion"]["since"], found["deletion"]["waitsFor"]) == (SINCE, [DRIVER])
    [driver] = found["claims"][0]["claim"]["drivers"]
    assert (driver["driver"], driver["node"], driver["presence"]) == (DRIVER, "node-1", "absent")


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (("pod", "guest"), f"waits for {DRIVER} to release its devices: the driver is being removed"),
        (
            ("claim", "lunch"),
            f"! {DRIVER}: the driver is being removed (node.decommission), by pod pizza-system/pizza-node",
        ),
    ],
)
@pytest.mark.parametrize("saved", [False, True], ids=["live", "snapshot"])
def test_a_cluster_and_its_snapshot_say_the_same(
    tmp_path: Path, what: tuple[str, str], expected: str, saved: bool
) -> None:
    with Api() as api:
        api.put("nodes", node("node-1"))
        api.put("resourceclaims", LUNCH)
        api.put("pods", REMOVES)
        api.put("pods", guest())
        config = api.kubeconfig(tmp_path / "kubeconfig")
        source: tuple[str | Path, ...] = ("--kubeconfig", config)
        if saved:
            assert run("snapshot", tmp_path / "saved", *source).exit_code == 0
            source = ("--from", tmp_path / "saved")
        result = run("explain", *what, *source)

    assert expected in words(result.output)
    if saved:
        assert "/var/lib/kubelet" not in (tmp_path / "saved" / "pods.json").read_text()


def test_a_claim_is_explained_without_the_right_to_list_pods(tmp_path: Path) -> None:
    everywhere, own = "/api/v1/pods", "/api/v1/namespaces/default/pods"
    with Api() as api, api.failing(403, "GET", below=everywhere), api.failing(403, "GET", below=own):
        api.put("resourceclaims", LUNCH)
        result = run("explain", "claim", "lunch", "--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))

    assert result.exit_code == 0
    assert "you may not list" not in result.output
    assert "so it is not registered there" in words(result.output)


def test_no_driver_is_missed_on_the_first_node_of_an_allocation_that_allows_several(tmp_path: Path) -> None:
    """The scheduler's node selector of such a claim has one term for each node."""
    shared = claim("lunch", held=("node-1", "rustica"))
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in ("node-1", "node-2")
    ]
    shared["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": terms}
    shared["metadata"] |= {"deletionTimestamp": SINCE, "finalizers": ["resource.kubernetes.io/delete-protection"]}
    _, text = explained(tmp_path, shared, ELSEWHERE, what=("claim", "lunch"))

    assert "no slice of node-1" not in text
